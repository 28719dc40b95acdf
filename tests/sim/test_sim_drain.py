"""Drain a node under a job that runs at its minimum.

The drain ends. If workers can go on without one of them, the minimum stays. A worker with the training's state always stays, so that a
drain loses no steps.
"""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest
import sim_time
from sim_client import Weather
from sim_jobs import job_of
from sim_pods import is_ready
from sim_scene import Options
from sim_storm import Storm

from elastic.api.job import Object
from elastic.api.kinds import KINDS, WORKER
from elastic.api.names import REPLICA_TYPE

QUIET = Options(steps=0, kills=False, weather=Weather())
AT_LEAST_2 = {"minReplicas": 2, "maxReplicas": 4, "maxRestarts": 10, "scaleInGraceSeconds": 5}
JUST_2 = {**AT_LEAST_2, "maxReplicas": 2}
POLICIES = {"": AT_LEAST_2, ", never more": JUST_2}
KEEP = {"cleanPodPolicy": "None"}
JOBS = {
    f"{how}{more}": job_of(kind, types, policy={**policy, **backend}, run_policy=KEEP)
    for how, kind, types, backend in (
        ("ours", KINDS["PyTorchJob"], {"Worker": 2}, {}),
        ("c10d", KINDS["PyTorchJob"], {"Worker": 2}, {"rdzvBackend": "c10d"}),
        ("launched", KINDS["MPIJob"], {"Launcher": 1, "Worker": 2}, {}),
        ("whole", KINDS["PaddleJob"], {"Worker": 2}, {}),
    )
    for more, policy in POLICIES.items()
}
RUNS_BY_S = 120
ENDS_WITHIN_S = 300
STATEFUL = {
    "one of one": (1, {"minReplicas": 1, "maxReplicas": 1}),
    "two of two": (2, JUST_2),
    "three, at least one": (3, {**AT_LEAST_2, "minReplicas": 1}),
    "two, only twos and fours": (2, {**AT_LEAST_2, "allowedSizes": [2, 4]}),
    "two, only two": (2, {**JUST_2, "allowedSizes": [2]}),
    "three, only threes": (3, {"minReplicas": 3, "maxReplicas": 3, "sizeStep": 3}),
}
"""Jobs whose workers all run on the drained node: their number of workers, and their policy."""


class Drained(Storm):
    """A short life without other faults, in which each node with a worker is drained in turn."""

    def __init__(self, manifest: Object, *, seed: int, is_quick: bool, is_together: bool) -> None:
        super().__init__(seed, QUIET, manifest)
        self.cluster.kubelets.is_quick = is_quick
        self.is_together = is_together

    async def _storm(self) -> None:
        self.keep_controllers()
        others = self.cluster.nodes()[1:] if self.is_together else []
        for node in others:
            self.cluster.cordon(node)
        self.api.create(self.resource, self.manifest, actor="user")
        await self._until(lambda: len(self._workers()) == 2, within_s=RUNS_BY_S)
        for node in others:
            self.cluster.cordon(node, is_cordoned=False)
        for node in sorted({pod["spec"]["nodeName"] for pod in self._workers()}):
            self.note(f"{node} is drained")
            self.cluster.cordon(node, drain=True)
            await self._until(partial(self._is_empty, node), within_s=ENDS_WITHIN_S)
            await self._until(lambda: len(self._workers()) == 2, within_s=ENDS_WITHIN_S)
            self.cluster.cordon(node, is_cordoned=False)

    async def _until(self, holds: Callable[[], bool], *, within_s: int) -> None:
        for _ in range(within_s):
            if holds():
                return
            await asyncio.sleep(1.0)
            self.check()
        left = [(pod["metadata"]["name"], pod["spec"].get("nodeName"), pod["status"]["phase"]) for pod in self.cluster.pods()]
        raise AssertionError(f"after {within_s} s there are still {left}")

    def _is_empty(self, node: str) -> bool:
        return not self.cluster.pods(node=node)

    def _workers(self) -> list[Object]:
        return [pod for pod in self.cluster.running() if pod["metadata"]["labels"].get(REPLICA_TYPE) == WORKER.lower()]


@pytest.mark.parametrize("is_quick", [False, True], ids=["slow", "quick"])
@pytest.mark.parametrize("is_together", [False, True], ids=["anywhere", "on one node"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("job", JOBS)
def test_a_drain_ends_also_if_a_job_runs_at_its_minimum(job: str, seed: int, *, is_quick: bool, is_together: bool) -> None:
    """Kubectl evicts by name. It evicted a new group that had the former group's names but was on another node."""
    storms: list[Drained] = []

    async def life() -> None:
        storms.append(Drained(JOBS[job], seed=seed, is_quick=is_quick, is_together=is_together))
        await storms[0].play()

    try:
        sim_time.run(life())
        # If a pod's index is its rank, a new group has the names of the former one. Its budget has a pod to spare, so the drain ends.
        assert storms[0].cluster.evicted_astray == [] or job.startswith("whole")
    except AssertionError as error:
        raise AssertionError(f"{job}: {error}\n" + "\n".join(storms[0].history)) from error


class DrainedTogether(Drained):
    """All workers run on one node. It is drained while nothing else happens, or while a process of the control plane restarts."""

    def __init__(self, workers: int, policy: Object, *, seed: int, hears_steps: bool, restarts: str) -> None:
        job = job_of(KINDS["PyTorchJob"], {"Worker": workers}, policy=policy, run_policy=KEEP)
        super().__init__(job, seed=seed, is_quick=seed % 2 == 1, is_together=True)
        self._count, self._restarts = workers, restarts
        self.server.hears_steps = hears_steps

    async def _storm(self) -> None:
        first, *others = self.cluster.nodes()
        for node in others:
            self.cluster.cordon(node)
        self.keep_controllers()
        self.api.create(self.resource, self.manifest, actor="user")
        await self._until(lambda: self._are_ready() and self._step > 5, within_s=RUNS_BY_S)
        for node in others:
            self.cluster.cordon(node, is_cordoned=False)
        reached = self._step
        self.note(f"{first} is drained at step {reached}")
        self.cluster.cordon(first, drain=True)
        await asyncio.sleep(self.draw.uniform(0, 10))
        if self._restarts == "controller":
            self.controllers[0].kill()
            self.keep_controllers()
        elif self._restarts == "server":
            self.server.restart()
        await self._until(partial(self._is_empty, first), within_s=ENDS_WITHIN_S)
        await self._until(lambda: self._are_ready() and self._step > reached, within_s=ENDS_WITHIN_S)

    def check(self) -> None:
        super().check()
        assert not self.server.lost_steps, f"a drain loses no steps: {self.server.lost_steps}"

    @property
    def _step(self) -> int:
        return max(self.server.steps.values(), default=0)

    def _are_ready(self) -> bool:
        return len(self._workers()) == self._count and all(map(is_ready, self._workers()))


@pytest.mark.parametrize("restarts", ["", "controller", "server"])
@pytest.mark.parametrize("hears_steps", [True, False], ids=["reports steps", "reports none"])
@pytest.mark.parametrize("job", STATEFUL)
def test_a_drain_of_the_node_with_all_workers_loses_no_steps(job: str, hears_steps: bool, restarts: str) -> None:
    for seed in range(2):
        storms: list[DrainedTogether] = []

        async def life(seed: int = seed, storms: list[DrainedTogether] = storms) -> None:
            storms.append(DrainedTogether(*STATEFUL[job], seed=seed, hears_steps=hears_steps, restarts=restarts))
            await storms[0].play()

        try:
            sim_time.run(life())
        except AssertionError as error:
            raise AssertionError(f"{job}, seed {seed}: {error}\n" + "\n".join(storms[0].history)) from error
