"""Decide what ended a world, the cause of that restart, and whether the job may have another. Pure choices over records, as in group."""

import dataclasses
import typing

from elastic_worker.etcd.group import DISRUPTION, PLAN, Group, Standing
from elastic_worker.etcd.records import End

COLLATERAL, USER, OUT_OF_MEMORY, HANG = "collateral", "user", "outOfMemory", "hang"
CHARGED = (USER, OUT_OF_MEMORY, HANG)
OF_NO_ACCOUNT = (PLAN, COLLATERAL)
"""Causes that by themselves say nothing against a job that gets nowhere: somebody asked for the change."""


@dataclasses.dataclass(frozen=True)
class Account:
    """The job's restarts once the current world has ended. spent: which part of the budget that uses up.

    fruitless: restarts in a row without a further step. step: the highest one reported before the last of them.
    """

    restarts: typing.Mapping[str, int]
    fruitless: int = 0
    step: typing.Optional[int] = None
    spent: str = ""


def ends_of(group: Group) -> typing.List[End]:
    """Return what ended the current world, seat by seat.

    The first failed worker is the cause, and the others failed with it. If a member was lost or is taken away, or the world was being left,
    or somebody had finished, none of them is. A hang is the whole world's, at the seat of rank 0.
    """
    world = group.world
    if world is None:
        return []
    lost = [name for name in group.those(Standing.GONE) if group.failure(name) is None]
    troubled = [name for name in group.those(Standing.BACK) if group.members[name].trouble and group.failure(name) is None]
    # A controller may have told a member to go that another pod of its name has replaced since.
    planned = frozenset(world.round.planned if world.round is not None else ())
    causes = [(name, PLAN if group.ranks[name] in planned else group.leaving(name) or DISRUPTION) for name in lost]
    causes += [(name, DISRUPTION) for name in troubled]
    if world.round is None:
        taken = {name: cause for name, cause in group.taken_away().items() if name not in dict(causes)}
        causes += taken.items()
        is_collateral = bool(causes) or group.has_finished
        failed = [name for name in group.failed() if name not in taken]
        causes += [(name, COLLATERAL if is_collateral or place else cause_of(group, name)) for place, name in enumerate(failed)]
    elif world.round.cause == HANG:
        causes.append((world.seats[0].name, HANG))
    seats = {seat.name: seat.incarnation for seat in world.seats}
    return [End(world.generation, name, seats[name], cause, is_lost=name in lost and cause != HANG) for name, cause in causes]


def cause_of(group: Group, name: str) -> str:
    """Return the cause of a restart for which the failure of this seat's worker is to blame."""
    failure = group.failure(name)
    return OUT_OF_MEMORY if failure is not None and failure.out_of_memory else USER


def charged(group: Group, ends: typing.Sequence[End]) -> Account:
    """Return the account with these ends."""
    world, expected = group.world, group.expected
    if world is None:
        return Account(dict(expected.restarts), expected.fruitless, expected.step) if expected is not None else Account({})
    counts = dict(world.restarts)
    for end in ends:
        counts[end.cause] = counts.get(end.cause, 0) + 1
    fruitless, step = _progress(group, ends)
    # A smaller budget than what is used up closes the job at its next restart, not at a planned change.
    return Account(counts, fruitless, step, _spent(group, counts, fruitless) if ends else "")


def _progress(group: Group, ends: typing.Sequence[End]) -> typing.Tuple[int, typing.Optional[int]]:
    """Restarts in a row without a step forward, and the highest step before the last of them."""
    world, progress = group.world, group.records.progress
    assert world is not None
    reached = progress.step if progress is not None else None
    is_forward = reached is not None and (world.step is None or reached > world.step)
    before = 0 if is_forward else world.fruitless
    if all(end.cause in OF_NO_ACCOUNT for end in ends):
        return before, world.step
    if group.rules.without_progress is None:
        return 0, reached
    return 1 if reached is None and group.has_lasted else before + 1, reached if reached is not None else world.step


def _spent(group: Group, counts: typing.Mapping[str, int], fruitless: int) -> str:
    limit, most = group.rules.max_restarts, group.rules.without_progress
    if limit is not None and sum(counts.get(cause, 0) for cause in CHARGED) > limit:
        words = (
            "the one restart that max_restarts allows is used up" if limit == 1 else "all {} restarts that max_restarts allows are used up"
        )
        return words.format(limit)
    if most is not None and fruitless > most:
        return "{} restarts in a row, as many as maxRestartsWithoutProgress allows, brought no step forward".format(most)
    return ""
