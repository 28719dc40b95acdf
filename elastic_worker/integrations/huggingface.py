"""Report, save on notice and go on from a checkpoint with Hugging Face's Trainer.

    from elastic_worker.integrations.huggingface import ElasticCallback, newest_checkpoint

    trainer = Trainer(model=model, args=args, train_dataset=dataset, callbacks=[ElasticCallback()])
    trainer.train(resume_from_checkpoint=newest_checkpoint(args.output_dir))

Without a control plane the callback reports nothing, and the rest works the same.
"""

import json
import logging
import os
import re
import typing

from transformers import TrainerCallback

from elastic_worker.integrations.agreement import PATIENCE_S, Agreement, newest_of_all
from elastic_worker.report import Reporter

log = logging.getLogger(__name__)

NAME = re.compile(r"checkpoint-(\d+)\Z")
LAST_FILE = "trainer_state.json"
"""The file that the Trainer writes last into a checkpoint."""
INCOMPLETE = "checkpoint-is-incomplete.txt"


class ElasticCallback(TrainerCallback):  # type: ignore[misc]
    """Reports steps and loss. All ranks save when a worker must go soon, and save and end when the world changes (SIGTERM).

    With `save_strategy="no"` it saves nothing. A handler of SIGTERM that was there before stays, also that of `enable_jit_checkpoint`.
    """

    def __init__(self, reporter: typing.Optional[Reporter] = None, *, patience_s: float = PATIENCE_S) -> None:
        self._agreement = Agreement(reporter, patience_s=patience_s)
        self._loss = {}  # type: typing.Dict[str, float]
        self._is_leaving = False

    def on_train_begin(self, args: typing.Any, state: typing.Any, control: typing.Any, **kwargs: typing.Any) -> None:
        """Begin to heed notices and SIGTERM."""
        self._is_leaving = False
        self._agreement.begin(state.global_step)

    def on_log(
        self,
        args: typing.Any,
        state: typing.Any,
        control: typing.Any,
        logs: typing.Optional[typing.Mapping[str, typing.Any]] = None,
        **kwargs: typing.Any,
    ) -> None:
        """Keep the loss for the next report."""
        if logs and "loss" in logs:
            self._loss = {"loss": float(logs["loss"])}

    def on_step_end(self, args: typing.Any, state: typing.Any, control: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """Report the step, and ask for a checkpoint if the ranks agree on it."""
        verdict = self._agreement.after_step(state.global_step, args.device, lambda: self._values(args, state))
        may_save = _word(args.save_strategy) != "no"
        if verdict.save and may_save:
            control.should_save = True
        if verdict.stop:
            control.should_evaluate = False  # an evaluation comes before the save, and the time is short
            self._is_leaving = True
            if not may_save:
                self._agreement.leave()
        return control

    def on_save(self, args: typing.Any, state: typing.Any, control: typing.Any, **kwargs: typing.Any) -> None:
        """End the process if this was the last save of this world."""
        if self._is_leaving:
            self._agreement.leave()

    def on_train_end(self, args: typing.Any, state: typing.Any, control: typing.Any, **kwargs: typing.Any) -> None:
        """Report the last step."""
        self._agreement.end(state.global_step, self._values(args, state))

    def _values(self, args: typing.Any, state: typing.Any) -> typing.Dict[str, float]:
        samples = state.global_step * args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        return dict(self._loss, samples=float(samples))


def newest_checkpoint(folder: str) -> typing.Optional[str]:
    """Return the newest whole checkpoint in a Trainer's `output_dir` that every rank can read, or None.

    Call it on all ranks after you made the TrainingArguments, which connect the ranks.
    """
    found = {step: path for step, path in _checkpoints(folder) if _is_whole(path, step)}
    step, known = newest_of_all(found)
    if known is not None and step != known:
        log.warning("elastic_worker: not all ranks can read checkpoint-%s in %s; output_dir must be a folder that all share", known, folder)
    return None if step is None else found[step]


def _checkpoints(folder: str) -> typing.Iterator[typing.Tuple[int, str]]:
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        match = NAME.match(name)
        if match is not None:
            yield int(match[1]), os.path.join(folder, name)


def _is_whole(path: str, step: int) -> bool:
    """Tell whether a checkpoint was written to its end. A worker that was lost may have left a part of one."""
    try:
        with open(os.path.join(path, LAST_FILE), encoding="utf-8") as file:
            state = json.load(file)
    except (OSError, ValueError):
        return False
    return isinstance(state, dict) and state.get("global_step") == step and not os.path.exists(os.path.join(path, INCOMPLETE))


def _word(strategy: typing.Any) -> str:
    """Return the word of an option that is an enum in most versions."""
    return str(getattr(strategy, "value", strategy))
