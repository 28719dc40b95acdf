"""Simulate a cluster that trains submitted jobs in virtual time.

The numbers of workers come from the autoscaler's own decisions (`decide_all`) in each round. The rest is as simple as possible: a pod
takes the first node with room, and a change stops its job for a while.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import msgspec

from benchmarks.mix.workload import Submitted
from elastic.api.scaling import ScalingPolicy
from elastic.membership.training import TrainingProgress
from elastic_training.autoscale.deciding.cluster import NodeSeen, PodSeen, Room
from elastic_training.autoscale.deciding.jobs import JobState, ScaledJob
from elastic_training.autoscale.deciding.measures import with_rate
from elastic_training.autoscale.deciding.round import Setting, decide_all
from elastic_training.autoscale.deciding.signals import Bounds, Memory
from elastic_training.autoscale.deciding.training import SAMPLES, Mark, Training
from elastic_training.autoscale.figures import JobName
from elastic_training.autoscale.watching.projections import node_seen, shape_of

BEGIN = 1_800_000_000.0
ROUND_S = 10.0
NOISE = 0.03
PRICE = "price"
WORKER = shape_of({"spec": {"containers": [{"name": "pytorch", "image": "i", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]}})


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The way in which the jobs of a run get their numbers of workers: by a policy, or a fixed number."""

    name: str
    policy: ScalingPolicy | None = None
    fixed: str = ""
    """`least` or `most`, if the number never changes."""


@dataclass(slots=True)
class Job:
    """One submitted job, and its progress."""

    of: Submitted
    policy: ScalingPolicy | None
    replicas: int
    places: dict[int, str | float] = field(default_factory=dict)
    """The node of each worker by its index, or the time since which the worker waits for a node."""
    done: float = 0.0
    stands_until: float = 0.0
    trained_by: int = 0
    since: float = 0.0
    memory: Memory = field(default_factory=Memory)
    training: Training = field(default_factory=Training)
    began: float | None = None
    ended: float | None = None

    @property
    def key(self) -> JobName:
        return JobName("PyTorchJob", "default", self.of.name)

    @property
    def nodes(self) -> list[str]:
        return [place for place in self.places.values() if isinstance(place, str)]

    def pods(self) -> list[PodSeen]:
        return [
            PodSeen(
                key=("default", f"{self.of.name}-{index}"),
                node=place if isinstance(place, str) else "",
                shape=WORKER,
                owner=self.of.name,
                index=index,
                is_worker=True,
                is_running=isinstance(place, str),
                unschedulable_since=None if isinstance(place, str) else place,
            )
            for index, place in self.places.items()
        ]


def nodes(count: int, gpus: int) -> list[NodeSeen]:
    """Return the nodes. Every second node is a spot node, which costs a third."""
    return [
        node_seen(
            {
                "metadata": {"name": f"n{index}", "labels": {PRICE: "1.0" if index % 2 else "3.0"}},
                "spec": {},
                "status": {"allocatable": {"nvidia.com/gpu": str(gpus), "pods": "110"}},
            }
        )
        for index in range(count)
    ]


class Cluster:
    def __init__(self, plan: Plan, machines: Sequence[NodeSeen], *, rescale_s: float, seed: int) -> None:
        self._plan = plan
        self._nodes = machines
        self._price = {node.candidate.name: float(node.candidate.labels[PRICE]) for node in machines}
        self._rescale_s = rescale_s
        self._draw = random.Random(seed)
        self.now = BEGIN
        self.jobs: list[Job] = []
        self.gpu_s = 0.0
        self.money = 0.0
        self.changes = 0

    def run(self, queue: Sequence[Submitted], *, most_hours: float = 200.0) -> None:
        """Train the jobs until all have ended."""
        waiting = sorted(queue, key=lambda one: one.at)
        while (waiting or any(job.ended is None for job in self.jobs)) and self.now < BEGIN + most_hours * 3600:
            while waiting and BEGIN + waiting[0].at <= self.now:
                self.jobs.append(self._taken_in(waiting.pop(0)))
            active = [job for job in self.jobs if job.ended is None]
            self._place(active)
            self._train(active)
            self._decide([job for job in active if job.ended is None])
            self.now += ROUND_S

    def _taken_in(self, one: Submitted) -> Job:
        policy = self._plan.policy
        if policy is not None and policy.total_samples is not None:
            policy = _with_deadline(policy, one, self.now)
        return Job(one, policy, one.most if self._plan.fixed == "most" else 1)

    def _place(self, active: Sequence[Job]) -> None:
        """Remove surplus pods, the highest index first. Then find nodes for waiting and missing pods, in the order of the jobs' arrival."""
        for job in active:
            for index in sorted(job.places, reverse=True)[: max(0, len(job.places) - job.replicas)]:
                del job.places[index]
        room = Room(self._nodes, [pod for job in active for pod in job.pods()])
        for job in active:
            free = (index for index in range(job.replicas) if index not in job.places)
            for index in [*[index for index, place in job.places.items() if not isinstance(place, str)], *free]:
                found = room.take(WORKER)
                job.places[index] = found if found is not None else job.places.get(index, self.now)

    def _train(self, active: Sequence[Job]) -> None:
        for job in active:
            workers = len(job.nodes)
            if workers != job.trained_by:
                self.changes += job.trained_by > 0
                # The first start takes as long as a change, but stops no worker, so it is no change.
                job.stands_until, job.trained_by, job.since = self.now + self._rescale_s, workers, self.now + self._rescale_s
                job.began = job.began if job.began is not None or not workers else self.now
            trained_s = max(0.0, min(ROUND_S, self.now + ROUND_S - job.stands_until)) if workers else 0.0
            job.done += trained_s * job.of.rate(workers)
            self.gpu_s += ROUND_S * workers
            self.money += ROUND_S / 3600 * sum(self._price[node] for node in job.nodes)
            if job.done >= job.of.work:
                job.ended = self.now + ROUND_S
                job.places.clear()
                continue
            self._report(job, workers)

    def _report(self, job: Job, workers: int) -> None:
        """Report the job's progress, with a noisy rate if the whole window was trained."""
        is_whole = workers and self.now >= job.since + ROUND_S
        rate = job.of.rate(workers) * max(0.1, self._draw.gauss(1, NOISE)) if is_whole else None
        hear(job, workers, rate=rate, rescale_s=self._rescale_s, now=self.now)

    def _decide(self, active: Sequence[Job]) -> None:
        if self._plan.policy is not None:
            decide(active, self._nodes, self._plan.policy, now=self.now)


def hear(job: Job, workers: int, *, rate: float | None, rescale_s: float, now: float) -> None:
    """Take in the report of a job. It has a rate if the whole last window was trained."""
    if rate is not None:
        job.memory = replace(job.memory, sizes=with_rate(job.memory.sizes, size=workers, rate=rate, now=now))
    step = int(job.done)
    progress = TrainingProgress(job=job.of.name, generation=1, phase="running", size=workers, step=step, highest=step)
    mark = Mark(now, job.done, SAMPLES, step, (1, workers))
    job.training = Training(progress=progress, heard_at=now, last=mark, rescale_s=rescale_s)


def decide(active: Sequence[Job], machines: Sequence[NodeSeen], policy: ScalingPolicy, *, now: float) -> None:
    """Run one round of the autoscaler, which changes the jobs' numbers of replicas."""
    if not active:
        return
    states = [
        JobState(
            seen=ScaledJob(
                key=job.key,
                uid=job.of.name,
                policy=job.policy or policy,
                bounds=Bounds(1, job.of.most),
                replicas=job.replicas,
                shape=WORKER,
            ),
            training=job.training,
            memory=job.memory,
        )
        for job in active
    ]
    pods = [pod for job in active for pod in job.pods()]
    found = decide_all(states, machines, pods, setting=Setting(), now=now, monotonic=now)
    for job in active:
        decision = found[job.key].decision
        job.replicas, job.memory = decision.count, replace(decision.memory, sizes=job.memory.sizes)


def _with_deadline(policy: ScalingPolicy, one: Submitted, now: float) -> ScalingPolicy:
    """Return the policy with a deadline after three times the job's shortest possible duration."""
    by = datetime.fromtimestamp(int(now + 3 * one.shortest_s), UTC)
    return msgspec.structs.replace(policy, finish_by=by, total_samples=max(1, int(one.work)))
