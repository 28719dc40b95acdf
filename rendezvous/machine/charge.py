"""Whose restart it was. The first failure of a world is the cause and its peers' failures are collateral; where the world lost a
member to something else in the same breath, or a peer had finished already, every failure is collateral. Only some causes count
against maxRestarts.
"""

from collections import Counter
from dataclasses import replace

from rendezvous.machine.state import CHARGED, Cause, Job, Phase


def disrupted_by(job: Job, *, name: str, cause: str, words: str) -> Job:
    """The current world lost a member for a reason other than its own worker's failure."""
    if any(member == name for member, _, _ in job.disrupted) or any(failure.member == name for failure in job.failures):
        return job  # counted already; a member whose worker failed first went for that reason
    return replace(job, disrupted=(*job.disrupted, (name, cause, words)), trouble=job.trouble or (words, cause))


def judge(job: Job) -> Job:
    """Charge what ended the current world, once, and close the job where its budget is spent."""
    if not job.failures and not job.disrupted:
        return job
    counts = Counter(job.restarts)
    for _, cause, _ in job.disrupted:
        counts[cause] += 1
    collateral = len(job.failures)
    if job.failures and not job.disrupted and not _has_finished(job):
        counts[Cause.USER.value] += 1
        collateral -= 1
    if collateral:
        counts[Cause.COLLATERAL.value] += collateral
    judged = replace(job, restarts=dict(counts), failures=(), disrupted=())
    if job.failures and not _has_finished(job):
        first = job.failures[0]
        status = f"with status {first.status}" if first.status is not None else "by itself"
        return _close_if_spent(judged, f"a worker of {first.member} ended {status}")
    return _close_if_spent(judged, job.disrupted[0][2] if job.disrupted else "a worker ended after its peers had finished")


def _has_finished(job: Job) -> bool:
    """Whether a member of the current world is done: what others still held open with it breaks then, and is nobody's fault."""
    seats = job.standing.ranks if job.standing is not None else {}
    return any(name in job.members and job.members[name].phase is Phase.FINISHED for name in seats)


def recount(job: Job, *, name: str, cause: str, words: str) -> Job:
    """A loss that was taken for a disruption had another cause."""
    if cause == Cause.DISRUPTION.value:
        return job
    if any(lost == name for lost, _, _ in job.disrupted):  # not judged yet
        disrupted = tuple((lost, cause, words) if lost == name else (lost, why, text) for lost, why, text in job.disrupted)
        return replace(job, disrupted=disrupted)
    counts = Counter(job.restarts)
    counts[Cause.DISRUPTION.value] -= 1
    counts[cause] += 1
    return _close_if_spent(replace(job, restarts={why: count for why, count in counts.items() if count > 0}), words)


def _close_if_spent(job: Job, words: str) -> Job:
    limit = job.expectation.max_restarts if job.expectation is not None else None
    spent = sum(count for cause, count in job.restarts.items() if cause in CHARGED)
    if limit is None or spent <= limit:
        return job
    reason = f"{words}, and all {limit} restarts that maxRestarts allows are used up"
    return replace(job, closed=reason, round=None)
