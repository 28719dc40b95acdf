"""Decide when a job restarts as a whole because its processes cannot go on without one of them, and how long it waits before that.

The status and the pods have the number of their group. When the number grows, all older pods go before the next group's pods are created.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from elastic.api.book import Rescale
from elastic.api.job import ElasticStatus, Job
from elastic.api.words import Cause, RestartScope
from elastic_training.controller.deciding.actions import JobEvent, warning
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle.conditions import WAITS, reason_of
from elastic_training.controller.deciding.lifecycle.end_reasons import is_refused
from elastic_training.controller.deciding.lifecycle.verdicts import FIRST_RETRYABLE_CODE, Fate, Verdict
from elastic_training.controller.deciding.pauses import next_pause_s, pause_end, start_of
from elastic_training.controller.deciding.status_room import listed
from elastic_training.controller.facts.snapshot import Pod, Snapshot
from elastic_training.controller.frameworks import FRAMEWORKS
from elastic_training.controller.frameworks.protocol import total

PAUSE = "pause"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 10, 300
RAN_WELL = timedelta(seconds=600)
"""The kubelet treats a container that keeps failing in the same way: the first restart is at once, and each further one waits twice as
long. Once a group has worked for RAN_WELL, the waits begin from the start."""


def restarts_as_a_whole(job: Job) -> bool:
    """Return whether the loss of one replica restarts all replicas."""
    if job.elastic is not None and job.kind.native_elastic:
        return False
    if job.run_policy.restart_scope is not None:
        return job.run_policy.restart_scope is RestartScope.GROUP
    if any(type in job.kind.servers for type in job.replicas):
        return False
    # An elastic group of any other kind can go on neither after a loss nor after a change of its size.
    return job.elastic is not None or FRAMEWORKS[job.kind.name].needs_gang_restart(job)


def name_of(job: Job) -> str:
    """Return the group label of pods of the present group."""
    return f"size-{total(job)}" + (f"-run-{number}" if (number := _number(job)) else "")


def pods_of_earlier_starts(job: Job, snapshot: Snapshot) -> list[Pod]:
    """Return the pods of former groups. Pods without a label were created before there were groups, and belong to the first."""
    name = name_of(job)
    return [pod for pod in snapshot.pods if pod.group != name and (pod.group or _number(job))]


def decisive(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the one verdict that matters of ends that were seen together: a disruption, else the first end. The others may follow from it.

    Pods that a node refused have not ended: each of them is made again by itself.
    """
    refused = [verdict for verdict in verdicts if verdict.is_refused]
    ended = [verdict for verdict in verdicts if verdict.fate is not Fate.STAYS and not verdict.is_refused]
    return [*sorted(ended, key=_rank)[:1], *refused]


def _rank(verdict: Verdict) -> tuple[bool, float, bool]:
    ends = [container.ended_at.timestamp() for container in verdict.pod.containers if container.ended_at is not None]
    code = verdict.exit_code
    # Within the same second, the pod that was killed comes first: it did not end because of the pod that gave up.
    return verdict.cause is not Cause.DISRUPTION, max(ends, default=0.0), code is not None and code < FIRST_RETRYABLE_CODE


def with_gang_restart(view: JobView, known: ElasticStatus, ended: Verdict | None) -> ElasticStatus:
    """Return the status with the size of a complete group, or with the next group's number if a replica has ended or is gone."""
    snapshot, everybody, known = view.snapshot, total(view.job), _dated(known, view.snapshot.now)
    members = _members(view.job, snapshot)
    working = [pod for pod in members if not pod.is_deleting and (pod.is_active or pod.is_over) and not is_refused(pod)]
    if ended is not None:
        return _next(known, ended.why or f"{ended.pod.name} ended", cause=ended.cause, size=everybody, now=snapshot.now)
    if not members or known.world_size != everybody:
        return replace(known, world_size=everybody if len(working) == everybody else 0)
    there = [pod for pod in members if not pod.is_deleting]
    if len(there) == everybody:
        return known
    going = listed([pod.name for pod in members if pod.is_deleting]) or f"{everybody - len(there)} of {everybody}"
    return _next(known, f"{going} left", cause=Cause.DISRUPTION, size=everybody, now=snapshot.now)


def _dated(known: ElasticStatus, now: datetime) -> ElasticStatus:
    last = known.last_rescale
    if last is None or last.at is None or not last.phases.get(PAUSE):
        return known
    return replace(known, last_rescale=replace(last, at=start_of(last.at, _length_s(last), now=now)))


def _members(job: Job, snapshot: Snapshot) -> list[Pod]:
    outside = {pod.uid for pod in pods_of_earlier_starts(job, snapshot)}
    return [pod for pod in snapshot.pods if pod.uid not in outside]


def _next(known: ElasticStatus, what: str, *, cause: Cause, size: int, now: datetime) -> ElasticStatus:
    number, pause_s = known.generation + 1, _pause_s(known.last_rescale, now) if cause.is_charged else 0
    last = Rescale(
        id=f"run-{number}",
        cause=cause.value,
        reason=f"{what}; all replicas restart",
        at=now,
        from_size=known.world_size,
        to_size=size,
        phases={PAUSE: pause_s * 1000} if pause_s else {},
    )
    return replace(known, generation=number, world_size=0, last_rescale=last)


def _pause_s(last: Rescale | None, now: datetime) -> int:
    if last is None or last.at is None:
        return 0
    before_s = min(last.phases.get(PAUSE, 0) // 1000, LONGEST_PAUSE_S)
    if now - last.at > RAN_WELL + timedelta(seconds=before_s):
        return 0
    return next_pause_s(before_s, first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)


def gang_restart_events(job: Job, new: ElasticStatus) -> Iterator[JobEvent]:
    """Events about a group that restarts."""
    last = new.last_rescale
    if last is not None and new.generation > _number(job):
        message = f"job {job.metadata.name} is restarting because {last.reason}."
        yield warning(reason_of(job, "Restarting"), message, about=last.id)


def pause_until(view: JobView) -> datetime | None:
    """Return the end of the pause before the present group is made, while it lasts."""
    known, now = view.job.status.elastic, view.snapshot.now
    last = known.last_rescale if view.restarts_as_a_whole and known is not None else None
    if last is None or last.at is None or not last.phases.get(PAUSE):
        return None
    return pause_end(last.at, _length_s(last), now=now)


def _length_s(last: Rescale) -> float:
    return min(last.phases.get(PAUSE, 0) / 1000, LONGEST_PAUSE_S)


def pause_in_words(view: JobView) -> str:
    """Return the words that end the message of a condition during the pause."""
    end = pause_until(view)
    return f"{WAITS}until {end:%H:%M:%S} UTC to create all pods again." if end is not None else ""


def may_start(view: JobView) -> bool:
    """Return whether pods may start: all pods of the former group are gone, since new ones have their names, and the pause has ended."""
    return not view.restarts_as_a_whole or (not pods_of_earlier_starts(view.job, view.snapshot) and pause_until(view) is None)


def is_apart(view: JobView, new: ElasticStatus) -> bool:
    """Return whether the group is being restarted: from a loss until the pods of the former group are gone."""
    job, number = view.job, _number(view.job)
    return view.restarts_as_a_whole and (new.generation > number or (number > 0 and bool(pods_of_earlier_starts(job, view.snapshot))))


def _number(job: Job) -> int:
    return job.status.elastic.generation if job.status.elastic is not None else 0
