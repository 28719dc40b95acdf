"""The controller dies before or after one write of a job's life, another one in each run: everything must become right all the same."""

import asyncio
import os
import random
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest
import sim_time
from sim_api import Write
from sim_client import Weather
from sim_jobs import job_of, replicas
from sim_scene import Options
from sim_storm import Storm

from elastic.api.job import Object
from elastic.api.kinds import KINDS

QUIET = Options(steps=0, kills=False, weather=Weather())
ELASTIC = {"minReplicas": 1, "maxReplicas": 4, "maxRestarts": 10, "scaleInGraceSeconds": 5}
JOBS = {
    "elastic": job_of(KINDS["PyTorchJob"], {"Worker": 2}, policy=ELASTIC, run_policy={"cleanPodPolicy": "All"}),
    "store": job_of(KINDS["PyTorchJob"], {"Worker": 2}, policy={**ELASTIC, "rdzvBackend": "c10d"}, run_policy={"cleanPodPolicy": "None"}),
    "static": job_of(KINDS["TFJob"], {"Chief": 1, "PS": 1, "Worker": 1}, restart="ExitCode", run_policy={"ttlSecondsAfterFinished": 5}),
    "launched": job_of(KINDS["MPIJob"], {"Launcher": 1, "Worker": 2}, policy=ELASTIC, run_policy={"cleanPodPolicy": "Running"}),
    "group": job_of(KINDS["PaddleJob"], {"Worker": 2}, policy=ELASTIC, run_policy={"cleanPodPolicy": "All"}),
}
STORE_OF_3 = job_of(KINDS["PyTorchJob"], {"Worker": 3}, policy={**ELASTIC, "rdzvBackend": "c10d"}, run_policy={"cleanPodPolicy": "None"})
WRITES = 150
"""More than any of these lives has."""
STRIDE = 1 if int(os.environ.get("SEEDS", "0")) >= 100 else 13
"""`make sim` tries every write, `make test` some of them."""


Life = TypeVar("Life", bound="Scripted")


class Scripted(Storm):
    """A short life in fair weather, in which the first controller dies at one write."""

    def __init__(self, manifest: Object, *, dies_at: int, when: str) -> None:
        self.dies_at, self.when, self.made = dies_at, when, 0
        super().__init__(dies_at, QUIET, manifest)

    def _fate(self, draw: random.Random) -> Callable[[str], bool]:
        def dies(moment: str) -> bool:
            self.made += moment == self.when
            return self.made == self.dies_at and moment == self.when

        return dies

    async def _storm(self) -> None:
        self.keep_controllers()
        self.api.create(self.resource, self.manifest, actor="user")
        for deed in (lambda: None, self._grow, self._lose, self._shrink, self._suspend, self._suspend):
            deed()
            for _ in range(10):
                await asyncio.sleep(2.0)
                self.keep_controllers()
                self.check()

    def _workers(self, count: int) -> None:
        self._change(lambda job: replicas(job)["Worker"].update({"replicas": count}))

    def _grow(self) -> None:
        self._workers(3)

    def _shrink(self) -> None:
        self._workers(1)

    def _lose(self) -> None:
        """Crash a running pod and evict another, if there are two."""
        for pod, mishap in zip(self.cluster.running(), (partial(self.cluster.crash, code=137), self.cluster.evict), strict=False):
            mishap(pod)


class ScaledIn(Scripted):
    """A job at c10d's store loses one of its three workers to a smaller spec, and the controller dies at a write from then on."""

    def __init__(self, *, dies_at: int, when: str) -> None:
        super().__init__(STORE_OF_3, dies_at=dies_at, when=when)
        self.made = -WRITES
        self.rescales: list[Object] = []

    async def _storm(self) -> None:
        self.keep_controllers()
        self.api.create(self.resource, self.manifest, actor="user")
        await asyncio.sleep(30.0)
        self.made = 0
        self.api.observers.append(self._see_rescale)
        self._workers(2)
        for _ in range(15):
            await asyncio.sleep(2.0)
            self.keep_controllers()
            self.check()
        self.api.observers.remove(self._see_rescale)

    def _see_rescale(self, write: Write) -> None:
        if write.resource == self.resource and write.after is not None and "lastRescale" in write.after["status"]["elastic"]:
            self.rescales.append(write.after["status"]["elastic"]["lastRescale"])


def live(begin: Callable[[], Life]) -> Life:
    """Play the life of a storm that `begin` makes."""
    storms: list[Life] = []

    async def life() -> None:
        storms.append(begin())
        await storms[0].play()

    try:
        sim_time.run(life())
    except AssertionError as error:
        storm = storms[0]
        raise AssertionError(f"dies {storm.when} write {storm.dies_at}: {error}\n" + "\n".join(storm.history)) from error
    return storms[0]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("job", JOBS)
def test_a_controller_may_die_before_or_after_any_write(job: str, when: str) -> None:
    for number in range(1, WRITES, STRIDE):
        if live(partial(Scripted, JOBS[job], dies_at=number, when=when)).made < number:
            return
    raise AssertionError(f"more than {WRITES} writes in so short a life")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_scale_in_at_c10d_is_never_taken_for_a_disruption(when: str) -> None:
    """The surplus pod was deleted in the reconcile that wrote into the status that it was to go.

    A controller that died in between left the next one a loss without a reason.
    """
    for number in range(1, WRITES):
        storm = live(partial(ScaledIn, dies_at=number, when=when))
        assert {rescale["cause"] for rescale in storm.rescales} == {"plan"}, (number, storm.rescales)
        if storm.made < number:
            return
    raise AssertionError(f"more than {WRITES} writes for a scale-in")
