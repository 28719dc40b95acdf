"""The part of a Trainer's state that newcomers need: its steps, its log, its best checkpoint, and the states of its callbacks."""

import dataclasses
import json
import typing

from transformers.trainer_callback import ExportableState

OWN = ("is_local_process_zero", "is_world_process_zero", "is_hyper_param_search", "trial_name", "trial_params", "stateful_callbacks")
"""Fields of TrainerState that each process decides itself."""
SUMS = ("_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "current_flos")
"""The Trainer's own numbers for its next log and its result, besides the sum of losses since the last log."""


class TrainerProgress:
    """A Trainer's progress as an object with a state like a model's."""

    def __init__(self, trainer: typing.Any) -> None:
        self._trainer = trainer
        self.is_stopped = False
        """Whether the state is that of a worker whose callbacks have stopped the training."""

    def state_dict(self) -> "typing.Dict[str, typing.Any]":
        """Return the progress. It is JSON inside, because the log of a Trainer has values of many types."""
        trainer = self._trainer
        fields = {name: value for name, value in dataclasses.asdict(trainer.state).items() if name not in OWN}
        sums = {name: getattr(trainer, name) for name in SUMS if hasattr(trainer, name)}
        loss = getattr(trainer, "_tr_loss", None)
        return {
            "state": json.dumps(fields, default=_plain),
            "sums": json.dumps(sums, default=_plain),
            "loss": None if loss is None else float(loss),
            "callbacks": json.dumps([one.state()["attributes"] for one in self._exportable()], default=_plain),
            "stopped": bool(trainer.control.should_training_stop),
        }

    def load_state_dict(self, state: "typing.Mapping[str, typing.Any]") -> None:
        """Take the progress of a peer."""
        trainer = self._trainer
        self.is_stopped = state["stopped"]
        for name, value in json.loads(state["state"]).items():
            setattr(trainer.state, name, value)
        for name, value in json.loads(state["sums"]).items():
            setattr(trainer, name, value)
        if state["loss"] is not None and hasattr(trainer, "_tr_loss"):
            trainer._tr_loss.fill_(state["loss"])
        for one, attributes in zip(self._exportable(), json.loads(state["callbacks"])):
            for name, value in attributes.items():
                setattr(one, name, value)

    def _exportable(self) -> "typing.List[typing.Any]":
        return [one for one in self._trainer.callback_handler.callbacks if isinstance(one, ExportableState)]


def _plain(value: typing.Any) -> typing.Any:
    """Return a number of numpy or torch as one of Python."""
    return value.item() if hasattr(value, "item") else str(value)
