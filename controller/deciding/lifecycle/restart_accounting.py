"""Count restarts in a job's status.

The status says how many restarts each cause had, when those within the budget's window were, and which limit they have reached. Other
modules judge the causes. The dates are those at which this controller learnt of the restarts.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace

from elastic.api.book import MOST_TIMES, Charge
from elastic.api.job import ElasticPolicy, ElasticStatus, Job, JobStatus
from elastic.api.words import CHARGED, Cause
from elastic_training.controller.deciding.actions import Budget
from elastic_training.controller.deciding.lifecycle.stored_restarts import bounded, log_of, stored
from elastic_training.controller.deciding.moments import of_timestamp
from elastic_training.controller.deciding.status_room import COUNTED_BYTES, KEPT_FOR_PODS_BYTES, with_counted
from elastic_training.controller.facts.snapshot import Pod, WorldSeen
from elastic_training.rendezvous.engine import restart_log, window
from elastic_training.rendezvous.engine.restart_log import RestartLog


def with_restart_count(status: JobStatus | None) -> JobStatus | None:
    """Return the status with the one number that people read first, also if nothing has restarted yet."""
    if status is None or status.elastic is None or status.elastic.restart_count is not None:
        return status
    return replace(status, elastic=replace(status.elastic, restart_count=_count_of(status.elastic)))


def with_more_restarts(status: ElasticStatus, number: int) -> ElasticStatus:
    """Return the status with `number` more restarts of the job. Several workers that end may be one restart."""
    return replace(status, restart_count=min(max(0, _count_of(status) + number), MOST_TIMES)) if number else status


def without_restarts_since(known: ElasticStatus, status: ElasticStatus) -> ElasticStatus:
    """Return the status in which the ends since the known status count as no restarts of the job, because the job ends with them."""
    return replace(status, restart_count=_count_of(known))


def _count_of(status: ElasticStatus) -> int:
    if status.restart_count is not None:
        return status.restart_count
    return min(sum(times for cause, times in status.restarts.items() if cause not in (Cause.PLAN, Cause.COLLATERAL)), MOST_TIMES)


def budget_of(policy: ElasticPolicy) -> Budget:
    """Return the job's budget. As with torchrun, no failure is allowed without maxRestarts or a limit of restarts without progress."""
    limits, most = policy.restart_budget, policy.max_restarts
    return Budget(
        max_restarts=0 if most is None and policy.max_restarts_without_progress is None else most,
        by_cause=tuple((cause.value, limit) for cause, limit in own_limits(policy).items()),
        window_s=limits.window_seconds if limits is not None else None,
        without_progress=policy.max_restarts_without_progress,
        hang_s=policy.hang_timeout_seconds,
        first_step_s=policy.first_step_timeout_seconds,
        same_error=limits.same_error if limits is not None else None,
    )


def own_limits(policy: ElasticPolicy) -> dict[Cause, int]:
    """Return the causes that the job's own budget limits one by one."""
    budget = policy.restart_budget
    if budget is None:
        return {}
    limits = {
        Cause.USER: budget.user,
        Cause.OUT_OF_MEMORY: budget.out_of_memory,
        Cause.HANG: budget.hang,
        Cause.DISRUPTION: budget.disruption,
    }
    return {cause: limit for cause, limit in limits.items() if limit is not None}


def uid_of(entry: str) -> str:
    """Return the uid of the pod whose end, or whose container's end, this entry of `counted` is."""
    return entry.partition("/")[0]


def with_reported_restarts(status: ElasticStatus, world: WorldSeen) -> ElasticStatus:
    """Return the status with the restarts that the rendezvous server reports, each once, and with the ends that it has counted."""
    before = log_of(status)
    known = restart_log.merged(before, world.unacknowledged_restarts)
    more = _restarts_in(known) - _restarts_in(before)
    if more and world.closed and known.unsettled[-1].generation >= world.generation:
        more -= 1  # no world followed the end that closed the group
    status = with_more_restarts(status, more)
    again = {uid_of(id) for id in world.explained}
    others = [entry for entry in status.counted if entry == uid_of(entry) or uid_of(entry) not in again]
    counted = with_counted(others, world.explained, room=COUNTED_BYTES - KEPT_FOR_PODS_BYTES)
    return replace(status, restarts=dict(known.counts), open=stored(known.unsettled), counted=counted)


def _restarts_in(log: RestartLog) -> int:
    """Return how often the job has restarted in the unsettled part of its log. All ends of one world are one restart."""
    ended = [entry for entry in log.unsettled if entry.cause != Cause.PLAN]
    return len({entry.generation for entry in ended if not entry.is_alone}) + sum(entry.is_alone for entry in ended)


def settled(status: ElasticStatus, pods: Sequence[Pod], *, before: ElasticStatus) -> ElasticStatus:
    """Return the status without the details of settled restarts.

    A restart is settled once the status has its generation: no message can change it any more. The status keeps as many of the other
    restarts as it has room for. `before` is the status that the cluster holds.
    """
    heard = {pod.uid for pod in pods} | {uid_of(entry) for entry in status.counted}
    log = restart_log.settled(log_of(status), generation=status.generation, pods=heard)
    whole, log = log, bounded(log, before=log_of(before))
    if sum(log.counts.values()) < sum(whole.counts.values()):
        # The rendezvous server repeats restarts that found no room.
        status = with_more_restarts(status, _restarts_in(log) - _restarts_in(whole))
    return replace(status, restarts=dict(log.counts), open=stored(log.unsettled))


def dated(job: Job, *, known: ElasticStatus, new: ElasticStatus, now: datetime) -> ElasticStatus:
    """Return the new status, with a date for every restart that the known one does not count yet, and none if the cause was another."""
    window_s = _window_s(job)
    if window_s is None:
        return replace(new, charged=())
    dates = _dates(known)
    for cause in sorted((new.restarts.keys() | known.restarts.keys()) - {Cause.PLAN.value}):
        more = new.restarts.get(cause, 0) - known.restarts.get(cause, 0)
        dates = window.recounted(dates, cause, more=more, now=now.timestamp(), window_s=window_s)
    charged = tuple(Charge(cause=d.what, at=of_timestamp(d.at).replace(microsecond=0), count=d.count) for d in dates)
    return replace(new, charged=charged)


def beyond_budget(job: Job, status: ElasticStatus, *, now: datetime) -> str:
    """Say which cause has used up its own budget; return "" if none has."""
    window_s = _window_s(job)
    used: Mapping[str, int] = status.restarts
    if window_s is not None:
        used = window.counted(_dates(status), now=now.timestamp(), window_s=window_s)
    within = f" within {window_s} s" if window_s is not None else ""
    for cause, limit in own_limits(job.elastic).items() if job.elastic is not None else ():
        if used.get(cause.value, 0) > limit:
            return f"restarts used by cause {cause.value}: {limit} of {limit}{within}"
    return ""


def beyond_max_restarts(job: Job, status: ElasticStatus, *, now: datetime) -> str:
    """Say that maxRestarts is used up; return "" while it is not. Agents in an etcd see it too, but they know nothing of a window."""
    budget = budget_of(job.elastic) if job.elastic is not None else Budget()
    used: Mapping[str, int] = status.restarts
    if budget.window_s is not None:
        used = window.counted(_dates(status), now=now.timestamp(), window_s=budget.window_s)
    charged = sum(used.get(cause, 0) for cause in CHARGED if cause not in dict(budget.by_cause))
    if budget.max_restarts is None or charged <= budget.max_restarts:
        return ""
    return f"restarts used: {budget.max_restarts} of {budget.max_restarts}"


def _window_s(job: Job) -> int | None:
    budget = job.elastic.restart_budget if job.elastic is not None else None
    return budget.window_seconds if budget is not None else None


def _dates(status: ElasticStatus) -> window.Dates:
    return tuple(window.Dated(charge.cause, charge.at.timestamp(), charge.count) for charge in status.charged)
