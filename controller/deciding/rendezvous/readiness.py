"""Decide which workers that meet at our server or in an etcd count as Ready: those that are in the job's world and have its state.

The disruption budget counts Ready workers, so a drain then never evicts the only worker that has the state.

A worker's condition holds for one run of its container and one start of its agent. The pod's annotation elastic-training/holder says
which, so the next controller finds it. While a world re-forms, conditions stay as they are.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from elastic.api import words
from elastic.api.job import ElasticPolicy, Job, Object
from elastic.api.words import HOLDER, IN_WORLD
from elastic.membership.phases import WorldPhase
from elastic_training.controller.deciding.actions import SetCondition
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.moments import of_timestamp
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.controller.deciding.rendezvous.expectation import allowed_sizes
from elastic_training.controller.facts.snapshot import Container, Pod, Snapshot, WorldSeen

NO_WORLD = WorldSeen(generation=0, members=frozenset())


class Reason(StrEnum):
    STEP_REPORTED = "StepReported"
    WORLD_STANDS = words.WORLD_STANDS
    SPARE = "SpareWorker"
    NOT_IN_WORLD = "NotInWorld"
    STARTED_ANEW = "StartedAnew"
    WORLD_UNSEEN = "WorldUnseen"

    @property
    def is_met(self) -> bool:
        return self in (Reason.STEP_REPORTED, Reason.WORLD_STANDS, Reason.SPARE, Reason.WORLD_UNSEEN)


@dataclass(frozen=True, slots=True)
class Holder:
    """The worker that was in the world: the run of its container, by its restart count, and the start of its agent, if known."""

    run: int
    agent: str = ""

    @property
    def mark(self) -> str:
        """The value of the annotation."""
        return f"{self.run}/{self.agent}"

    def is_same(self, other: "Holder") -> bool:
        return self.run == other.run and (self.agent == other.agent or not self.agent or not other.agent)


@dataclass(frozen=True, slots=True)
class WorkerReadiness:
    """Condition that a worker should have, with the container run and the agent that it is about."""

    reason: Reason
    words: str
    holder: Holder

    @property
    def message(self) -> str:
        """The condition's message; release 0.4.0 reads the holder from its end."""
        return f"{self.words} (container run {self.holder.run}, agent {self.holder.agent or 'unknown'})"


_MARK = re.compile(r"(\d{1,9})/(\S{0,300})")
_HOLDER = re.compile(r"\(container run (\d{1,9}), agent (\S{1,300})\)\Z")
"""The holder as release 0.4.0 wrote it, at the end of the condition's message; the next release reads the annotation alone."""
_START = re.compile(r"\A(\d{1,15})-")
"""An agent is named after the milliseconds at which it started (`elastic_worker.agent.presence_thread.process_id`)."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """The conditions to write, and when time alone will change one."""

    changes: tuple[SetCondition, ...] = ()
    look_again_at: datetime | None = None


def is_gated(view: JobView) -> bool:
    """Return whether new workers get the readiness gate. They do only if the controller sees the members of the world."""
    return view.sees_members


def gated(view: JobView, pod: Object) -> Object:
    """Return the worker's pod with our readiness gate next to the user's own."""
    gates, ours = pod["spec"].get("readinessGates") or [], {"conditionType": IN_WORLD}
    if ours in gates or not is_gated(view):
        return pod
    return pod | {"spec": pod["spec"] | {"readinessGates": [*gates, ours]}}


def of_workers(view: JobView, *, going: Sequence[Pod] = ()) -> Readiness:
    """Return the conditions to write, except for `going`, which are deleted in this round, and for pods without the gate."""
    gone = {pod.uid for pod in going}
    snapshot = view.snapshot
    pods = [pod for pod in snapshot.pods if pod.in_world is not None and not (pod.is_over or pod.is_deleting or pod.uid in gone)]
    if not pods or not (view.sees_members or view.backend is RendezvousBackend.ETCD):
        return Readiness()
    if not view.sees_members:
        return Readiness(tuple(_change(pod, said, now=snapshot.now) for pod, said in _unseen(view, pods) if not _says(pod, said)))
    look = _Look(view.job, snapshot, snapshot.world or NO_WORLD)
    spares = {pod.uid for pod in look.spares(pods)}
    verdicts = [(pod, look.spare(pod) if pod.uid in spares else look.verdict(pod)) for pod in pods]
    changes = (_due(pod, said, now=snapshot.now) for pod, said in verdicts)
    return Readiness(tuple(filter(None, changes)), look.next_moment(pods))


def _unseen(view: JobView, pods: Sequence[Pod]) -> Iterator[tuple[Pod, WorkerReadiness]]:
    """Workers whose etcd cannot be asked count as Ready once their container runs, as if they had no gate."""
    for pod in pods:
        run = running(pod, view.job)
        if run is not None and not _is_met(pod):
            yield pod, WorkerReadiness(Reason.WORLD_UNSEEN, "The controller does not reach the etcd where the workers meet", Holder(run))


def running(pod: Pod, job: Job) -> int | None:
    """Return the number of the training container's present run."""
    container = _running(pod, job)
    return container.restarts if container is not None else None


def _running(pod: Pod, job: Job) -> Container | None:
    return next((c for c in pod.containers if c.name == job.kind.container and c.is_running), None)


@dataclass(frozen=True, slots=True)
class _Look:
    """View of a job's world in one round."""

    job: Job
    snapshot: Snapshot
    world: WorldSeen

    def verdict(self, pod: Pod) -> WorkerReadiness | None:
        """Return the condition that the worker should have; None to leave it as it is."""
        run, was = self._run(pod), _holder(pod)
        if _is_met(pod) and (run is None or was is None or was.run != run):
            return WorkerReadiness(Reason.STARTED_ANEW, "The container that was in the world has ended", was or Holder(run or 0))
        if run is None or not self._stands:
            return None
        if not self._is_inside(pod):
            is_out = _is_met(pod) and self._is_whole
            words = f"World {self.world.generation} does not include this worker"
            return WorkerReadiness(Reason.NOT_IN_WORLD, words, Holder(run)) if is_out else None
        return self._inside(pod, Holder(run, self._agent(pod)), was)

    def _inside(self, pod: Pod, holder: Holder, was: Holder | None) -> WorkerReadiness | None:
        is_same = was is not None and was.is_same(holder)
        if was is not None and was.run != holder.run and was.agent and was.agent == holder.agent and not self._runs_now(pod, holder.agent):
            return None  # the server has not noticed yet that this agent went with its container
        if is_same and _is_met(pod) and not _is_spare(pod):
            return None
        if self.world.has_stepped:
            return WorkerReadiness(Reason.STEP_REPORTED, f"Training reported a step in world {self.world.generation}", holder)
        if self._due is not None and self._due <= self.snapshot.now:
            seconds = self._policy.ready_after_seconds
            return WorkerReadiness(Reason.WORLD_STANDS, f"World {self.world.generation} has existed for {seconds} s", holder)
        if _is_met(pod) and not is_same:
            return WorkerReadiness(Reason.STARTED_ANEW, "The agent that was in the world has ended", was or holder)
        return None

    def _runs_now(self, pod: Pod, agent: str) -> bool:
        """Return whether the container that runs now started this agent.

        If the watch of pods stalled, the condition may name the agent next to the previous run. Both times are by the clock of the
        pod's node.
        """
        container, start = _running(pod, self.job), _START.match(agent)
        began = container.started_at if container is not None else None
        return began is not None and start is not None and of_timestamp(int(start[1]) / 1000) >= began

    def spares(self, pods: Sequence[Pod]) -> list[Pod]:
        """Return the workers at the rendezvous for which the allowed sizes have no place until another worker leaves.

        Enough of them count as Ready to let the disruption budget spare a worker and still keep one that has the state, if the least number
        of workers is more than one.
        """
        outside = [pod for pod in pods if pod.name in self.world.waiting and not self._is_inside(pod) and self._run(pod) is not None]
        inside = len(self.world.members)
        if not (outside and self._stands and self._is_whole) or self._may_grow(to=inside + len(outside)):
            return []
        unproven = sum(_is_spare(pod) and self._is_inside(pod) for pod in pods)
        room = max(0, max(1, self.job.least_workers - 1) - unproven)
        return sorted(outside, key=lambda pod: (not _is_spare(pod), pod.index))[:room]

    def spare(self, pod: Pod) -> WorkerReadiness:
        return WorkerReadiness(
            Reason.SPARE,
            "This worker waits at the rendezvous and takes the place of the next worker that leaves",
            Holder(self._run(pod) or 0),
        )

    def next_moment(self, pods: Sequence[Pod]) -> datetime | None:
        """Return when the world will be old enough to make a worker Ready, if that is still to come."""
        if self._due is None or self._due <= self.snapshot.now or self.world.has_stepped:
            return None
        waits = any(self._is_inside(pod) and (not _is_met(pod) or _is_spare(pod)) for pod in pods)
        return self._due if waits else None

    @property
    def _policy(self) -> ElasticPolicy:
        assert self.job.elastic is not None
        return self.job.elastic

    @property
    def _stands(self) -> bool:
        return self.world.phase == WorldPhase.RUNNING

    @property
    def _is_whole(self) -> bool:
        """Are all members known? A restarted server learns of them one by one; an older one does not report it."""
        return self.world.size == len(self.world.members)

    @property
    def _due(self) -> datetime | None:
        """Return when time alone shows that the workers of this world have its state; None if steps show it."""
        if not self._stands or self.world.since is None or self._reports_steps:
            return None
        return self.world.since + timedelta(seconds=self._policy.ready_after_seconds)

    @property
    def _reports_steps(self) -> bool:
        """Return whether the world, the job's status or a worker's condition shows that training reported a step.

        An older server does not say in which world a step was made. With such a server only the time counts.
        """
        if self.world.size is None:
            return False
        known = (pod.in_world.reason for pod in self.snapshot.pods if pod.in_world is not None)
        return self.world.step is not None or Reason.STEP_REPORTED in known

    def _may_grow(self, *, to: int) -> bool:
        sizes = allowed_sizes(self.job, most=max(self.job.most_workers, to))
        return not sizes or any(len(self.world.members) < size <= to for size in sizes)

    def _is_inside(self, pod: Pod) -> bool:
        """Return whether this very pod is a member, not another pod of the same name."""
        uid = self.world.incarnations.get(pod.name, "").partition("/")[0]
        return pod.name in self.world.members and uid in ("", pod.uid)

    def _agent(self, pod: Pod) -> str:
        return self.world.incarnations.get(pod.name, "").partition("/")[2]

    def _run(self, pod: Pod) -> int | None:
        return running(pod, self.job)


def _is_met(pod: Pod) -> bool:
    return pod.in_world is not None and pod.in_world.is_true


def _is_spare(pod: Pod) -> bool:
    return pod.in_world is not None and pod.in_world.is_true and pod.in_world.reason == Reason.SPARE


def _holder(pod: Pod) -> Holder | None:
    """Return the holder that the pod's condition is about.

    We write annotation and message together. If they disagree, release 0.4.0 wrote the condition last, and left the annotation as it was.
    """
    if pod.in_world is None:
        return None
    if (former := _HOLDER.search(pod.in_world.message)) is not None:
        return Holder(int(former[1]), "" if former[2] == "unknown" else former[2])
    found = _MARK.fullmatch(pod.in_world.holder)
    return None if found is None else Holder(int(found[1]), found[2])


def _says(pod: Pod, verdict: WorkerReadiness) -> bool:
    """Return whether the condition and the annotation already say so."""
    there = pod.in_world
    if there is None or there.holder != verdict.holder.mark:
        return False
    return (there.is_true, there.reason, _holder(pod)) == (verdict.reason.is_met, verdict.reason, verdict.holder)


def _due(pod: Pod, verdict: WorkerReadiness | None, *, now: datetime) -> SetCondition | None:
    """Return the change of this worker's condition. Without a verdict, a condition that release 0.4.0 wrote gets the annotation."""
    if verdict is not None:
        return None if _says(pod, verdict) else _change(pod, verdict, now=now)
    there, holder = pod.in_world, _holder(pod)
    if there is None or holder is None or there.holder == holder.mark:
        return None
    status = "True" if there.is_true else "False"
    condition: Object = {"type": IN_WORLD, "status": status, "reason": there.reason, "message": there.message}
    return SetCondition(pod.name, pod.uid, condition, {HOLDER: holder.mark})


def _change(pod: Pod, verdict: WorkerReadiness, *, now: datetime) -> SetCondition:
    condition: Object = {
        "type": IN_WORLD,
        "status": "True" if verdict.reason.is_met else "False",
        "reason": verdict.reason.value,
        "message": verdict.message,
    }
    if verdict.reason.is_met != _is_met(pod):
        condition["lastTransitionTime"] = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return SetCondition(pod.name, pod.uid, condition, {HOLDER: verdict.holder.mark})
