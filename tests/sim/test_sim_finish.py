"""Nobody waits for ever: a job whose work is done ends, whatever is lost just before, and one that cannot begin says what it waits for."""

import asyncio
from typing import Any

import pytest
import sim_time
from sim_api import Write
from sim_client import Weather
from sim_jobs import job_of
from sim_right import silences
from sim_scene import Options
from sim_storm import Storm

from elastic.api.kinds import KINDS

QUIET = Options(steps=0, kills=False, weather=Weather())


def job(*, workers: int, least: int, **policy: Any) -> Any:
    bounds = {"minReplicas": least, "maxReplicas": 6, "maxRestarts": 0, "scaleInGraceSeconds": 5, **policy}
    return job_of(KINDS["PyTorchJob"], {"Worker": workers}, policy=bounds, run_policy={"cleanPodPolicy": "None"})


class LostAtTheEnd(Storm):
    """Some finish, one is lost in the same moment, and perhaps the server restarts and what has ended is removed."""

    def __init__(self, seed: int, manifest: Any, *, loss: str, restarts_server: bool, removes_ended: bool) -> None:
        super().__init__(seed, QUIET, manifest)
        self.loss, self.restarts_server, self.removes_ended = loss, restarts_server, removes_ended
        self.state: list[str] = []
        self.restarts: dict[str, int] = {}
        self.step = self.reached = 0
        self.server.hears_steps = True

    async def _storm(self) -> None:
        self.keep_controllers()
        self.api.create(self.resource, self.manifest, actor="user")
        await asyncio.sleep(40.0)
        unlucky = self.cluster.running()[1]["metadata"]["uid"]
        self.laws.has_finished = self.cluster.kubelets.is_finishing = True
        await asyncio.sleep(1.5)
        for pod in [pod for pod in self.cluster.running() if pod["metadata"]["uid"] == unlucky]:
            self.cluster.lost.add(pod["metadata"]["uid"])
            {"crash": lambda p: self.cluster.crash(p, code=137, by_user=False), "vanish": self.cluster.vanish, "evict": self.cluster.evict}[
                self.loss
            ](pod)
        await asyncio.sleep(4.0)
        if self.restarts_server:
            self.server.restart()
        if self.removes_ended:
            self._remove_ended()

    async def _calm(self) -> None:
        await self._settled()
        status = (self.job or {})["status"]
        self.state = [c["type"] for c in status["conditions"] if c["status"] == "True"]
        self.restarts = status["elastic"].get("restarts", {})
        self.step, self.reached = status["elastic"].get("step", 0), max(self.server.steps.values(), default=0)


@pytest.mark.parametrize("backend", ["elastic", "c10d"])
@pytest.mark.parametrize("loss", ["crash", "vanish", "evict"])
@pytest.mark.parametrize(("restarts_server", "removes_ended"), [(False, False), (True, False), (False, True)])
def test_a_job_that_loses_a_worker_at_its_end_has_succeeded(backend: str, loss: str, restarts_server: bool, removes_ended: bool) -> None:
    policy = {"rdzvBackend": "c10d"} if backend == "c10d" else {}
    for seed in range(3):
        storms: list[LostAtTheEnd] = []

        async def life(seed: int = seed, storms: list[LostAtTheEnd] = storms) -> None:
            manifest = job(workers=3, least=1 + seed % 2, **policy)
            storms.append(LostAtTheEnd(seed, manifest, loss=loss, restarts_server=restarts_server, removes_ended=removes_ended))
            await storms[0].play()

        sim_time.run(life())
        assert "Succeeded" in storms[0].state, (seed, storms[0].state)
        assert "user" not in storms[0].restarts
        if backend == "elastic" and not restarts_server:
            assert storms[0].step == storms[0].reached > 0, "the status keeps how far training came"


class OutOfTime(Storm):
    """A job that trains up to its deadline, with one worker lost before, or none."""

    def __init__(self, seed: int, manifest: Any, *, loses_one: bool) -> None:
        super().__init__(seed, QUIET, manifest)
        self.loses_one = loses_one
        self.step = self.at_end = 0
        self.server.hears_steps = True
        self.api.observers.append(self._see)

    def _see(self, write: Write) -> None:
        if write.resource == self.resource and not _has_failed(write.before) and _has_failed(write.after):
            self.at_end = max(self.server.steps.values(), default=0)

    async def _storm(self) -> None:
        self.keep_controllers()
        self.api.create(self.resource, self.manifest, actor="user")
        if self.loses_one:
            await asyncio.sleep(50.0)
            self.cluster.evict(self.cluster.running()[1])
            await asyncio.sleep(50.0)
        else:
            await asyncio.sleep(100.0)

    async def _calm(self) -> None:
        assert self.job is not None
        assert not _has_failed(self.job)
        await asyncio.sleep(60.0)
        await self._settled()
        assert _has_failed(self.job)
        self.step = self.job["status"]["elastic"].get("step", 0)

    async def _finish(self) -> None:
        return


def _has_failed(job: Any) -> bool:
    conditions = ((job or {}).get("status") or {}).get("conditions") or ()
    return any(condition["type"] == "Failed" and condition["status"] == "True" for condition in conditions)


@pytest.mark.parametrize("loses_one", [False, True])
def test_a_job_that_trains_up_to_its_deadline_keeps_its_last_step(*, loses_one: bool) -> None:
    """Its world works to the end, and of such a world no step is told: it kept the step of its last restart, or none."""
    for seed in range(3):
        storms: list[OutOfTime] = []

        async def life(seed: int = seed, storms: list[OutOfTime] = storms) -> None:
            manifest = job(workers=3, least=1)
            manifest["spec"]["runPolicy"] |= {"activeDeadlineSeconds": 120, "cleanPodPolicy": "All"}
            storms.append(OutOfTime(seed, manifest, loses_one=loses_one))
            await storms[0].play()

        sim_time.run(life())
        assert storms[0].step >= storms[0].at_end > 5, (seed, storms[0].step, storms[0].at_end)


class NoRoom(Storm):
    """Four places for a job that needs five."""

    async def _storm(self) -> None:
        for name in self.cluster.nodes()[1:]:
            self.cluster.cordon(name)
        self.keep_controllers()
        self.api.create(self.resource, self.manifest, actor="user")
        await asyncio.sleep(300.0)

    async def _calm(self) -> None:
        found = list(silences(self.api, self.job))
        assert found == [], found
        assert "Running" not in [c["type"] for c in (self.job or {})["status"]["conditions"] if c["status"] == "True"]

    async def _finish(self) -> None:
        return


@pytest.mark.parametrize("backend", ["elastic", "c10d"])
def test_a_job_that_has_no_room_says_what_it_waits_for(backend: str) -> None:
    async def life() -> None:
        policy = {"rdzvBackend": "c10d"} if backend == "c10d" else {}
        await NoRoom(1, QUIET, job(workers=5, least=5, **policy)).play()

    sim_time.run(life())
