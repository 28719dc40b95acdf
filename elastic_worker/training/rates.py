"""Learning-rate rules for a global batch that follows the size of the world. Nothing uses them unless the program does.

    run.on_resize(lambda old, new: rates.linear(optimizer, old, new, schedulers=[scheduler]))

With a constant global batch, which is the default, the learning rate needs no change.
"""

import typing

import torch

RATES = ("lr", "initial_lr", "max_lr", "min_lr")
"""Rates in an optimizer's groups: its own, and those from which schedulers compute it."""


def linear(optimizer: torch.optim.Optimizer, old: float, new: float, *, schedulers: "typing.Iterable[typing.Any]" = ()) -> None:
    """Multiply the learning rates by new / old. This rule is usual for SGD."""
    scale(optimizer, _ratio(old, new), schedulers=schedulers)


def square_root(optimizer: torch.optim.Optimizer, old: float, new: float, *, schedulers: "typing.Iterable[typing.Any]" = ()) -> None:
    """Multiply the learning rates by the square root of new / old. This rule is usual for Adam."""
    scale(optimizer, _ratio(old, new) ** 0.5, schedulers=schedulers)


def scale(optimizer: torch.optim.Optimizer, factor: float, *, schedulers: "typing.Iterable[typing.Any]" = ()) -> None:
    """Multiply the learning rates of all parameter groups. Name the optimizer's schedulers, because they remember the first rates."""
    for group in optimizer.param_groups:
        for name in RATES:
            if name in group:
                if isinstance(group[name], torch.Tensor):
                    group[name].mul_(factor)  # a captured graph reads this tensor
                else:
                    group[name] *= factor
    for scheduler in schedulers:
        scheduler.base_lrs = [rate * factor for rate in scheduler.base_lrs]


def _ratio(old: float, new: float) -> float:
    if old <= 0 or new <= 0:
        raise ValueError(f"The sizes are {old} and {new}. Both must be above 0.")
    return new / old
