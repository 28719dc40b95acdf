"""Run Pollux's own simulator (OSDI 2021) with its workload 6: 160 jobs on 16 nodes of 4 GPUs.

It compares Tiresias, Optimus and Pollux as published with our autoscaler's decisions.

The simulator's traces tell each program's speed on any GPUs, and Pollux's jobs change their batch size. Our jobs keep the submitted batch
size, as those of Optimus and Tiresias do. They begin with the submitted number of workers, may have between one and the most of Optimus's
jobs, and learn how they scale from their own throughput. A rescale costs 30 s there; `--rescale` gives all policies another cost.
docs/cluster-mix.md says how to install the simulator, which needs pandas below 2.

    python -m benchmarks.pollux FOLDER [--policies tiresias optimus pollux throughput capacity] [--rescale 30] [--interval 60] [--from-one]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.mix.cluster import BEGIN, Job, decide, hear, nodes
from benchmarks.mix.workload import Submitted
from elastic.api.scaling import PolicyName, ScalingPolicy

NODES, GPUS = 16, 4
THEIRS = {"tiresias": "TiresiasPolicy", "optimus": "OptimusPolicy", "pollux": "PolluxPolicy"}
OURS = {"throughput": ScalingPolicy(), "capacity": ScalingPolicy(policy=PolicyName.CAPACITY)}
Allocations = dict[str, list[int]]


class Elastic:
    """The autoscaler behind the simulator's interface: the nodes of each job's workers. A worker stays on its node until it goes."""

    def __init__(self, policy: ScalingPolicy, *, rescale_s: float) -> None:
        self._policy, self._rescale_s = policy, rescale_s
        self._nodes = nodes(NODES, GPUS)
        self._jobs: dict[str, Job] = {}
        self._rates: dict[str, float | None] = {}

    def heard(self, name: str, *, replicas: int, most: int, rate: float | None) -> None:
        """Note a present job: its submitted and its largest number of workers, and its samples a second, or None if it does not train."""
        if name not in self._jobs:
            self._jobs[name] = Job(Submitted(name, 0.0, 0.0, 0.0, most), None, min(replicas, most))
        self._rates[name] = rate

    def round(self, there: set[str], *, now: float) -> Allocations:
        self._jobs = {name: job for name, job in self._jobs.items() if name in there}
        jobs = list(self._jobs.values())
        for job in jobs:
            hear(job, len(job.nodes), rate=self._rates.get(job.of.name), rescale_s=self._rescale_s, now=BEGIN + now)
        decide(jobs, self._nodes, self._policy, now=BEGIN + now)
        self._place(jobs, now=BEGIN + now)
        return {job.of.name: sorted(int(node[1:]) for node in job.nodes) for job in jobs if job.nodes}

    def _place(self, jobs: list[Job], *, now: float) -> None:
        for job in jobs:
            for index in [index for index in job.places if index >= job.replicas]:
                del job.places[index]
        free = Counter({node.candidate.name: GPUS for node in self._nodes})
        free.subtract(node for job in jobs for node in job.nodes)
        for job in jobs:
            for index in range(job.replicas):
                if isinstance(job.places.get(index), str):
                    continue
                own = [node for node in job.nodes if free[node]]
                node = max(own or free, key=lambda name: free[name])
                if free[node]:
                    job.places[index] = node
                    free[node] -= 1
                else:
                    job.places.setdefault(index, now)


def elastic_policy(base: Any, ours: Elastic, replicas: Mapping[str, int]) -> Any:
    """Return a policy for the simulator. Like Optimus's jobs, its jobs keep their batch size and run with the given number of workers."""

    class Policy(base):  # type: ignore[misc]
        cluster: Any = None

        def optimize(self, infos: Any, machines: Any, before: Any, template: Any) -> Any:
            for job in self.cluster.jobs:
                if job.name in infos:
                    most = max(1, min(infos[job.name].max_replicas, NODES * GPUS))
                    ours.heard(job.name, replicas=replicas.get(job.name, 1), most=most, rate=samples_a_second(job))
            return ours.round(set(infos), now=self.cluster.current_time), len(machines)

    return Policy()


def samples_a_second(job: Any) -> float | None:
    """Return the job's samples a second, or None while it does not train."""
    placement = tuple(filter(None, job.placement))
    if not placement or job.rescale_time > 0:
        return None
    step_s, sync_s = job.application.get_throughput(placement, job.atomic_bsz)
    rounds = job.accum_steps + 1
    return float(sum(placement) * job.atomic_bsz * rounds / (step_s + (step_s - sync_s) * job.accum_steps))


def costing(job: Any, rescale_s: float) -> Any:
    """Return the simulator's class of jobs with this cost of a rescale."""

    class Costing(job):  # type: ignore[misc]
        def reallocate(self, placement: Any) -> None:
            super().reallocate(placement)
            if placement:
                self.rescale_time = rescale_s

    return Costing


def play(theirs: Any, name: str, workload: Any, *, rescale_s: float, interval_s: int, from_one: bool) -> Any:
    """Simulate a policy, and return the cluster after its last job has ended."""
    cluster: Any = None
    if name in OURS:
        replicas = {} if from_one else {row.name: int(row.num_replicas) for row in workload.itertuples()}
        policy = elastic_policy(theirs.OptimusPolicy, Elastic(OURS[name], rescale_s=rescale_s), replicas)
    elif name == "tiresias":
        policy = theirs.TiresiasPolicy(lambda: cluster.current_time)
    else:
        policy = getattr(theirs, THEIRS[name])()
    cluster = theirs.Cluster(workload, policy, NODES, num_gpus=GPUS)
    policy.cluster = cluster
    while not cluster.all_complete():
        with contextlib.redirect_stdout(io.StringIO()):
            cluster.step(interval_s)
    return cluster


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder simulator of github.com/petuum/adaptdl, branch osdi21-artifact")
    parser.add_argument("--policies", nargs="+", choices=[*THEIRS, *OURS], default=[*THEIRS, *OURS])
    parser.add_argument("--rescale", type=float, default=30.0, help="seconds without training after each change of a job's workers")
    parser.add_argument("--interval", type=int, default=60, help="seconds between two decisions")
    parser.add_argument(
        "--from-one", action="store_true", help="our jobs begin with one worker, and not with the number that Tiresias's jobs have"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of Pollux's search")
    chosen = parser.parse_args()
    if not (chosen.folder / "simulator.py").is_file():
        parser.error(f"{chosen.folder} has no simulator.py; give the folder simulator of petuum/adaptdl, branch osdi21-artifact")
    sys.path.insert(0, str(chosen.folder))
    warnings.simplefilter("ignore")
    try:
        modules: list[Any] = [importlib.import_module(name) for name in ("simulator", "pandas", "numpy")]
    except (ImportError, AttributeError) as error:  # for example, numpy 1.24 and later have no numpy.int
        raise SystemExit(f"the simulator does not start: {error}; docs/cluster-mix.md says what it needs") from error
    theirs, pandas, numpy = modules
    theirs.Job = costing(theirs.Job, chosen.rescale)
    workload = pandas.read_csv(chosen.folder / "workloads" / "workload-6.csv")
    for name in chosen.policies:
        numpy.random.seed(chosen.seed)
        began = time.monotonic()
        cluster = play(theirs, name, workload, rescale_s=chosen.rescale, interval_s=chosen.interval, from_one=chosen.from_one)
        took = [float(job.completion_time - job.submission_time) for job in cluster.jobs]
        mean, middle = statistics.mean(took), statistics.median(took)
        restarts = statistics.mean(job.num_restarts or 0 for job in cluster.jobs)
        hours = sum(job.attained_service for job in cluster.jobs) / 3600
        print(
            f"{name}: completion {mean:.0f} s (mean), {middle:.0f} s (median), {max(took):.0f} s (longest);",
            f"{restarts:.1f} rescales of {chosen.rescale:g} s a job; {hours:.0f} GPU-hours; played in {time.monotonic() - began:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
