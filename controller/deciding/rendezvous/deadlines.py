"""Decide until when the pod of a worker with a notice stays, although nobody has taken its place.

The pod is deleted before the loss, so that it ends in order and the others train again by then. The last workers that hold the state of
training stay longer: to delete them earlier saves nothing, and a replacement may still come.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from msgspec import structs

from elastic.api.book import Leaving
from elastic.api.job import Job
from elastic.api.kinds import WORKER
from elastic.api.words import Cause
from elastic.membership.phases import WorldPhase
from elastic.signals.signal import Meaning
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle.disruption import termination_grace_s
from elastic_training.controller.deciding.moments import after
from elastic_training.controller.facts.snapshot import Pod, WorldSeen

UNMEASURED_RESCALE_S = 5.0
"""Assumed seconds of an exchange or another rescale until one was measured."""
END_S = 10.0
"""Seconds that the last holders of the state need to end if replacements take it over: nothing is left to save."""
WAITS = frozenset({"detect"})
"""Phases of a rescale before workers stop for it."""
WAITS_FOR_PODS = WAITS | {"drain", "round"}
"""Phases that may also contain the start of new pods, unless a newcomer began the rescale."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Latest times at which the pods of leaving workers are deleted."""

    view: JobView
    last_holders: frozenset[str] = frozenset()
    """The workers with which the state of training is lost."""
    has_replacement: bool = False
    """A replacement of theirs is at the rendezvous, so it can still get the state."""

    def of(self, entry: Leaving) -> datetime | None:
        """Return when the pod is deleted at the latest; None if the worker only may have to leave, or the cluster deletes its pod."""
        notice = self.view.notices.get(entry.member)
        if notice is None or not notice.may_delete or notice.meaning is Meaning.PREPARE or entry.by is None:
            return None
        if entry.member not in self.last_holders:
            grace_s = min(_scale_in_grace_s(self.view.job), notice.lead_s / 2)
            return after(entry.by, -grace_s - min(rescale_s(self.view.job), notice.lead_s / 4))
        grace_s = min(_scale_in_grace_s(self.view.job), termination_grace_s(self.view.job, WORKER), notice.lead_s / 2)
        if self.has_replacement:  # to end the exchange now would lose the state for certain
            return after(entry.by, -min(grace_s, END_S, notice.lead_s / 4))
        return after(entry.by, -grace_s - min(exchange_s(self.view.job), notice.lead_s / 4))

    def asked_to_save(self, leaving: Iterable[Leaving]) -> tuple[Leaving, ...]:
        """Return the entries. The last holders of the state are asked to save it if no replacement can have it in time."""
        now, holders = self.view.snapshot.now, frozenset[str]() if self.has_replacement else self.last_holders

        def is_due(entry: Leaving) -> bool:
            return entry.member in holders and (at := self.of(entry)) is not None and at <= now

        return tuple(structs.replace(entry, asked_to_save=True) if is_due(entry) else entry for entry in leaving)


def deadlines(view: JobView, leaving: Iterable[Leaving]) -> Deadlines:
    """Find the workers with which the state is lost, and whether a replacement has come for it."""
    ends = {entry.member: entry.by for entry in leaving if not waits_for_replacement(view, entry)}
    workers = [pod for pod in view.snapshot.pods if pod.type == WORKER.lower()]
    world = view.snapshot.world
    holders = [pod for pod in workers if has_state(pod, world)]
    alive = [pod for pod in holders if not pod.is_deleting] or holders
    losses = [ends.get(pod.name) for pod in alive]
    known = [by for by in losses if by is not None]
    if not view.sees_members or not holders or len(known) < len(losses):
        return Deadlines(view)  # a worker with the state stays
    last = max(known)
    nodes = {pod.node for pod in alive if ends[pod.name] == last}
    names = frozenset(pod.name for pod in holders if pod.name in ends and (pod.node in nodes or ends[pod.name] == last))
    return Deadlines(view, names, _has_come(world, [pod.name for pod in workers if pod.is_active and pod.name not in ends]))


def waits_for_replacement(view: JobView, entry: Leaving) -> bool:
    """Return whether the worker only may have to leave, so that its replacement is made first."""
    notice = view.notices.get(entry.member)
    return notice is not None and notice.meaning is Meaning.PREPARE and entry.cause == Cause.DISRUPTION.value


def rescale_s(job: Job) -> float:
    """Return the seconds that the newest rescale of this job took from training."""
    return _measured_s(job, without=WAITS) or UNMEASURED_RESCALE_S


def exchange_s(job: Job) -> float:
    """Return the seconds from a newcomer's arrival until it has the state, as the newest rescale measured them."""
    last = job.status.elastic.last_rescale if job.status.elastic is not None else None
    is_exchange = last is not None and last.from_size > 0 and last.cause == Cause.PLAN.value
    return _measured_s(job, without=WAITS if is_exchange else WAITS_FOR_PODS) or UNMEASURED_RESCALE_S


def _measured_s(job: Job, *, without: frozenset[str]) -> float:
    last = job.status.elastic.last_rescale if job.status.elastic is not None else None
    return sum(ms for phase, ms in last.phases.items() if phase not in without) / 1000 if last is not None else 0.0


def _scale_in_grace_s(job: Job) -> float:
    assert job.elastic is not None
    return float(job.elastic.scale_in_grace_seconds)


def has_state(pod: Pod, world: WorldSeen | None) -> bool:
    """Return whether the worker has the state. Its condition tells; without the readiness gate, every member of the world counts."""
    if pod.is_over:
        return False
    if pod.in_world is None:
        return world is not None and pod.name in world.members
    return pod.in_world.has_state


def _has_come(world: WorldSeen | None, replacements: Iterable[str]) -> bool:
    """Return whether the state can pass on now: a replacement is at the rendezvous, or the next world is being formed."""
    if world is None:
        return False
    return world.phase == WorldPhase.RE_FORMING or any(name in world.members or name in world.waiting for name in replacements)
