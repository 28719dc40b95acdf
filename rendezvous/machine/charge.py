"""Whose restart it was, and whether the job may have another. The first failure of a world is the cause and its peers' failures are
collateral; where the world lost a member to something else in the same breath, or a peer had finished already, every failure is
collateral. Only some causes count against maxRestarts; a cause with a limit of its own is held to that one instead.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from rendezvous.machine import progress, window
from rendezvous.machine.state import CHARGED, Cause, Job, Phase

OF_NO_ACCOUNT = frozenset({Cause.PLAN.value, Cause.COLLATERAL.value})
"""Causes that by themselves say nothing against a job that gets nowhere: somebody asked for the change."""


def disrupted_by(job: Job, *, name: str, cause: str, words: str) -> Job:
    """The current world lost a member for a reason other than its own worker's failure."""
    if any(member == name for member, _, _ in job.disrupted) or any(failure.member == name for failure in job.failures):
        return job  # counted already; a member whose worker failed first went for that reason
    return replace(job, disrupted=(*job.disrupted, (name, cause, words)), trouble=job.trouble or (words, cause))


def judge(job: Job) -> Job:
    """Charge what ended the current world, once, and close the job where its budget is spent."""
    if not (job.failures or job.disrupted or job.hung):
        return job
    charges = _charges(job)
    if charges.keys() - OF_NO_ACCOUNT:
        job = replace(job, progress=progress.broken_off(job))
    words = _words(job)
    return _close_if_spent(replace(_charged(job, charges), failures=(), disrupted=(), hung=""), words)


def _charges(job: Job) -> Counter[str]:
    """What ended the current world, by cause."""
    charges = Counter(cause for _, cause, _ in job.disrupted)
    if job.hung:
        charges[Cause.HANG.value] += 1
    collateral = len(job.failures)
    if job.failures and not (job.disrupted or job.hung or _has_finished(job)):
        charges[Cause.USER.value] += 1
        collateral -= 1
    if collateral:
        charges[Cause.COLLATERAL.value] += collateral
    return charges


def _words(job: Job) -> str:
    if job.hung:
        return job.hung
    if job.failures and not _has_finished(job):
        first = job.failures[0]
        status = f"with status {first.status}" if first.status is not None else "by itself"
        return f"a worker of {first.member} ended {status}"
    return job.disrupted[0][2] if job.disrupted else "a worker ended after its peers had finished"


def _has_finished(job: Job) -> bool:
    """Whether a member of the current world is done: what others still held open with it breaks then, and is nobody's fault."""
    seats = job.standing.ranks if job.standing is not None else {}
    return any(name in job.members and job.members[name].phase is Phase.FINISHED for name in seats)


def _charged(job: Job, charges: Mapping[str, int]) -> Job:
    """The job with these restarts counted, and dated where the budget has a window."""
    restarts, dated = Counter(job.restarts), job.dated
    for cause, count in charges.items():
        restarts[cause] += count
        if job.budget.window_s is not None:
            dated = window.added(dated, cause, count=count, now=job.now, window_s=job.budget.window_s)
    return replace(job, restarts=dict(restarts), dated=dated)


def alone(job: Job, *, cause: str, words: str) -> Job:
    """A container ended that was in no world: it is charged by itself."""
    return _close_if_spent(_charged(replace(job, progress=progress.broken_off(job)), {cause: 1}), words)


def recount(job: Job, *, name: str, cause: str, words: str) -> Job:
    """A loss that was taken for a disruption had another cause."""
    if cause == Cause.DISRUPTION.value:
        return job
    if any(lost == name for lost, _, _ in job.disrupted):  # not judged yet
        disrupted = tuple((lost, cause, words) if lost == name else (lost, why, text) for lost, why, text in job.disrupted)
        return replace(job, disrupted=disrupted)
    left = {why: count - (why == Cause.DISRUPTION.value) for why, count in job.restarts.items()}
    dated = window.taken_back(job.dated, Cause.DISRUPTION.value)
    job = replace(job, restarts={why: count for why, count in left.items() if count > 0}, dated=dated)
    return _close_if_spent(_charged(job, {cause: 1}), words)


def _close_if_spent(job: Job, words: str) -> Job:
    why = "" if job.closed else _spent(job)
    return replace(job, closed=f"{words}, and {why}", round=None) if why else job


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
