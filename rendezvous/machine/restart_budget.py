"""Whose restart it was, and whether the job may have another. The first failure of a world is the cause and its peers' failures are
collateral; where the world lost a member to something else in the same breath, or a peer had finished already, every failure is
collateral. Only some causes count against maxRestarts; a cause with a limit of its own is held to that one instead.
"""

from collections.abc import Iterable
from dataclasses import replace

from msgspec import structs

from elastic.membership import window
from elastic.membership.restart_log import RestartLog, merged, unknown_to
from elastic.membership.wire import MAX_UNSETTLED, Ended, Restart, clipped, with_error
from rendezvous.machine import progress
from rendezvous.machine.choose import unknown_ranks
from rendezvous.machine.completion import has_finished
from rendezvous.machine.state import CHARGED, Cause, Job, Loss

KNOWN_KEPT = 256
"""So many restarts are kept although the controller knows them: the next expectation may be of another leader with an older view."""

OF_NO_ACCOUNT = frozenset({Cause.PLAN.value, Cause.COLLATERAL.value})
"""Causes that by themselves say nothing against a job that gets nowhere: somebody asked for the change."""


def with_loss(job: Job, loss: Loss) -> Job:
    """The current world lost a member for a reason other than its own worker's failure. Where that came first, the loss is part of it."""
    failures = tuple(replace(f, is_gone=f.is_gone or loss.is_gone) if f.member == loss.member else f for f in job.failures)
    if any(failure.member == loss.member for failure in failures):
        return replace(job, failures=failures)
    if any(known.member == loss.member for known in job.losses):
        marked = tuple(replace(k, is_gone=k.is_gone or loss.is_gone) if k.member == loss.member else k for k in job.losses)
        return replace(job, losses=marked)
    return replace(job, losses=(*job.losses, loss), trouble=job.trouble or (loss.words, loss.cause))


def charge_restarts(job: Job) -> Job:
    """Charge what ended the current world, once, and close the job where its budget is spent."""
    if not (job.failures or job.losses or job.hang_reason):
        return job
    ended = _ended(job)
    if {restart.cause for restart in ended} - OF_NO_ACCOUNT:
        job = replace(job, progress=progress.after_restart(job))
    words = _words(job)
    return _close_if_spent(replace(with_restarts(job, ended), failures=(), losses=(), hang_reason=""), words)


def _ended(job: Job) -> list[Restart]:
    """What ended the current world, one by one."""
    assert job.world is not None
    id, generation = job.world.id, job.world.generation
    ended = [
        Restart(id=f"{id}/{loss.pod}", generation=generation, cause=loss.cause, pod=loss.pod, lost=loss.is_gone, unsure=loss.unsure)
        for loss in job.losses
    ]
    if job.hang_reason:
        ended.append(Restart(id=id, generation=generation, cause=Cause.HANG.value))
    is_due_to_another = bool(job.losses or job.hang_reason or has_finished(job) or unknown_ranks(job.world))
    cause = Cause.COLLATERAL if is_due_to_another else Cause.USER
    for failure in job.failures:
        ended.append(Restart(id=f"{id}/{failure.pod}", generation=generation, cause=cause.value, pod=failure.pod, lost=failure.is_gone))
        cause = Cause.COLLATERAL
    return ended


def _words(job: Job) -> str:
    if job.hang_reason:
        return job.hang_reason
    if job.failures and not has_finished(job):
        first = job.failures[0]
        status = f"with status {first.status}" if first.status is not None else "by itself"
        return with_error(f"a worker of {first.member} ended {status}", rank=first.rank, error=first.error)
    return job.losses[0].words if job.losses else "a worker ended after its peers had finished"


def with_restarts(job: Job, restarts: Iterable[Restart]) -> Job:
    """The job with these in its book, and dated where the budget has a window."""
    known_restarts = {
        entry.id: entry for entry in merged(RestartLog(unsettled=tuple(job.known_restarts.values())), restarts).unsettled[-MAX_UNSETTLED:]
    }
    counts, restart_dates = merged(job.recorded, known_restarts.values()).counts, job.restart_dates
    if job.budget.window_s is not None:
        for cause in sorted(counts.keys() | job.restarts.keys()):
            more = counts.get(cause, 0) - job.restarts.get(cause, 0)
            restart_dates = window.recounted(restart_dates, cause, more=more, now=job.now, window_s=job.budget.window_s)
    return replace(
        job, known_restarts=known_restarts, restarts=counts if counts != job.restarts else job.restarts, restart_dates=restart_dates
    )


def unacknowledged_restarts(job: Job) -> tuple[Restart, ...]:
    """The restarts that the controller does not know of, as far as it has said."""
    return unknown_to(job.recorded, job.known_restarts.values())[-MAX_UNSETTLED:]


def _held(job: Job) -> Job:
    """The job whose members hold what has just been counted, for the next server."""
    return replace(job, unacknowledged_restarts=unacknowledged_restarts(job))


def with_presented(job: Job, restarts: Iterable[Restart]) -> Job:
    """What an earlier server had counted and its members kept. It counts as if it happened now, where the controller did not know of it."""
    restarts = tuple(restarts)
    if not restarts:
        return job
    if job.expectation is None:
        return with_restarts(job, restarts)
    worlds = {
        entry.generation
        for entry in unknown_to(job.recorded, restarts)
        if entry.id not in job.known_restarts and entry.cause not in OF_NO_ACCOUNT
    }
    for _ in worlds:
        job = replace(job, progress=progress.after_restart(job))
    job = with_restarts(job, restarts)
    return _close_if_spent(job, "a restart that an earlier server saw") if worlds else job


def with_recorded(job: Job, recorded: RestartLog) -> Job:
    """The job with the controller's newest restart log. Restarts that it has had for long are dropped here."""
    unknown = {entry.id for entry in unknown_to(recorded, job.known_restarts.values())}
    old = frozenset([id for id in job.known_restarts if id not in unknown][:-KNOWN_KEPT])
    known_restarts = {id: entry for id, entry in job.known_restarts.items() if id not in old} if old else job.known_restarts
    held = unknown_to(recorded, job.unacknowledged_restarts)  # what is written down, members need not keep any longer
    return with_restarts(
        replace(
            job,
            recorded=recorded,
            known_restarts=known_restarts,
            unacknowledged_restarts=held if held != job.unacknowledged_restarts else job.unacknowledged_restarts,
        ),
        (),
    )


def with_lone_restart(job: Job, end: Ended, *, words: str) -> Job:
    """A container ended that was in no world: it is charged by itself."""
    restart = Restart(id=f"{end.pod_uid}/{end.run}", generation=job.generation, cause=end.cause, pod=end.pod_uid)
    if restart.id in job.known_restarts or not unknown_to(job.recorded, (restart,)):
        return job
    return _close_if_spent(_held(with_restarts(replace(job, progress=progress.after_restart(job)), (restart,))), words)


def is_lost(job: Job, pod: str) -> bool:
    """Whether a loss of this pod waits for the report of how its container ended."""
    return _is_to_be_judged(job, pod) or _lost(job, pod) is not None


def with_known_cause(job: Job, end: Ended, *, words: str) -> Job:
    """The container of a lost member has ended so: that is the cause of its loss, unless a better one is known."""
    pod = end.pod_uid
    if _is_to_be_judged(job, pod):
        failures = tuple(replace(item, is_gone=False) if item.pod == pod else item for item in job.failures)
        losses = tuple(_explained(loss, end.cause, words) if loss.pod == pod else loss for loss in job.losses)
        return replace(job, failures=failures, losses=losses)
    entry = _lost(job, pod)
    if entry is None:
        return job
    known = structs.replace(entry, cause=end.cause if entry.unsure else entry.cause, lost=False, unsure=False)
    job = _held(with_restarts(job, (known,)))
    return _close_if_spent(job, words) if known.cause != entry.cause else job


def _is_to_be_judged(job: Job, pod: str) -> bool:
    """Whether the current world lost this pod."""
    return any(loss.pod == pod and loss.is_gone for loss in job.losses) or any(f.pod == pod and f.is_gone for f in job.failures)


def _lost(job: Job, pod: str) -> Restart | None:
    return merged(job.recorded, job.known_restarts.values()).lost(pod)


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
        used = window.counted(job.restart_dates, now=job.now, window_s=budget.window_s)
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
