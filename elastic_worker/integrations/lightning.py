"""Report, save on notice and end in time with Lightning's Trainer.

    from elastic_worker.integrations.lightning import ElasticCallback

    checkpoints = ModelCheckpoint(dirpath="/checkpoints", save_last=True)
    trainer = Trainer(devices="auto", callbacks=[checkpoints, ElasticCallback()])
    trainer.fit(model, loader, ckpt_path="last")

In workers of our control plane, Lightning adds the callback by itself: it finds `callbacks` as an entry point. Lightning's own handler of
SIGTERM broadcasts from inside the handler. The ranks are then in different collectives and wait for each other, so ours replaces it.
"""

import os
import signal
import sys
import typing

from elastic_worker.integrations.agreement import PATIENCE_S, Agreement
from elastic_worker.report import Reporter

if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import Callback
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

NAME = "-elastic"
"""Follows `last` in the name of our checkpoint, so that `ckpt_path="last"` finds it."""


def callbacks() -> typing.List[typing.Any]:
    """Return what Lightning adds to every Trainer: the callback where a control plane takes reports."""
    reporter = Reporter.from_environment()
    return [ElasticCallback(reporter)] if reporter.is_heard else []


class ElasticCallback(Callback):  # type: ignore[misc]
    """Reports steps and loss. All ranks save when a worker must go soon, and save and end when the world changes (SIGTERM).

    It saves into the folder of the Trainer's ModelCheckpoint, and nothing if the Trainer has none.
    """

    def __init__(self, reporter: typing.Optional[Reporter] = None, *, patience_s: float = PATIENCE_S) -> None:
        super().__init__()
        self._agreement = Agreement(reporter, patience_s=patience_s)
        self._is_on = True
        self._last_step = -1

    def setup(self, trainer: typing.Any, pl_module: typing.Any, stage: str) -> None:
        """Leave the work to the user's own callback if there is one: a Trainer has ours besides."""
        self._is_on = next(one for one in trainer.callbacks if isinstance(one, ElasticCallback)) is self

    def on_train_start(self, trainer: typing.Any, pl_module: typing.Any) -> None:
        """Begin to heed notices and SIGTERM."""
        if self._is_on:
            self._last_step = trainer.global_step
            self._agreement.begin(trainer.global_step, replaces=_is_lightnings)

    def on_train_batch_end(
        self, trainer: typing.Any, pl_module: typing.Any, outputs: typing.Any, batch: typing.Any, batch_idx: int
    ) -> None:
        """Report the step, and save and leave if the ranks agree on it."""
        step = trainer.global_step
        if not self._is_on or step == self._last_step:  # gradients are accumulated
            return
        self._last_step = step
        verdict = self._agreement.after_step(step, trainer.strategy.root_device, lambda: _loss(outputs))
        if verdict.save:
            _save(trainer)
        if verdict.stop:
            self._agreement.leave()

    def on_train_end(self, trainer: typing.Any, pl_module: typing.Any) -> None:
        """Report the last step."""
        if self._is_on:
            self._agreement.end(trainer.global_step, {})

    def on_exception(self, trainer: typing.Any, pl_module: typing.Any, exception: BaseException) -> None:
        """Give SIGTERM back."""
        if self._is_on:
            self._agreement.abandon()


def _save(trainer: typing.Any) -> None:
    checkpoints = trainer.checkpoint_callback
    folder = getattr(checkpoints, "dirpath", None)
    if folder:
        trainer.save_checkpoint(os.path.join(folder, checkpoints.CHECKPOINT_NAME_LAST + NAME + checkpoints.FILE_EXTENSION))


def _loss(outputs: typing.Any) -> typing.Dict[str, float]:
    """Return the loss that a training step returned, if it did."""
    loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
    return {} if loss is None else {"loss": float(loss)}


def _is_lightnings(handler: typing.Any) -> bool:
    """Tell whether a handler of SIGTERM is Lightning's own with nothing of the user's in it."""
    if handler == signal.SIG_DFL:
        return True
    inside = getattr(handler, "signal_handlers", None)
    return type(handler).__name__ == "_HandlersCompose" and isinstance(inside, list) and len(inside) == 1
