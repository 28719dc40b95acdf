"""Find out whether training hangs, and which ranks hold up the others.

While no step comes, the agents say what their workers do. A hang is suspected if some ranks wait for others, and none of the others moves.
Only `hang_s` restarts training.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from statistics import median

from .doing_words import said
from .messages.bounds import clipped, printable
from .messages.controller import Restart
from .messages.doing import (
    LOOK_S,
    MOST_CODE,
    MOST_GROUPS,
    MOST_MEMBERS,
    MOST_SPANS,
    MOST_WORDS,
    STILL_LOOKS,
    Doing,
    DoingKind,
    Doings,
    Hang,
    HangState,
    RanksDoing,
    Span,
    Watch,
)
from .restart_budget import with_restarts
from .state.hang_watch import HangWatch, Told
from .state.job import JobState
from .values import replace
from .words import Cause

LEAST_WAIT_S = 30.0
WAIT_STEPS, WAIT_GAPS = 10, 2
"""A job may be without a step for WAIT_STEPS median steps and for WAIT_GAPS times the longest gap, but at least for LEAST_WAIT_S."""
EARLY = 1 / 3
"""If the job limits hangs, the agents look at their workers after this part of the limit, so that a restart can name a rank."""
FIRST_LOOK_S = 60.0
"""A job that reports no step is looked at after this time, long before anybody is told, so that it is known for how long nothing moves."""
LATE = 0.8
"""After this part of the limit they write down all stacks, because the restart ends the processes."""
FRESH_S = 3 * LOOK_S
"""Seconds for which the words of a member count."""
IDLE_CPU = 0.05
"""CPU seconds in a second. A rank that uses more may be at work, even if its stack shows that it waits for others."""
CULPRITS = (DoingKind.STOPPED, DoingKind.OTHER, DoingKind.UNKNOWN, DoingKind.COLLECTIVE)
"""The likely cause of a hang first."""


def heard(job: JobState, member: str, message: Doings) -> JobState:
    """Note what a member of the current world says about its workers, if the job is watched."""
    group, watch = job.membership, job.hang_watch
    if group.world is None or message.generation != group.world.generation or member not in group.world.ranks or not watch.asks:
        return job
    told = {**watch.told, member: Told(message.generation, job.now, tuple(map(_printable, message.workers)))}
    return replace(job, hang_watch=replace(watch, told=told))


def _printable(doing: Doing) -> Doing:
    """Return the same with escapes: the words hold paths and code of the user's program, and end in logs and terminals."""
    does, place, code = printable(doing.does)[:MOST_WORDS], printable(doing.place)[:MOST_WORDS], printable(doing.code)[:MOST_CODE]
    return replace(doing, does=does, place=place, code=code)


def with_hang(job: JobState) -> JobState:
    """Return the job with what is known about a standstill; restart training if it has hung for longer than the job allows.

    A hang beyond the limit is certain at once. So it is counted at once, and members hold it for the next server.
    """
    since, world = _quiet_since(job), job.membership.world
    if since is None or world is None:
        return replace(job, hang_watch=HangWatch()) if job.hang_watch != HangWatch() else job
    job = _watched(job, since)
    reason, began = _limit_reached(job, since)
    if not reason:
        return job
    restart = Restart(id=world.id, generation=world.generation, cause=Cause.HANG.value)
    job = with_restarts(replace(job, timings=replace(job.timings, first_sign_at=began)), (restart,))
    known = job.accounting
    known = replace(
        known,
        hang_reason=reason,
        trouble=known.trouble or (reason, Cause.HANG.value),
        unacknowledged_restarts=(*known.unacknowledged_restarts, restart),
    )
    return replace(job, accounting=known, hang_watch=HangWatch())


def quiet_s(job: JobState) -> float | None:
    """Return for how long the current world has worked without a further step; None if no world is at work."""
    since = _quiet_since(job)
    return None if since is None else job.now - since


def _quiet_since(job: JobState) -> float | None:
    """Return since when the current world has worked without a further step; None if no world is at work."""
    group, phases = job.membership, job.timings.phases
    world = group.world
    if world is None or job.accounting.is_world_broken or group.is_draining or job.is_done:
        return None
    began = world.since if world.adopted else (phases.started if phases is not None else None)
    return None if began is None else max(began, job.progress.moved_at)


def _waits_after_s(job: JobState) -> float:
    """Return after how many seconds without a step the job waits. Until its first step, a job may take long."""
    progress = job.progress
    if progress.step is None:
        return job.budget.first_step_s
    if not progress.paces:
        return LEAST_WAIT_S
    return max(LEAST_WAIT_S, WAIT_STEPS * median(progress.paces), WAIT_GAPS * max(progress.gaps))


def _watched(job: JobState, since: float) -> JobState:
    quiet_s, limit, has_stepped = job.now - since, job.budget.hang_s, job.progress.step is not None
    waits_after_s = _waits_after_s(job)
    watches_after_s = waits_after_s if has_stepped else min(waits_after_s, FIRST_LOOK_S)
    if limit is not None and has_stepped:
        watches_after_s = min(waits_after_s, limit * EARLY)
    found = _found(job, since) if quiet_s >= waits_after_s else None
    asks = Watch.LOOK if quiet_s >= watches_after_s else Watch.NOT
    is_nearly_over = limit is not None and has_stepped and quiet_s >= limit * LATE
    if limit is not None and not has_stepped and found is not None:
        is_nearly_over = found.since_s >= limit * LATE
    if asks and (is_nearly_over or (found is not None and found.state is HangState.SUSPECTED)):
        asks = Watch.WRITE
    watch = replace(job.hang_watch, asks=asks)
    if found is None or watch.found is None or not _is_alike(watch.found, found):
        watch = replace(watch, found=found, found_at=job.now)
    return replace(job, hang_watch=watch) if watch != job.hang_watch else job


def _found(job: JobState, since: float) -> Hang | None:
    """Return what is known about a world whose steps do not come; None if it never reports any and may well be at work.

    Once a member has finished, the others may save for long. Then only a hang is told: a rank that waits for ranks which have ended.
    """
    has_stepped = job.progress.step is not None
    doings = list(_doings(job))
    group = job.membership
    is_whole = group.world is not None and len({name for _, name, _ in doings}) == group.world.size - len(group.finished)
    is_still = is_whole and all(_is_still(doing, has_stepped=has_stepped) for _, _, doing in doings)
    kinds = {doing.kind for _, _, doing in doings}
    is_suspected = is_still and DoingKind.UNKNOWN not in kinds and bool(kinds & {DoingKind.COLLECTIVE, DoingKind.STOPPED})
    if group.finished and not is_suspected:
        return None
    if not has_stepped and not is_still and not (is_whole and _all_wait_for_one(doings)):
        return None
    return Hang(
        state=HangState.SUSPECTED if is_suspected else HangState.WAITING,
        since_s=job.now - since if has_stepped else min(doing.for_s for _, _, doing in doings if _is_still(doing, has_stepped=False)),
        has_stepped=has_stepped,
        groups=_groups([*doings, *_ended(job, since)]),
    )


def _ended(job: JobState, since: float) -> Iterator[tuple[int, str, Doing]]:
    """Yield the ranks of members that have finished, for which the others wait."""
    group, fresh = job.membership, _fresh(job)
    workers = max((len(told.workers) for told in fresh.values()), default=1)
    doing = Doing(kind=DoingKind.OTHER, looks=STILL_LOOKS, for_s=job.now - since, does="is finished (status 0)")
    for name in group.finished:
        if group.world is not None and name in group.world.ranks:
            yield from ((group.world.ranks[name] * workers + local_rank, name, doing) for local_rank in range(workers))


def _all_wait_for_one(doings: list[tuple[int, str, Doing]]) -> bool:
    """Return whether all ranks but one wait in the same call, and that one does something else.

    It may be in an endless loop or in a long evaluation. Nobody can tell them apart, so only the limit of the job decides.
    """
    waiting = [doing for _, _, doing in doings if doing.kind is DoingKind.COLLECTIVE]
    others = [doing for _, _, doing in doings if doing.kind is DoingKind.OTHER]
    calls = {(doing.does, doing.place) for doing in waiting}
    is_alone = len(others) == 1 and len(waiting) == len(doings) - 1
    return is_alone and len(calls) == 1 and all(_is_still(doing, has_stepped=False) for doing in waiting)


def _is_still(doing: Doing, *, has_stepped: bool) -> bool:
    if doing.looks < STILL_LOOKS or doing.kind is DoingKind.UNKNOWN:
        return False
    return has_stepped or doing.kind is not DoingKind.COLLECTIVE or doing.cpu < IDLE_CPU


def _limit_reached(job: JobState, since: float) -> tuple[str, float]:
    """Return why training is restarted, and since when it hangs; no reason if it may go on."""
    limit, found = job.budget.hang_s, job.hang_watch.found
    if limit is None or job.membership.finished:
        return "", 0.0  # a world in which a member has finished is left alone
    reason, began = f"training reported no further step for {limit:g} s", since
    if job.progress.step is None:
        if found is None:
            return "", 0.0
        if job.now < job.hang_watch.found_at + LOOK_S:
            return "", 0.0  # the agents must write down the stacks before the processes end
        reason, began = f"nothing has moved for {limit:g} s", job.hang_watch.found_at - found.since_s
        if found.state is not HangState.SUSPECTED:
            if not _all_wait_for_one(list(_doings(job))):
                return "", 0.0
            reason = f"every rank except one has waited for {limit:g} s"
    if job.now < began + limit:
        return "", 0.0
    words = said(_groups(list(_doings(job))))
    return clipped(f"{reason}: {words}" if words else reason), began


def _fresh(job: JobState) -> dict[str, Told]:
    """Return what the members of the current world said lately."""
    world = job.membership.world
    assert world is not None
    told = job.hang_watch.told
    return {
        name: told[name]
        for name in world.ranks
        if name not in job.membership.finished
        and name in told
        and told[name].generation == world.generation
        and job.now - told[name].at <= FRESH_S
        and told[name].workers
    }


def _doings(job: JobState) -> Iterator[tuple[int, str, Doing]]:
    """Yield the rank, the member and the doing of each worker whose agent has spoken lately."""
    fresh, world = _fresh(job), job.membership.world
    assert world is not None
    workers = max((len(told.workers) for told in fresh.values()), default=0)
    for name, told in fresh.items():
        for local_rank, doing in enumerate(told.workers):
            yield world.ranks[name] * workers + local_rank, name, doing


def _groups(doings: list[tuple[int, str, Doing]]) -> tuple[RanksDoing, ...]:
    """Return groups of ranks that do the same, the likely cause of a hang first."""
    by_sight: dict[tuple[object, ...], list[tuple[int, str, Doing]]] = {}
    for entry in sorted(doings, key=itemgetter(0)):
        doing = entry[2]
        by_sight.setdefault((doing.kind, doing.looks >= STILL_LOOKS, doing.does, doing.place), []).append(entry)
    found = [
        RanksDoing(
            spans=_spans([rank for rank, _, _ in same]),
            count=len(same),
            members=tuple(dict.fromkeys(name for _, name, _ in same))[:MOST_MEMBERS],
            doing=min((doing for _, _, doing in same), key=lambda doing: doing.for_s),
        )
        for same in by_sight.values()
    ]
    return tuple(sorted(found, key=lambda group: (CULPRITS.index(group.doing.kind), group.count))[:MOST_GROUPS])


def _spans(ranks: list[int]) -> tuple[Span, ...]:
    runs = [list(run) for _, run in groupby(enumerate(ranks), key=lambda pair: pair[1] - pair[0])]
    return tuple(Span(first=run[0][1], last=run[-1][1]) for run in runs[:MOST_SPANS])


def _is_alike(known: Hang, found: Hang) -> bool:
    """Return whether two findings differ in nothing but their times."""
    return _timeless(known) == _timeless(found)


def _timeless(hang: Hang) -> Hang:
    groups = tuple(
        replace(group, doing=replace(group.doing, for_s=0.0, cpu=0.0, looks=min(group.doing.looks, STILL_LOOKS))) for group in hang.groups
    )
    return replace(hang, since_s=0.0, groups=groups)
