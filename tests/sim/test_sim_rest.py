"""The control plane costs nothing when there is nothing to do: for a job that runs, and for an invalid job that was stored."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest
import sim_time
from sim_api import Api, Write
from sim_autoscaler import Autoscaler
from sim_client import Sky, Weather
from sim_cluster import Cluster
from sim_hpa import HpaController
from sim_jobs import job_of
from sim_process import Controller
from sim_rendezvous import SimServer

from elastic.api.job import Object
from elastic.api.kinds import KINDS
from elastic.kube.resources import EVENTS, PODS
from elastic_training.controller.facts.keys import JOBS

pytestmark = pytest.mark.timeout(600)  # many examples, which a busy machine makes slow

KIND = "PyTorchJob"
NAME = "controller-1"
REST_S = 900.0
HALF_A_DAY_S = 12 * 3600.0
STANDS_S, PATIENCE_S = 600.0, 7200.0


class Scene:
    """One controller in fair weather, a cluster, and every write of the controller's."""

    kind = KIND

    def __init__(self) -> None:
        self.api, self.server = Api(), SimServer()
        self.cluster = Cluster(self.api, self.server, random.Random(1))
        self.writes: list[Write] = []
        self.api.observers.append(lambda write: self.writes.append(write) if write.actor == NAME else None)
        self.controller = self._started()
        self._ticking = asyncio.get_running_loop().create_task(self._tick())

    def _started(self) -> Controller:
        controller = Controller(self.api, Sky(Weather()), self.server, random.Random(1), name=NAME, kinds=[self.kind])
        controller.start()
        return controller

    def restart(self) -> None:
        self.controller.kill()
        self.controller = self._started()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self.cluster.tick()
            self.api.collect()

    async def until_quiet(self) -> None:
        while True:
            before = len(self.writes)
            await asyncio.sleep(60.0)
            if len(self.writes) == before:
                return

    def conditions(self, name: str) -> list[str]:
        job = self.api.find(JOBS[self.kind], name)
        assert job is not None
        return [c["reason"] for c in (job.get("status") or {}).get("conditions") or ()]

    def written_of(self, name: str) -> list[str]:
        """Return the kinds of the objects that were written about one job."""
        return sorted(write.resource.kind for write in self.writes if write.name.startswith(name))


class AutoscaledScene(Scene):
    """With the autoscaler, and the cluster's controller of HorizontalPodAutoscalers; every write of any of them counts."""

    def __init__(self) -> None:
        super().__init__()
        self.all_writes: list[Write] = []
        self.api.observers.append(self.all_writes.append)
        self.autoscaler = Autoscaler(self.api, Sky(Weather()), self.server, random.Random(1), kind=KIND)
        self.autoscaler.start()
        self._hpas = HpaController(self.api)
        self._scaling = asyncio.get_running_loop().create_task(self._scale())

    async def _scale(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self._hpas.tick(self.autoscaler)

    async def until_its_size_stands(self) -> None:
        """Wait until the job has had the same number of workers for ten minutes."""
        since, size = 0.0, 0
        while (now := asyncio.get_running_loop().time()) - since < STANDS_S:
            await asyncio.sleep(1.0)
            running = sum((pod.get("status") or {}).get("phase") == "Running" for pod in self.api.all(PODS))
            since, size = (since, size) if running == size else (now, running)
            assert now < PATIENCE_S, f"it has {size} workers"
        assert size > 0


def named(name: str, **spec: Any) -> Object:
    job = job_of(KINDS[KIND], {"Master": 1, "Worker": 2}, run_policy={})
    return {**job, "metadata": {**job["metadata"], "name": name}, "spec": {**job["spec"], **spec}}


def played(scene: Coroutine[Any, Any, None]) -> None:
    sim_time.run(scene)


def test_a_job_that_got_in_broken_is_told_so_once_and_costs_nothing_further() -> None:
    async def story() -> None:
        scene = Scene()
        broken = named("broken")
        broken["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = "many"
        scene.api.create(JOBS[KIND], broken, actor="user")
        scene.api.create(JOBS[KIND], named("good"), actor="user")
        await scene.until_quiet()
        assert scene.conditions("broken") == ["PyTorchJobCreated", "InvalidSpec"]
        assert scene.written_of("broken") == ["Event", "PyTorchJob"]
        assert scene.conditions("good")[-1] == "PyTorchJobRunning"
        scene.writes.clear()
        await asyncio.sleep(REST_S)
        assert scene.writes == []

    played(story())


def test_an_edit_that_breaks_a_running_job_is_told_once_and_stops_nothing() -> None:
    async def story() -> None:
        scene = Scene()
        scene.api.create(JOBS[KIND], named("edited"), actor="user")
        await scene.until_quiet()
        scene.writes.clear()
        scene.api.patch(JOBS[KIND], "edited", {"spec": {"runPolicy": {"backoffLimit": "few"}}}, subresource=None, actor="user")
        await scene.until_quiet()
        await asyncio.sleep(REST_S)
        assert [write.resource for write in scene.writes] == [EVENTS]
        assert len(scene.api.all(PODS)) == 3
        assert scene.conditions("edited")[-1] == "PyTorchJobRunning"

    played(story())


@pytest.mark.parametrize("policy", [None, {"minReplicas": 1, "maxReplicas": 3}])
def test_a_job_that_runs_costs_no_writes(policy: Object | None) -> None:
    async def story() -> None:
        scene = Scene()
        types = {"Worker": 2} if policy else {"Master": 1, "Worker": 2}
        scene.api.create(JOBS[KIND], job_of(KINDS[KIND], types, policy=policy, run_policy={}), actor="user")
        await scene.until_quiet()
        scene.writes.clear()
        await asyncio.sleep(REST_S)
        assert scene.writes == []

    played(story())


@pytest.mark.parametrize(
    "policy",
    [
        {"policy": "throughput"},
        {"policy": "throughput", "through": "hpa"},
        {"policy": "capacity"},
        {"policy": "deadline", "finishBy": "2026-01-02T00:00:00Z", "totalSteps": 10**6},  # no number of workers finishes in time
        {"policy": "schedule", "windows": [{"start": "00:00", "end": "23:59", "replicas": 3}]},
    ],
    ids=lambda policy: "-".join(str(policy[word]) for word in ("policy", "through") if word in policy),
)
def test_an_autoscaled_job_that_has_found_its_size_costs_no_writes_however_uneven_its_steps(policy: Object) -> None:
    """Once it has had the size for ten minutes, for half a day.

    Neither the controller's, nor the autoscaler's, nor those of a HorizontalPodAutoscaler.
    """

    async def story() -> None:
        scene, draw = AutoscaledScene(), random.Random(1)
        scene.server.step_s = lambda: max(0.5, draw.gauss(2.0, 0.5))
        elastic = {"minReplicas": 1, "maxReplicas": 3, "scalingPolicy": policy}
        scene.api.create(JOBS[KIND], job_of(KINDS[KIND], {"Worker": 2}, policy=elastic, run_policy={}), actor="user")
        await scene.until_its_size_stands()
        scene.all_writes.clear()
        steps = dict(scene.server.steps)
        await asyncio.sleep(HALF_A_DAY_S)
        assert scene.all_writes == []
        assert all(scene.server.steps[job] > step + 1000 for job, step in steps.items())
        assert steps
        assert scene.autoscaler.broken is None

    played(story())


def test_a_controller_that_is_told_to_end_finishes_what_it_has_begun_and_begins_nothing() -> None:
    """Broken off between a status and its Event, the Event would never be told."""

    async def story() -> None:
        scene = Scene()
        begun = asyncio.Event()
        scene.api.observers.append(lambda write: begun.set() if write.resource == PODS else None)
        scene.api.create(JOBS[KIND], named("train"), actor="user")
        await begun.wait()
        scene.api.create(JOBS[KIND], named("later"), actor="user")
        await scene.controller.finish()
        assert sorted(pod["metadata"]["name"] for pod in scene.api.all(PODS)) == ["train-master-0", "train-worker-0", "train-worker-1"]
        assert "SuccessfulCreatePod" in {event["reason"] for event in scene.api.all(EVENTS)}
        count = len(scene.writes)
        await asyncio.sleep(REST_S)
        assert len(scene.writes) == count

    played(story())
