"""Arguments of a Trainer whose world changes, and the check that each argument is honoured: none is accepted and ignored."""

import contextlib
import os
import typing
from dataclasses import dataclass, field

import transformers
from transformers import Trainer, TrainingArguments

LAUNCHED = ("LOCAL_RANK", "WORLD_SIZE")
"""Variables by which accelerate takes this process for one of several. It would then form a process group that never changes."""
BATCH = "global_batch_size and per_device_train_batch_size decide how many micro-batches a step has"
ORDER = "the order of the samples must be the same at every number of workers"
GROUP = "elastic_worker forms the process groups"
SHARDED = "a lost worker would take its part of the model along"

REFUSED: "typing.Tuple[typing.Tuple[str, typing.Tuple[typing.Any, ...], str], ...]" = (
    ("gradient_accumulation_steps", (1,), BATCH),
    ("auto_find_batch_size", (False,), BATCH),
    ("average_tokens_across_devices", (True,), "the gradients would depend on the number of workers"),
    ("dataloader_drop_last", (False,), "a batch that is cut off by the end of an epoch goes on with the next epoch"),
    ("dataloader_in_order", (True,), ORDER),
    ("train_sampling_strategy", ("random", "sequential"), ORDER),
    ("ignore_data_skip", (False,), "a resumed training goes on with the samples that follow"),
    ("ddp_backend", (None, "gloo"), GROUP),
    ("ddp_timeout", (1800,), GROUP),
    ("fsdp", (None, False, "", []), SHARDED),
    ("deepspeed", (None,), SHARDED),
    ("parallelism_config", (None,), SHARDED),
    ("torch_compile", (False,), "compiled models are untested"),
    ("enable_jit_checkpoint", (False,), "the first rank saves by itself if all workers get SIGTERM"),
)
"""Arguments, the values that are honoured, and the reason why others are not."""
BACKWARD_OPTIMIZERS = ("lomo", "adalomo")
"""Optimizers that change weights during the backward, so that a broken step could not be tried again."""
NEEDED = ("_inner_training_loop", "_init_training_state", "_prepare_for_training", "_run_epoch", "_maybe_log_save_evaluate")
"""Parts of the Trainer that an elastic one replaces or calls."""
OVERRIDDEN = {
    "get_train_dataloader": "train_dataset or data_collator",
    "_get_train_sampler": "train_sampling_strategy",
    "get_batch_samples": "data_collator",
}


@dataclass
class ElasticTrainingArguments(TrainingArguments):  # type: ignore[misc]
    """TrainingArguments with a batch that stays the same at every number of workers.

    `per_device_train_batch_size` is the largest micro-batch. The number of micro-batches follows from it and the number of workers.
    """

    global_batch_size: int = field(default=0, metadata={"help": "Samples of one step, of all workers together."})

    def __post_init__(self) -> None:
        """Set up the device without a process group."""
        if self.global_batch_size < 1:
            raise ValueError(
                f"global_batch_size is {self.global_batch_size}. Set it to the number of samples that all workers together use in one step."
            )
        with _alone():
            super().__post_init__()


@contextlib.contextmanager
def _alone() -> "typing.Iterator[None]":
    """Hide that a launcher has started this process."""
    hidden = {name: os.environ.pop(name) for name in LAUNCHED if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def word(option: typing.Any) -> typing.Any:
    """Return the word of an option that is an enum in most versions."""
    return getattr(option, "value", option)


def refuse(args: typing.Any) -> None:
    """Raise TypeError or ValueError for the first argument that an elastic Trainer would not honour."""
    missing = [name for name in NEEDED if not hasattr(Trainer, name)]
    if missing:
        raise TypeError(f"The Trainer of transformers {transformers.__version__} has no {missing[0]}. Use a version like 5.23.")
    if not isinstance(args, ElasticTrainingArguments):
        raise TypeError(f"args is a {type(args).__name__}. Use ElasticTrainingArguments: others form a process group that never changes.")
    for name, honoured, why in REFUSED:
        found = word(getattr(args, name, honoured[0]))
        if found not in honoured:
            raise ValueError(f"{name} is {found!r}, which ElasticTrainer does not support: {why}. Use {honoured[0]!r}.")
    optimizer = str(word(args.optim))
    if optimizer in BACKWARD_OPTIMIZERS or optimizer.endswith("_layerwise"):
        raise ValueError(f"optim is {optimizer!r}, which changes weights during the backward. Such a step cannot be tried again.")
    if args.n_gpu > 1:
        raise ValueError(f"This process sees {args.n_gpu} GPUs. Give each process one, for example with CUDA_VISIBLE_DEVICES.")
    given, plain = args.accelerator_config.to_dict(), type(args.accelerator_config)().to_dict()
    for name in sorted(given.keys() - {"non_blocking"}):
        if given[name] != plain[name]:
            raise ValueError(f"accelerator_config.{name} is {given[name]!r}, which ElasticTrainer does not support. Leave it out.")


def refuse_overrides(trainer: typing.Any, after: type) -> None:
    """Raise TypeError if a Trainer that follows `after` in the order of classes has its own way to feed the steps."""
    order = type(trainer).__mro__
    for cls in order[order.index(after) + 1 : order.index(Trainer)]:
        for name, instead in OVERRIDDEN.items():
            if name in vars(cls):
                raise TypeError(f"{cls.__name__}.{name} would not be called: ElasticTrainer feeds the steps itself. Use {instead}.")
