"""Choose the members of the next world and their ranks. Pure choices, mostly over a job's membership; nothing changes here.

A member that must leave is chosen only if the job would otherwise fall below its minimum, or lose the state of training. It becomes
rank 0 only if no survivor stays, or if it alone holds the newest state. A member that may have to leave keeps its place until another
one takes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from .state.job import JobState
from .state.membership import LeaveNotice, Member, MemberPhase, Membership
from .words import Cause


def leave_notice(group: Membership, name: str, *, now: float) -> LeaveNotice | None:
    """Return by when a member must have left, and why; None if it may stay."""
    if name in group.notices:
        return group.notices[name]
    if group.expectation is not None and name not in group.expected:
        return LeaveNotice(now, Cause.PLAN.value)
    return None


def candidates(job: JobState) -> list[Member]:
    """Return the members that could be in the next world, the most deserving first: survivors by rank, then newcomers by arrival.

    A member at the barrier has living processes if, and only if, the world changes in process.
    """
    group, alive = job.membership, job.changes_in_process
    members = group.members
    by_rank = group.world.by_rank if group.world is not None else ()
    survivors = [members[name] for name in by_rank if name is not None and group.survives(name)]
    able = [m for m in survivors if (m.phase is MemberPhase.READY and m.alive == alive) or m.phase is MemberPhase.RUNNING]
    newcomers = [m for m in members.values() if m.phase is MemberPhase.READY and m.alive == alive and not group.survives(m.name)]
    return able + sorted(newcomers, key=attrgetter("arrived"))


def allowed_size(group: Membership, count: int) -> int:
    """Return the largest size that `count` members may form; 0 if they are too few."""
    count = min(count, group.max)
    sizes = group.expectation.sizes if group.expectation is not None else ()
    if sizes:
        count = max((size for size in sizes if size <= count), default=0)
    return count if count >= group.min else 0


def target(job: JobState) -> tuple[str, ...]:
    """Return the members of the next world as things are now, in order of preference; empty if they are too few.

    Without the controller's expectation nobody is chosen: only the controller knows the floor below which no world may be numbered.
    """
    group = job.membership
    if group.expectation is None:
        return ()
    able = candidates(job)
    staying = [m.name for m in able if m.name in group.expected and m.name not in group.notices]
    held_back = _held_back(group, able)
    kept = [name for name in held_back if group.notices[name].when_replaced]
    filled = [*staying, *kept[: max(0, len(group.expected) - len(staying))]]
    size = allowed_size(group, len(filled))
    if size:
        return _with_state(job, tuple(filled[:size]), able=staying + held_back, held_back=held_back)
    needed = _least_size(group) - len(staying)
    if needed <= 0 or needed > len(held_back):
        return ()
    return _with_state(job, (*staying, *held_back[:needed]), able=staying + held_back, held_back=held_back)


def _held_back(group: Membership, able: list[Member]) -> list[str]:
    """Return the members that must leave, or may have to, and could still take part; the latter come first."""
    found = [m.name for m in able if m.name in group.notices]
    return sorted(found, key=lambda name: not group.notices[name].when_replaced)


def state_holders(job: JobState) -> frozenset[str]:
    """Return the members that are here and have the state of training.

    These are the members of the current world once it made a step, or has stood for long enough if training never reports steps. Before,
    these are the members that came with the state; all of them if that is not known. A member that started again has lost it.
    """
    group = job.membership
    return frozenset(name for name in with_state(job) if group.survives(name))


def with_state(job: JobState) -> frozenset[str]:
    """Return the members of the current world that have or had the state of training, also those that are gone."""
    world, expectation = job.membership.world, job.membership.expectation
    if world is None:
        return frozenset()
    state_s = expectation.state_s if expectation is not None else 0.0
    has_aged = job.progress.step is None and job.now >= world.since + state_s
    if has_aged or job.progress.step_in_world is not None:
        return frozenset(world.ranks)
    if world.heirs is not None:
        return world.heirs
    return frozenset(world.ranks).difference(_newcomers(job.membership)) or frozenset(world.ranks)


def awaits_state(job: JobState, chosen: tuple[str, ...]) -> bool:
    """Return whether a world of these members is held back. None of them has the state, and a member that has it may come back."""
    expectation, round = job.membership.expectation, job.membership.round
    if expectation is None or not expectation.awaited or round is None or round.notified_at is None:
        return False
    holders = state_holders(job).union(expectation.awaited)
    return holders.isdisjoint(chosen) and job.now < round.notified_at + expectation.await_s


def clean_steps(job: JobState) -> dict[str, int]:
    """Return the step of the complete state that each holder of the state has at the barrier, as far as the holders have said.

    A member that re-forms in place says it. While a holder that is here cannot re-form, all processes restart, and the steps say nothing.
    """
    members = job.membership.members
    here = [members[name] for name in state_holders(job) if name in members]
    if not all(member.workers for member in here):
        return {}
    return {member.name: member.step for member in here if member.step is not None}


def donor(job: JobState, names: Iterable[str]) -> str | None:
    """Return the one of these members whose state the others receive; None if none of them has said which step it holds.

    It has the highest step. Among several, a member that stays goes first, and then the lowest rank.
    """
    group, steps = job.membership, clean_steps(job)
    ranks = group.world.ranks if group.world is not None else {}
    held = [name for name in names if name in steps]
    return min(held, key=lambda name: (-steps[name], leave_notice(group, name, now=0.0) is not None, ranks[name]), default=None)


def _with_state(job: JobState, chosen: tuple[str, ...], *, able: list[str], held_back: list[str]) -> tuple[str, ...]:
    """Return the choice with a member that has the newest state: in addition to the others, or in the place of the last one.

    Without reported steps only members that must leave are added; survivors that stay are in the choice anyway.
    """
    steps = clean_steps(job)
    newest = max(steps.values(), default=None)
    holders = {name for name in steps if steps[name] == newest} or state_holders(job)
    holder = next((name for name in (able if steps else held_back) if name in holders), None)
    if holder is None or any(name in holders for name in chosen):
        return chosen
    if allowed_size(job.membership, len(chosen) + 1) > len(chosen):
        return (*chosen, holder)
    return (*chosen[:-1], holder)


def _least_size(group: Membership) -> int:
    """Return the smallest size that the job may run at."""
    sizes = group.expectation.sizes if group.expectation is not None else ()
    return min((size for size in sizes if size >= group.min), default=group.min) if sizes else group.min


def absent(group: Membership) -> list[str]:
    """Return the expected members that could be here and are not. Pending ones cannot, so nobody waits for them."""
    if group.expectation is None:
        return []
    missing = group.expected.keys() - group.members.keys() - group.notices.keys()
    missing.difference_update(group.expectation.pending)
    return sorted(missing)


def absent_survivors(group: Membership) -> list[str]:
    """Return the absent members that may have been in the current world."""
    away = absent(group)
    return away if _may_have_newcomers(group) else sorted(set(away).difference(_newcomers(group)))


def _may_have_newcomers(group: Membership) -> bool:
    """Return whether workers that the controller calls newcomers may be in the current world.

    They may be if one of them is, or if the controller has not heard of this world. A worker is a newcomer until it is Ready, which may be
    long after it came into a world.
    """
    world, expectation = group.world, group.expectation
    if world is None or expectation is None:
        return False
    return world.generation > expectation.floor or any(name in world.ranks for name in _newcomers(group))


def _newcomers(group: Membership) -> tuple[str, ...]:
    return group.expectation.newcomers if group.expectation is not None else ()


def ranked(job: JobState, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names by rank: survivors keep theirs if the new size has it, others fill the holes, and rank 0 stays if it can.

    Rank 0 holds the store and, for members that re-form in place, the state that the others receive. So it is the donor. If no member has
    said which step it holds, rank 0 is a survivor that stays, else a survivor, else a newcomer.
    """
    group = job.membership
    ranks = _survivors_ranks(group)
    placed: list[str | None] = [None] * len(names)
    homeless = []
    for name in names:
        rank = ranks.get(name)
        if rank is not None and rank < len(placed):
            placed[rank] = name
        else:
            homeless.append(name)
    rest = iter(homeless)
    result = [name if name is not None else next(rest) for name in placed]
    giver = donor(job, names)
    first = result.index(giver) if giver is not None else _first_for_zero(group, result)
    result[0], result[first] = result[first], result[0]
    return tuple(result)


def _survivors_ranks(group: Membership) -> dict[str, int]:
    """Return the ranks that the survivors have in the current world; a member that started again has none."""
    ranks = group.world.ranks if group.world is not None else {}
    return {name: rank for name, rank in ranks.items() if group.survives(name)}


def _first_for_zero(group: Membership, by_rank: list[str]) -> int:
    ranks = _survivors_ranks(group)
    staying = [rank for rank, name in enumerate(by_rank) if leave_notice(group, name, now=0.0) is None]
    survivors = [rank for rank in staying if by_rank[rank] in ranks]
    leaving = [rank for rank, name in enumerate(by_rank) if name in ranks]
    return next(iter(survivors or leaving or staying), 0)
