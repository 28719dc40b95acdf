"""Refuse a training program's mistakes that would otherwise train something else without a word."""

import typing

import torch

if typing.TYPE_CHECKING:
    from elastic_worker.training.step import Step

OUTSIDE = (
    "optimizer.step() was called outside of `with step:`. If a worker is lost meanwhile, nobody knows whether the step counts. Move it "
    "into the block."
)
CALLED_OUTSIDE = (
    "run.model or step.sum was called outside of `with step:`. They work together with all other workers, whose world may change "
    "meanwhile. Use your own model there, or move the call into the block."
)
OWN_GROUP = "the program has called init_process_group. Remove that call, because Run forms the group of each world"
UNWEIGHTED = (
    "The gradients of this step do not come from step.backward(). Call step.backward(loss, samples=len(x)) in place of loss.backward(): it "
    "weights the loss, so that the step is the same at every number of workers."
)
OF_MODEL = (
    "model. Make the optimizer from model.parameters() after the last change of the model, and put other trained tensors into the model."
)
NO_SCHEDULER = (
    "The optimizer has a learning-rate scheduler that is not in extra. A new worker would begin it again, and train at another learning "
    "rate. Pass Run(..., extra={'scheduler': scheduler})."
)


def check_arguments(model: typing.Any, optimizer: typing.Any, batch: typing.Any, extra: typing.Any) -> None:
    """Raise TypeError or ValueError if an argument of Run is of another kind."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError("model is a {}, but must be a torch.nn.Module. Call Run(model, optimizer, ...).".format(type(model).__name__))
    if not hasattr(optimizer, "param_groups"):
        raise TypeError("optimizer is a {}, but must be an optimizer of torch.".format(type(optimizer).__name__))
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        raise TypeError("batch is {!r}, but must be the number of samples that all workers use in one step, at least 1.".format(batch))
    if extra is not None and not isinstance(extra, typing.Mapping):
        raise TypeError("extra is a {}, but must name each object: extra={{'scheduler': scheduler}}.".format(type(extra).__name__))


def check_data(length: int, batch: int) -> None:
    """Raise ValueError if one step would use a sample twice."""
    if batch > length:
        words = "batch is {}, but data has {} samples, so a step would use some of them twice. Pass a batch of at most {}, or more data."
        raise ValueError(words.format(batch, length, length))


def check_parameters(optimizer: torch.optim.Optimizer, own: "typing.Collection[int]", words: str) -> None:
    """Raise ValueError if the optimizer changes tensors without these ids: they would differ between workers.

    words: the end of the sentence about the tensor, and the remedy.
    """
    for number, group in enumerate(optimizer.param_groups):
        if any(id(parameter) not in own for parameter in group["params"]):
            raise ValueError("The optimizer's param_groups[{}] has a parameter that is not in the {}".format(number, words))


def check_scheduler(optimizer: typing.Any, extra: "typing.Mapping[str, typing.Any]") -> None:
    """Raise ValueError if the optimizer has a scheduler that would not travel with the state."""
    has_scheduler = getattr(optimizer.step, "_wrapped_by_lr_sched", False)
    if has_scheduler and not any(hasattr(one, name) for one in extra.values() for name in ("optimizer", "scheduler", "optimizers")):
        raise ValueError(NO_SCHEDULER)


def check_call(step: "typing.Optional[Step]") -> None:
    """Raise RuntimeError if no step's block is open in which workers may wait for each other."""
    if step is None:
        raise RuntimeError(CALLED_OUTSIDE)


def check_writing(step: "typing.Optional[Step]") -> None:
    """Raise an error if the optimizer may not write now. step: the step whose block is open."""
    if step is None:
        raise RuntimeError(OUTSIDE)
    if step.gave_batches and not step.was_weighted:
        raise TypeError(UNWEIGHTED)
