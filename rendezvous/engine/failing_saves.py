"""Keep which ranks fail to save, and say it in words. A member's newest message holds until its processes restart."""

from __future__ import annotations

from .doing_words import PlaceOf
from .messages.bounds import MOST_COUNTED, printable
from .messages.saves import LASTING, MOST_FAILING, FailingRank, Saves
from .state.job import JobState
from .values import replace


def heard(job: JobState, member: str, message: Saves) -> JobState:
    """Note which workers of a member fail to save."""
    failed = tuple(replace(one, words=printable(one.words)) for one in message.failed if one.local_rank < message.workers)
    return job.change(member, saves=replace(message, failed=failed))


def told(job: JobState) -> tuple[FailingRank, ...]:
    """Return the ranks of the current world that fail to save, for the controller."""
    group = job.membership
    if group.world is None or job.is_done:
        return ()
    found = [
        FailingRank(rank=group.world.ranks[member.name] * member.saves.workers + one.local_rank, member=member.name, save=one)
        for member in group.members.values()
        if member.saves.failed and member.name in group.world.ranks
        for one in member.saves.failed
    ]
    counted = [one for one in found if one.rank <= MOST_COUNTED]  # a member may claim any number of workers
    return tuple(sorted(counted, key=lambda one: one.rank)[:MOST_FAILING])


def sentence(failing: FailingRank, *, place_of: PlaceOf = str) -> str:
    """Return which save failed, where and why, without a full stop."""
    save, where = failing.save, f"rank {failing.rank} ({place_of(failing.member)})"
    what = f"the save of step {save.step:,} failed on {where}"
    if save.failures >= LASTING:
        what = f"{save.failures:,} saves in a row failed on {where}, the last one of step {save.step:,}"
    last = f"the last complete save is of step {save.last:,}" if save.last is not None else "no complete save is known"
    return f"{what}: {save.words or 'for an unknown reason'}; training goes on, and {last}"
