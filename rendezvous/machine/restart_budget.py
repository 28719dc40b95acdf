"""Whose restart it was, and whether the job may have another. The first failure of a world is the cause and its peers' failures are
collateral; where the world lost a member to something else in the same breath, or a peer had finished already, every failure is
collateral. Only some causes count against maxRestarts; a cause with a limit of its own is held to that one instead.
"""

from collections.abc import Iterable
from dataclasses import replace

from msgspec import structs

from elastic.membership import window
from elastic.membership.restart_log import RestartLog, merged, unknown_to
from elastic.membership.wire import MAX_OPEN, Ended, Restart, clipped
from rendezvous.machine import progress
from rendezvous.machine.choose import unknown_seats
from rendezvous.machine.completion import has_finished
from rendezvous.machine.state import CHARGED, Cause, Job, Loss

KNOWN_KEPT = 256
"""So many restarts are kept in mind although the controller knows them: the next word may be of another leader with an older view."""

OF_NO_ACCOUNT = frozenset({Cause.PLAN.value, Cause.COLLATERAL.value})
"""Causes that by themselves say nothing against a job that gets nowhere: somebody asked for the change."""


def disrupted_by(job: Job, loss: Loss) -> Job:
    """The current world lost a member for a reason other than its own worker's failure. Where that came first, the loss is part of it."""
    failures = tuple(replace(f, is_gone=f.is_gone or loss.is_gone) if f.member == loss.member else f for f in job.failures)
    if any(failure.member == loss.member for failure in failures):
        return replace(job, failures=failures)
    if any(known.member == loss.member for known in job.disrupted):
        marked = tuple(replace(k, is_gone=k.is_gone or loss.is_gone) if k.member == loss.member else k for k in job.disrupted)
        return replace(job, disrupted=marked)
    return replace(job, disrupted=(*job.disrupted, loss), trouble=job.trouble or (loss.words, loss.cause))


def charge_restarts(job: Job) -> Job:
    """Charge what ended the current world, once, and close the job where its budget is spent."""
    if not (job.failures or job.disrupted or job.hung):
        return job
    ended = _ended(job)
    if {restart.cause for restart in ended} - OF_NO_ACCOUNT:
        job = replace(job, progress=progress.broken_off(job))
    words = _words(job)
    return _close_if_spent(replace(booked(job, ended), failures=(), disrupted=(), hung=""), words)


def _ended(job: Job) -> list[Restart]:
    """What ended the current world, one by one."""
    assert job.standing is not None
    id, generation = job.standing.id, job.standing.generation
    ended = [
        Restart(id=f"{id}/{loss.pod}", generation=generation, cause=loss.cause, pod=loss.pod, lost=loss.is_gone, unsure=loss.unsure)
        for loss in job.disrupted
    ]
    if job.hung:
        ended.append(Restart(id=id, generation=generation, cause=Cause.HANG.value))
    is_due_to_another = bool(job.disrupted or job.hung or has_finished(job) or unknown_seats(job.standing))
    cause = Cause.COLLATERAL if is_due_to_another else Cause.USER
    for failure in job.failures:
        ended.append(Restart(id=f"{id}/{failure.pod}", generation=generation, cause=cause.value, pod=failure.pod, lost=failure.is_gone))
        cause = Cause.COLLATERAL
    return ended


def _words(job: Job) -> str:
    if job.hung:
        return job.hung
    if job.failures and not has_finished(job):
        first = job.failures[0]
        status = f"with status {first.status}" if first.status is not None else "by itself"
        return f"a worker of {first.member} ended {status}"
    return job.disrupted[0].words if job.disrupted else "a worker ended after its peers had finished"


def booked(job: Job, restarts: Iterable[Restart]) -> Job:
    """The job with these in its book, and dated where the budget has a window."""
    own = {entry.id: entry for entry in merged(RestartLog(open=tuple(job.own.values())), restarts).open[-MAX_OPEN:]}
    counts, dated = merged(job.told, own.values()).counts, job.dated
    if job.budget.window_s is not None:
        for cause in sorted(counts.keys() | job.restarts.keys()):
            more = counts.get(cause, 0) - job.restarts.get(cause, 0)
            dated = window.recounted(dated, cause, more=more, now=job.now, window_s=job.budget.window_s)
    return replace(job, own=own, restarts=counts if counts != job.restarts else job.restarts, dated=dated)


def uncounted(job: Job) -> tuple[Restart, ...]:
    """The restarts that the controller does not know of, as far as it has said."""
    return unknown_to(job.told, job.own.values())[-MAX_OPEN:]


def _held(job: Job) -> Job:
    """The job whose members hold what has just been counted, for the next server."""
    return replace(job, uncounted=uncounted(job))


def taken_over(job: Job, restarts: Iterable[Restart]) -> Job:
    """What an earlier server had counted and its members kept. It counts as if it happened now, where the controller did not know of it."""
    restarts = tuple(restarts)
    if not restarts:
        return job
    if job.expectation is None:
        return booked(job, restarts)
    worlds = {entry.generation for entry in unknown_to(job.told, restarts) if entry.id not in job.own and entry.cause not in OF_NO_ACCOUNT}
    for _ in worlds:
        job = replace(job, progress=progress.broken_off(job))
    job = booked(job, restarts)
    return _close_if_spent(job, "a restart that an earlier server saw") if worlds else job


def told_of(job: Job, book: RestartLog) -> Job:
    """The controller's book as of now. What it has taken over from ours long ago is dropped."""
    unknown = {entry.id for entry in unknown_to(book, job.own.values())}
    old = frozenset([id for id in job.own if id not in unknown][:-KNOWN_KEPT])
    own = {id: entry for id, entry in job.own.items() if id not in old} if old else job.own
    held = unknown_to(book, job.uncounted)  # what is written down, members need not keep any longer
    return booked(replace(job, told=book, own=own, uncounted=held if held != job.uncounted else job.uncounted), ())


def alone(job: Job, end: Ended, *, words: str) -> Job:
    """A container ended that was in no world: it is charged by itself."""
    restart = Restart(id=f"{end.pod_uid}/{end.run}", generation=job.generation, cause=end.cause, pod=end.pod_uid)
    if restart.id in job.own or not unknown_to(job.told, (restart,)):
        return job
    return _close_if_spent(_held(booked(replace(job, progress=progress.broken_off(job)), (restart,))), words)


def is_lost(job: Job, pod: str) -> bool:
    """Whether a loss of this pod waits for the word on how its container ended."""
    return _is_to_be_judged(job, pod) or _lost(job, pod) is not None


def recount(job: Job, end: Ended, *, words: str) -> Job:
    """The container of a lost member has ended so: that is the cause of its loss, unless a better one is known."""
    pod = end.pod_uid
    if _is_to_be_judged(job, pod):
        failures = tuple(replace(item, is_gone=False) if item.pod == pod else item for item in job.failures)
        disrupted = tuple(_explained(loss, end.cause, words) if loss.pod == pod else loss for loss in job.disrupted)
        return replace(job, failures=failures, disrupted=disrupted)
    entry = _lost(job, pod)
    if entry is None:
        return job
    known = structs.replace(entry, cause=end.cause if entry.unsure else entry.cause, lost=False, unsure=False)
    job = _held(booked(job, (known,)))
    return _close_if_spent(job, words) if known.cause != entry.cause else job


def _is_to_be_judged(job: Job, pod: str) -> bool:
    """Whether the current world lost this pod."""
    return any(loss.pod == pod and loss.is_gone for loss in job.disrupted) or any(f.pod == pod and f.is_gone for f in job.failures)


def _lost(job: Job, pod: str) -> Restart | None:
    return merged(job.told, job.own.values()).lost(pod)


def _explained(loss: Loss, cause: str, words: str) -> Loss:
    if not loss.unsure:
        return replace(loss, is_gone=False, may_work=False)
    words = words if cause != loss.cause else loss.words
    return replace(loss, cause=cause, words=words, is_gone=False, unsure=False, may_work=False)


def _close_if_spent(job: Job, words: str) -> Job:
    why = "" if job.closed else _spent(job)
    return _held(replace(job, closed=clipped(f"{words}, and {why}"), round=None)) if why else job


def _spent(job: Job) -> str:
    """Which part of its budget the job has used up, in words; empty while it may go on."""
    budget = job.budget
    within, used = "", job.restarts
    if budget.window_s is not None:
        used = window.counted(job.dated, now=job.now, window_s=budget.window_s)
        within = f" within {budget.window_s:g} s"
    for cause, own in budget.by_cause.items():
        if used.get(cause, 0) > own:
            return f"all {own} restarts by cause {cause} that restartBudget allows{within} are used up"
    limit = budget.max_restarts
    if limit is not None and sum(used.get(cause, 0) for cause in CHARGED if cause not in budget.by_cause) > limit:
        return f"all {limit} restarts that maxRestarts allows{within} are used up"
    fruitless = budget.without_progress
    if fruitless is not None and job.progress.fruitless > fruitless:
        return f"{fruitless} restarts in a row, as many as maxRestartsWithoutProgress allows, brought no step forward"
    return ""
