"""Decide the cause of a restart, and whether the job may have another restart.

The first failure of a world is the cause, and its peers' failures are collateral. If the world lost a member to something else at the same
time, or a peer had finished already, every failure is collateral. Only some causes count against maxRestarts. A cause with a limit of its
own counts against that limit instead.
"""

from __future__ import annotations

from collections.abc import Iterable

from . import broken_communication, window
from .completion import has_finished
from .exit_status import with_error, with_status
from .messages.bounds import clipped, printable
from .messages.controller import Ended, Restart
from .restart_log import RestartLog, unknown_to
from .state import accounting, progress
from .state.job import JobState
from .values import replace
from .words import CHARGED, Cause

OF_NO_ACCOUNT = frozenset({Cause.PLAN.value, Cause.COLLATERAL.value})
"""Causes that by themselves say nothing against a job that gets nowhere: somebody asked for the change."""


def charge_restarts(job: JobState) -> JobState:
    """Charge what ended the current world, once, and close the job if its budget is spent."""
    is_unexplained = broken_communication.restarts_all(job)
    if not (job.accounting.is_world_broken or is_unexplained):
        return job
    ended, (words, how) = _ended(job), _words(job)
    if is_unexplained:
        ended, job = [_unexplained(job)], broken_communication.counted(job)
    if {restart.cause for restart in ended} - OF_NO_ACCOUNT:
        job = _after_restart(job)
    job = with_restarts(job, ended)
    known = job.accounting
    if not known.losses:
        known = accounting.with_attempt(known, has_moved=_has_moved(job))
    judged = replace(known, failures=(), losses=(), hang_reason="")
    return _close_if_spent(replace(job, accounting=judged), words, how=how)


def _ended(job: JobState) -> list[Restart]:
    """Return the restarts that ended the current world, one by one."""
    group, known = job.membership, job.accounting
    assert group.world is not None
    id, generation = group.world.id, group.world.generation
    ended = [
        Restart(
            id=f"{id}/{loss.pod}",
            generation=generation,
            cause=loss.cause,
            pod=loss.pod,
            lost=loss.is_gone,
            unsure=loss.unsure,
            run=loss.run,
        )
        for loss in known.losses
    ]
    if known.hang_reason:
        ended.append(Restart(id=id, generation=generation, cause=Cause.HANG.value))
    is_due_to_another = bool(known.losses or known.hang_reason or has_finished(group) or group.unknown_ranks)
    for place, failure in enumerate(known.failures):
        cause = Cause.COLLATERAL if is_due_to_another or place else failure.cause
        id_of_end = f"{id}/{failure.pod}"
        ended.append(
            Restart(id=id_of_end, generation=generation, cause=cause.value, pod=failure.pod, lost=failure.is_gone, run=failure.run)
        )
    return ended


def _unexplained(job: JobState) -> Restart:
    world = job.membership.world
    assert world is not None
    return Restart(id=world.id, generation=world.generation, cause=broken_communication.cause(job).value)


def _words(job: JobState) -> tuple[str, str]:
    """Return what broke the current world, and how its worker ended if the first words are an exception."""
    known, round = job.accounting, job.membership.round
    if known.hang_reason:
        return known.hang_reason, ""
    if round is not None and not known.is_world_broken:
        return round.reason, ""
    if known.failures and not has_finished(job.membership):
        first = known.failures[0]
        status = with_status(first.status) if first.status is not None else "by itself"
        if first.rank is not None and (error := printable(first.error)):
            return f"rank {first.rank}: {error}", f"A worker of {first.member} ended {status}."
        return with_error(f"a worker of {first.member} ended {status}", rank=first.rank, error=""), ""
    return (known.losses[0].words if known.losses else "a worker ended after its peers had finished"), ""


def with_restarts(job: JobState, restarts: Iterable[Restart]) -> JobState:
    """Return the job with these restarts, with dates if its budget has a window."""
    return replace(job, accounting=accounting.with_restarts(job.accounting, restarts, window_s=job.budget.window_s, now=job.now))


def with_recorded(job: JobState, recorded: RestartLog) -> JobState:
    """Return the job with the controller's newest restart log."""
    return with_restarts(replace(job, accounting=accounting.with_recorded(job.accounting, recorded)), ())


def with_presented(job: JobState, restarts: Iterable[Restart]) -> JobState:
    """Add restarts that an earlier server counted and its members kept. If the controller did not know one, it counts as of now."""
    restarts, known = tuple(restarts), job.accounting
    if not restarts:
        return job
    if job.membership.expectation is None:
        return with_restarts(job, restarts)
    worlds = {
        entry.generation
        for entry in unknown_to(known.recorded, restarts)
        if entry.id not in known.known_restarts and entry.cause not in OF_NO_ACCOUNT
    }
    for _ in worlds:
        job = _after_restart(job)
    job = with_restarts(job, restarts)
    return _close_if_spent(job, "a restart that an earlier server saw") if worlds else job


def with_lone_restart(job: JobState, end: Ended, *, words: str) -> JobState:
    """Charge the end of a container that was in no world by itself."""
    restart = Restart(id=f"{end.pod_uid}/{end.run}", generation=job.membership.generation, cause=end.cause, pod=end.pod_uid)
    if restart.id in job.accounting.known_restarts or not unknown_to(job.accounting.recorded, (restart,)):
        return job
    return _close_if_spent(_held(with_restarts(_after_restart(job), (restart,))), words)


def with_known_cause(job: JobState, end: Ended, *, words: str) -> JobState:
    """Take the end of a lost member's container as the cause of its loss, unless a better one is known."""
    known = job.accounting
    if accounting.is_lost_now(known, end.pod_uid):
        return replace(job, accounting=accounting.with_explained_loss(known, end, words=words))
    entry = accounting.lost(known, end.pod_uid)
    if entry is None:
        return job
    explained = accounting.explained(entry, end)
    job = _held(with_restarts(job, (explained,)))
    if end.own_limit and explained.cause != end.cause:
        # The recorded cause of a restart is final if the agent itself said that it leaves. So the pod's own end counts in addition.
        return with_lone_restart(job, end, words=words)
    return _close_if_spent(job, words) if explained.cause != entry.cause else job


def _after_restart(job: JobState) -> JobState:
    """Return the job after one more restart that may have been in vain."""
    is_limited = job.budget.without_progress is not None
    known = progress.after_restart(job.progress, is_limited=is_limited, world_lasted=_lasted(job))
    return replace(job, progress=known)


def _held(job: JobState) -> JobState:
    """Return the job whose members hold the newest counts for the next server."""
    return replace(job, accounting=accounting.held(job.accounting))


def _close_if_spent(job: JobState, words: str, *, how: str = "") -> JobState:
    why = "" if job.accounting.closed else _spent(job)
    if not why:
        return job
    attempts = job.accounting.alike[1]
    again = _alike(attempts) if attempts > 1 and _alike(attempts) != why else ""
    told = " ".join(filter(None, (f"{words.rstrip('.')}.", why, how, again)))
    closed = replace(job.accounting, closed=clipped(told))
    return _held(replace(job, accounting=closed).with_round(None))


def _spent(job: JobState) -> str:
    """Return the part of its budget that the job has used up, in words; empty while it may go on."""
    budget, known = job.budget, job.accounting
    within, used = "", known.restarts
    if budget.window_s is not None:
        used = window.counted(known.restart_dates, now=job.now, window_s=budget.window_s)
        within = f" within {budget.window_s:g} s"
    for cause, own in budget.by_cause.items():
        if used.get(cause, 0) > own:
            return _used_up(own, of=f" by cause {cause}", within=within)
    if budget.same_error is not None and known.alike[1] > budget.same_error:
        return _alike(known.alike[1])
    limit = budget.max_restarts
    if limit is not None and sum(used.get(cause, 0) for cause in CHARGED if cause not in budget.by_cause) > limit:
        return _used_up(limit, within=within)
    fruitless = budget.without_progress
    if fruitless is not None and job.progress.fruitless > fruitless:
        return f"{fruitless} restarts in a row, as many as maxRestartsWithoutProgress allows, brought no step forward."
    return ""


def _alike(attempts: int) -> str:
    return f"The last {attempts} attempts ended with the same error before a step was reported."


def _has_moved(job: JobState) -> bool:
    """Return whether training has come forward in the current world. If it never reports steps, a world that lasted has got somewhere."""
    return job.progress.step_in_world is not None or (job.progress.step is None and _lasted(job))


def _lasted(job: JobState) -> bool:
    world = job.membership.world
    return world is not None and job.now - world.since >= job.limits.progress_s


def _used_up(limit: int, *, of: str = "", within: str) -> str:
    return f"Restarts used{of}: {limit} of {limit}{within}."
