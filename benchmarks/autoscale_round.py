"""Measure the CPU time of a round of the autoscaler's decisions, and what it writes at rest.

`python -m benchmarks.autoscale_round [--jobs 1000] [--nodes 250]`: half of the jobs train with several workers and want one more, one in
five has measured that its next worker brings nothing and may look past it, one in ten reports nothing, and twenty pods of higher priority
wait for room. A second part counts the records that noise would make it write.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from dataclasses import replace
from typing import Any

from elastic.api.scaling import DecisionRecord, PolicyName, ScalingPolicy
from elastic.membership.training import TrainingProgress
from elastic_training.autoscale.deciding.cluster import NodeSeen, PodSeen
from elastic_training.autoscale.deciding.jobs import JobState, ScaledJob
from elastic_training.autoscale.deciding.measures import Measured, with_rate
from elastic_training.autoscale.deciding.remembering import is_news, record_of
from elastic_training.autoscale.deciding.round import Setting, decide_all
from elastic_training.autoscale.deciding.signals import Bounds, Memory
from elastic_training.autoscale.deciding.training import Mark, Training
from elastic_training.autoscale.figures import JobName
from elastic_training.autoscale.watching.projections import node_seen, shape_of

NOW = 1_800_000_000.0
MOST_WORKERS = 16
ROUNDS = 5
NAMESPACES = 20


def worker(gpus: int) -> dict[str, Any]:
    requests = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": str(gpus)}
    return {"spec": {"containers": [{"name": "pytorch", "image": "i", "resources": {"requests": requests}}]}}


def node(index: int) -> NodeSeen:
    offers = {"cpu": "128", "memory": "1000Gi", "nvidia.com/gpu": "8", "pods": "110"}
    return node_seen({"metadata": {"name": f"n{index}"}, "spec": {}, "status": {"allocatable": offers}})


def state(index: int, replicas: int, draw: random.Random) -> JobState:
    known = (
        () if index % 10 == 0 else tuple(Measured(size, 100 * size / (1 + 0.02 * size), 4.0, 30, at=NOW) for size in range(1, replicas + 1))
    )
    if index % 5 == 1:
        known = (*known, Measured(replicas + 1, known[-1].rate, 4.0, 30, at=NOW))
    seen = ScaledJob(
        key=JobName("PyTorchJob", f"team-{index % NAMESPACES}", f"job-{index}"),
        uid=f"uid-{index}",
        policy=ScalingPolicy(policy=draw.choice([PolicyName.THROUGHPUT, PolicyName.CAPACITY])),
        bounds=Bounds(1, MOST_WORKERS),
        replicas=replicas,
        shape=shape_of(worker(1 + index % 2)),
    )
    progress = TrainingProgress(job=seen.uid, generation=1, phase="running", size=replicas, step=5, highest=5)
    last = Mark(0.0, 5.0, "samples", 5, (progress.generation, progress.size))
    return JobState(
        seen=seen, training=Training(progress=progress, last=last), memory=Memory(sizes=known[-8:], changed_at=NOW - 1e5, grew=True)
    )


def cluster(jobs: int, nodes: int) -> tuple[list[JobState], list[NodeSeen], list[PodSeen]]:
    draw = random.Random(1)
    states = [state(index, draw.choice([1, 1, 1, 2, 2]), draw) for index in range(jobs)]
    pods: list[PodSeen] = []
    places = iter(f"n{index % nodes}" for index in range(10**9))
    for one in states:
        for index in range(one.seen.replicas):
            pods.append(PodSeen(key=(one.seen.key.namespace, f"{one.seen.key.name}-{index}"), node=next(places), shape=one.seen.shape,
                                owner=one.seen.uid, index=index, is_worker=True))  # fmt: skip
    pods += [
        PodSeen(key=("inference", f"p{index}"), node="", shape=shape_of(worker(4)), priority=100, unschedulable_since=NOW - 60)
        for index in range(20)
    ]
    return states, [node(index) for index in range(nodes)], pods


def written_at(*, hours: float = 1.0, seed: int = 2) -> list[float]:
    """Return the times of written records, in seconds from the first measure, for a job with a noisy throughput at its best size."""
    draw = random.Random(seed)
    one = state(1, 2, draw)
    one = replace(one, seen=replace(one.seen, bounds=Bounds(1, 2), policy=ScalingPolicy()))
    nodes, found_at = [node(0)], list[float]()
    last: DecisionRecord | None = None
    for passed in range(0, int(hours * 3600), 5):
        now = NOW + passed
        if passed % 10:
            one = replace(one, memory=replace(one.memory, sizes=with_rate(one.memory.sizes, size=2, rate=draw.gauss(192.0, 10.0), now=now)))
        found = decide_all([one], nodes, [], setting=Setting(), now=now, monotonic=passed % 50)[one.seen.key]
        one = replace(one, memory=found.decision.memory)
        written = record_of(found, now)
        if is_news(written, last):
            last = written
            found_at.append(passed)
    return found_at


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.autoscale_round", description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=250)
    options = parser.parse_args()
    states, nodes, pods = cluster(options.jobs, options.nodes)
    taken = []
    for _ in range(ROUNDS):
        began = time.process_time()
        found = decide_all(states, nodes, pods, setting=Setting(), now=NOW, monotonic=1.0)
        taken.append(time.process_time() - began)
    grown = sum(outcome.decision.count > one.seen.replicas for one in states for outcome in [found[one.seen.key]])
    shrunk = sum(outcome.decision.count < one.seen.replicas for one in states for outcome in [found[one.seen.key]])
    tried = sum(outcome.decision.memory.trial is not None for outcome in found.values())
    print(f"{options.jobs} jobs, {len(pods)} pods, {options.nodes} nodes: {statistics.median(taken):.2f} s of CPU a round "
          f"(from {min(taken):.2f} to {max(taken):.2f}); {grown} grow, {tried} of them for a trial, {shrunk} give back")  # fmt: skip
    times = written_at()
    print(f"a job at rest, an hour of noise: {len(times)} annotation(s) written, the last one after {times[-1]:.0f} s")


if __name__ == "__main__":
    main()
