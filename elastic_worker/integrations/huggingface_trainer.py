"""Let Hugging Face's Trainer train on while workers join and leave: its processes keep running.

    from elastic_worker.integrations.huggingface_trainer import ElasticTrainer, ElasticTrainingArguments

    args = ElasticTrainingArguments(output_dir="/checkpoints", global_batch_size=96, max_steps=10_000)
    trainer = ElasticTrainer(model=model, args=args, train_dataset=dataset)
    trainer.train(resume_from_checkpoint=newest_checkpoint(args.output_dir))

The Trainer's own loop runs, and takes its process for the only one. The mixin replaces the forward and backward of a step, the only part
with collectives. `elastic_worker.training.Run` owns the worlds, the order of the samples, and the state that newcomers receive.
"""

import functools
import itertools
import math
import os
import typing

import torch
from transformers import ProgressCallback, Trainer, TrainerCallback

from elastic_worker.integrations.huggingface import ElasticCallback
from elastic_worker.integrations.huggingface_arguments import ElasticTrainingArguments as ElasticTrainingArguments
from elastic_worker.integrations.huggingface_arguments import refuse, refuse_overrides, word
from elastic_worker.integrations.huggingface_progress import TrainerProgress
from elastic_worker.training.data import Loader
from elastic_worker.training.environment import is_provisional, own
from elastic_worker.training.run import Run
from elastic_worker.training.sampler import Sampler
from elastic_worker.training.step import Step

AFTER_STEP = ("model", "trial", "epoch", "ignore_keys_for_eval", "start_time")
"""Arguments of the Trainer's loop that its work after a step needs."""

if typing.TYPE_CHECKING:
    from transformers import Trainer as Base
else:
    Base = object


class Finished(Exception):
    """All ranks have made the last step, so the Trainer's loop must not make another one."""


class _Endless:
    """Stands for the Trainer's data: one item per step. `training_step` gets the samples of this rank itself."""

    def __init__(self, dataset: typing.Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> "typing.Iterator[typing.Dict[str, typing.Any]]":
        return ({} for _ in itertools.count())


class _Commit(TrainerCallback):  # type: ignore[misc]
    """Commits the step before the other callbacks see its end: they may take longer than a step."""

    def __init__(self, commit: "typing.Callable[[], None]") -> None:
        self._commit = commit

    def on_step_end(self, args: typing.Any, state: typing.Any, control: typing.Any, **kwargs: typing.Any) -> None:
        """Commit the step."""
        self._commit()


class ElasticMixin(Base):  # type: ignore[misc]
    """The elastic part of a Trainer. Put it first: `class MyElasticTrainer(ElasticMixin, MyTrainer)`."""

    control: typing.Any
    run: Run
    """The training of the present `train()`. Read `run.rank` and `run.size` in each step, because they change."""
    _is_in_loop = False
    _factor = 1.0
    """Weight of the present loss, so that all ranks together average over the global batch."""

    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None:
        super().__init__(*args, **kwargs)
        self.callback_handler.callbacks.insert(0, _Commit(self._commit))
        self._next = self._open = None  # type: typing.Optional[Step]
        self._was_noticed = self._missed_end = self._has_begun = False
        self._flos, self._tokens, self._epoch = 0.0, 0, 0

    def create_accelerator_and_postprocess(self) -> None:
        """Make the accelerator, and let it weigh each loss."""
        refuse(self.args)
        refuse_overrides(self, ElasticMixin)
        super().create_accelerator_and_postprocess()
        self.accelerator.backward = functools.partial(self._backward, self.accelerator.backward)
        self._take_rank(1 if is_provisional() else own("RANK", 0))

    def _take_rank(self, rank: int) -> None:
        """Tell the Trainer whether this process is the first: that one logs and saves. For the rest it stays the only one."""
        for known in (self.args.distributed_state, self.accelerator.state):
            known.process_index, known.local_process_index = rank, own("LOCAL_RANK", 0)

    # --- the loop

    def _inner_training_loop(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        if hasattr(self, "run") and self.run.is_in_process:
            raise RuntimeError("train() was called again. A worker changes worlds in one loop only; call train() once per process.")
        self._is_in_loop = True
        self._steps = iter(())  # type: typing.Any
        try:
            return super()._inner_training_loop(*args, **kwargs)
        finally:
            self._is_in_loop = self._has_begun = False
            self._next = self._open = None
            if hasattr(self._steps, "close"):
                self._steps.close()

    def get_train_dataloader(self) -> typing.Any:
        """Return the Trainer's dataloader. In `train()`, only its dataset and collator are used: Run knows the samples of a step."""
        given = super().get_train_dataloader()
        if not self._is_in_loop:
            return given
        args = self.args
        seed = args.seed if args.data_seed is None else args.data_seed
        is_shuffled = word(args.train_sampling_strategy) == "random"
        self._sampler = Sampler(len(given.dataset), args.global_batch_size, seed=seed, shuffle=is_shuffled)
        self._loader = Loader(
            given.dataset,
            self._sampler,
            micro_batch=args.per_device_train_batch_size,
            collate=given.collate_fn,
            workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory and args.device.type == "cuda",
            prefetch_factor=args.dataloader_prefetch_factor,
            multiprocessing_context=args.dataloader_multiprocessing_context,
        )
        return _Endless(given.dataset)

    def set_initial_training_values(self, args: typing.Any, dataloader: typing.Any) -> "typing.Tuple[int, ...]":
        """Count steps and epochs by the global batch, so that they do not depend on the number of workers."""
        samples, batch = self._sampler.length, self._sampler.batch
        steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * samples / batch)
        return math.ceil(steps * batch / samples), steps, samples, steps * batch, batch, steps, steps

    def _init_training_state(self, *args: typing.Any, **kwargs: typing.Any) -> "typing.Tuple[int, int]":
        super()._init_training_state(*args, **kwargs)
        return 0, 0  # the Trainer skips nothing, because Run knows the samples of each step

    def _prepare_for_training(self, max_steps: int, train_dataloader: typing.Any, resume_from_checkpoint: typing.Any) -> typing.Any:
        prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        self._progress = TrainerProgress(self)
        extra = {"trainer": self._progress, "scheduler": self.lr_scheduler, "scaler": self.accelerator.scaler}
        ddp = self.accelerator.ddp_handler
        optimizer = typing.cast(torch.optim.Optimizer, getattr(self.optimizer, "optimizer", self.optimizer))
        self.run = Run(
            self.model,
            optimizer,
            batch=self._sampler.batch,
            data=self._loader,
            extra={name: one for name, one in extra.items() if one is not None},
            ddp={} if ddp is None else ddp.to_kwargs(),
        )
        self.run.save_last = self._save_last
        self._steps = self.run.steps(max_steps, restored=None if resume_from_checkpoint is None else self.state.global_step)
        self._next = next(self._steps, None)  # the first world: callbacks must know the rank before the training begins
        self._follow_world()
        self._epoch = self._sampler.epoch(self.run.committed)
        callback = self.pop_callback(ElasticCallback)
        if not self.run.is_in_process:
            self.add_callback(callback or ElasticCallback())  # a change of the world ends this process, so it must save before
        return prepared

    def _run_epoch(self, **loop: typing.Any) -> None:
        """Run the Trainer's loop. For the Trainer the whole training is one epoch; `_maybe_log_save_evaluate` tells of the real ones."""
        self._has_begun = True
        try:
            super()._run_epoch(**loop)
        except Finished:
            if self._missed_end:  # a peer sent the state after the last step, and this worker may be the one that saves
                self.control = self.callback_handler.on_step_end(self.args, self.state, self.control)
                super()._maybe_log_save_evaluate(self._tr_loss, None, **{name: loop[name] for name in AFTER_STEP})
            self.control.should_training_stop = True
        if self.control.should_training_stop:
            had_saved = self.args.should_save
            self.run.stop()
            next(self._steps, None)  # waits for the peers
            self._follow_world()
            if self.args.should_save and not had_saved and word(self.args.save_strategy) != "no":
                self._save_checkpoint(loop["model"], loop["trial"])  # the worker that saved may be lost

    def _maybe_log_save_evaluate(self, *args: typing.Any, **kwargs: typing.Any) -> None:
        """Do the Trainer's work after a step. If an epoch has ended in it, tell the callbacks."""
        epoch = self._sampler.epoch(self.run.committed)
        is_over = epoch > self._epoch and not self.control.should_training_stop
        self._epoch = epoch
        if is_over:
            self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
        super()._maybe_log_save_evaluate(*args, **kwargs)
        if self.control.should_epoch_stop:
            raise RuntimeError("A callback has set should_epoch_stop. ElasticTrainer cannot leave out samples; use should_training_stop.")
        if is_over and not self.control.should_training_stop:
            self.control = self.callback_handler.on_epoch_begin(self.args, self.state, self.control)

    def _save_checkpoint(self, model: typing.Any, trial: typing.Any) -> None:
        """Save on the first rank only. The others keep in mind which checkpoint is the best."""
        if self.args.should_save:
            super()._save_checkpoint(model, trial)
        elif self.state.best_global_step:
            folder = self._get_output_dir(trial=trial)
            self.state.best_model_checkpoint = os.path.join(folder, "checkpoint-{}".format(self.state.best_global_step))

    def _save_last(self) -> None:
        if word(self.args.save_strategy) != "no":
            self._save_checkpoint(self.model, None)

    # --- a step

    def training_step(self, model: typing.Any, inputs: typing.Any, num_items_in_batch: typing.Any = None) -> torch.Tensor:
        """Compute the gradients of the step over all workers. If a peer is lost, do it again in the next world."""
        if not self._is_in_loop:
            return typing.cast(torch.Tensor, super().training_step(model, inputs, num_items_in_batch))
        self._missed_end = False
        while True:
            self._open = step = self._entered()
            try:
                return self._gradients(step)
            except Exception as error:
                self._open = None
                if not step.__exit__(type(error), error, error.__traceback__):
                    raise
                self._missed_end = True

    def _entered(self) -> Step:
        """Return the next step, in its world. Raise Finished if all have made the last one."""
        if self._progress.is_stopped:
            self.run.stop()
            self._next = None
        step, self._next = self._next or next(self._steps, None), None
        if step is None:
            raise Finished
        step.__enter__()
        self._follow_world()
        return step

    def _gradients(self, step: Step) -> torch.Tensor:
        """Run forward and backward for this rank's micro-batches, and return the loss over the global batch."""
        device, size = self.args.device, self.run.size
        micros = list(step.micros())
        share = [micro.values for micro in micros if micro.samples]
        flos, tokens = sum(float(super(ElasticMixin, self).floating_point_ops(values)) for values in share), self._count_tokens(share)
        items = self._get_num_items_in_batch([micro.values for micro in micros], device)
        if items is not None:
            items = step.sum(torch.as_tensor(items * bool(share), device=device))
        is_by_items = items is not None and self._divides_by_items()
        total = torch.zeros((), dtype=torch.float64, device=device)
        for micro in micros:
            step.use(micro)
            self._factor = float(size * bool(micro.samples)) if is_by_items else micro.scale
            total += super().training_step(self.run.model, micro.values, items) * (self._factor / size)
        self._factor = 1.0
        sums = step.sum(torch.stack([total, total.new_tensor(flos), total.new_tensor(tokens)])).tolist()
        self._flos, self._tokens = sums[1], int(sums[2])
        step.report(loss=sums[0], samples=float(self._sampler.position(step.number + 1)))
        return torch.tensor(sums[0], dtype=self._tr_loss.dtype, device=device)

    def _divides_by_items(self) -> bool:
        """Return whether a loss is the sum over its micro-batch, divided by the items of the global batch, as the Trainer decides it."""
        said = getattr(self, "loss_is_scaled_for_ga", None)
        return bool(self.model_accepts_loss_kwargs or self.compute_loss_func is not None) if said is None else bool(said)

    def _backward(self, backward: "typing.Callable[..., None]", loss: torch.Tensor, **kwargs: typing.Any) -> None:
        backward(loss * self._factor, **kwargs)

    def _commit(self) -> None:
        """Commit the step: it counts, although the Trainer has yet to log, evaluate and save."""
        step, self._open = self._open, None
        if step is None:  # the step of a peer
            return
        self.state.epoch = self._sampler.position(step.number + 1) / self._sampler.length
        step.__exit__(None, None, None)
        if self.run.is_noticed and not self._was_noticed and word(self.args.save_strategy) != "no":
            self.control.should_save = True
        self._was_noticed = self.run.is_noticed

    def _follow_world(self) -> None:
        """Take this worker's rank in its world, and start the progress bar of a worker that has become the first."""
        self._take_rank(self.run.rank)
        self.state.is_local_process_zero, self.state.is_world_process_zero = self.is_local_process_zero(), self.is_world_process_zero()
        for callback in self.callback_handler.callbacks if self.state.is_world_process_zero and self._has_begun else ():
            if isinstance(callback, ProgressCallback) and callback.training_bar is None:
                callback.on_train_begin(self.args, self.state, self.control)

    # --- numbers of the step that the Trainer asks for

    def floating_point_ops(self, inputs: typing.Any) -> float:
        """Return the operations of the present step, of all workers together."""
        return self._flos if self._is_in_loop else float(super().floating_point_ops(inputs))

    def _track_num_input_tokens(self, inputs: typing.Any) -> None:
        self.state.num_input_tokens_seen += self._tokens

    def _count_tokens(self, share: "typing.Sequence[typing.Any]") -> int:
        """Return the tokens of this rank's micro-batches, as the Trainer counts them."""
        before = self.state.num_input_tokens_seen
        for values in share:
            super()._track_num_input_tokens(values)
        found, self.state.num_input_tokens_seen = self.state.num_input_tokens_seen - before, before
        return int(found)


class ElasticTrainer(ElasticMixin, Trainer):  # type: ignore[misc]
    """Hugging Face's Trainer in worlds that change."""
