"""Pods that nodes or the API server refuse are made again ever more slowly, the job says so, and nothing else of it waits."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import sim_time
from sim_api import Write
from sim_jobs import NAME, job_of, replicas
from sim_pods import is_running
from test_sim_rest import Scene

from elastic.api.job import Object
from elastic.api.kinds import KINDS
from elastic.kube.resources import PODS
from elastic_training.controller.facts.keys import JOBS

ELASTIC = {"minReplicas": 1, "maxReplicas": 4}
HOW = {
    "ours": ("PyTorchJob", {"Worker": 3}, ELASTIC),
    "c10d": ("PyTorchJob", {"Worker": 3}, {**ELASTIC, "rdzvBackend": "c10d"}),
    "static": ("PyTorchJob", {"Worker": 3}, None),
    "whole": ("PaddleJob", {"Worker": 3}, ELASTIC),
}
HOUR_S = 3600.0


class Refused(Scene):
    """A job of three workers, and all that was made for it."""

    def __init__(self, how: str) -> None:
        kind, types, policy = HOW[how]
        self.kind = kind
        super().__init__()
        self.manifest = job_of(KINDS[kind], types, policy=policy, run_policy={})

    async def begin(self) -> None:
        self.api.create(JOBS[self.kind], self.manifest, actor="user")
        await self.until_quiet()

    async def until(self, holds: Callable[[], bool], *, within_s: float) -> None:
        for _ in range(int(within_s)):
            if holds():
                return
            await asyncio.sleep(1.0)
        raise AssertionError(f"not within {within_s} s: {self.message} {[(p['metadata']['name'], p['status']) for p in self.workers()]}")

    def workers(self) -> list[Object]:
        return [pod for pod in self.api.all(PODS) if "training.kubeflow.org/replica-type" in pod["metadata"]["labels"]]

    def refuse_everywhere(self, *, for_s: float) -> None:
        for node in self.cluster.nodes():
            self.cluster.refuse(node, for_s=for_s)

    @property
    def running(self) -> int:
        return sum(map(is_running, self.workers()))

    @property
    def made(self) -> int:
        return sum(write.resource == PODS and write.before is None for write in self.writes)

    @property
    def job(self) -> Object:
        job = self.api.find(JOBS[self.kind], NAME)
        assert job is not None
        return job

    @property
    def message(self) -> str:
        return str(self.job["status"]["conditions"][-1]["message"])

    @property
    def elastic(self) -> Object:
        found: Object = self.job["status"].get("elastic") or {}
        return found

    def scale(self, workers: int) -> None:
        self.api.change(JOBS[self.kind], NAME, lambda job: replicas(job)["Worker"].update({"replicas": workers}), actor="user")


def played(how: str, story: Callable[[Refused], Coroutine[Any, Any, None]]) -> None:
    async def begun() -> None:
        await story(Refused(how))

    sim_time.run(begun())


@pytest.mark.parametrize("how", HOW)
def test_pods_that_every_node_refuses_are_made_again_ever_more_slowly(how: str) -> None:
    """With a node's name in the template 238 pods were made in 31 s, and the job said that it runs."""

    async def story(scene: Refused) -> None:
        scene.refuse_everywhere(for_s=HOUR_S)
        scene.api.create(JOBS[scene.kind], scene.manifest, actor="user")
        await asyncio.sleep(60.0)
        assert scene.made <= 4 * 6, "2, 4, 8, 16 and 32 s between the tries"
        await asyncio.sleep(HOUR_S / 2)
        assert scene.made <= 4 * 16, "300 s in the end"
        assert "refused the last" in scene.message
        assert "OutOfcpu: Pod was rejected" in scene.message
        assert scene.elastic.get("restarts", {}) == {}
        scene.cluster.kubelets.refusing.clear()
        await scene.until(lambda: scene.running >= 3, within_s=310)
        await scene.until_quiet()
        assert "refused" not in scene.elastic
        assert "It waits" not in scene.message
        assert scene.conditions(NAME)[-1].endswith("Running")

    played(how, story)


@pytest.mark.parametrize("how", HOW)
def test_another_controller_waits_as_long(how: str) -> None:
    async def story(scene: Refused) -> None:
        scene.refuse_everywhere(for_s=HOUR_S)
        scene.api.create(JOBS[scene.kind], scene.manifest, actor="user")
        await asyncio.sleep(70.0)
        before = scene.made
        for _ in range(10):
            scene.restart()
            await asyncio.sleep(2.0)
        assert scene.made <= before + 3

    played(how, story)


def test_while_one_waits_all_else_goes_on() -> None:
    async def story(scene: Refused) -> None:
        await scene.begin()
        scene.refuse_everywhere(for_s=HOUR_S)
        scene.scale(4)
        await asyncio.sleep(120.0)
        assert (scene.running, len(scene.workers())) == (3, 4)
        assert scene.conditions(NAME)[-1] == "PyTorchJobRunning"
        assert "is running. It waits" in scene.message
        made = scene.made
        scene.cluster.kubelets.refusing.clear()
        lost = next(pod for pod in scene.workers() if is_running(pod))
        scene.cluster.vanish(lost)
        await scene.until(lambda: scene.running == 3, within_s=15)
        assert scene.made == made + 1, "the loss was made up for at once"
        scene.scale(1)
        await scene.until(lambda: scene.running == len(scene.workers()) == 1, within_s=60)
        await scene.until_quiet()
        assert "refused" not in scene.elastic

    played("ours", story)


@pytest.mark.parametrize("how", HOW)
def test_a_request_that_the_api_server_refuses_is_tried_again_within_a_minute_and_told(how: str) -> None:
    async def story(scene: Refused) -> None:
        scene.api.quota = 2
        tries = 0

        def count(write: Write) -> None:
            nonlocal tries
            tries += write.resource.kind == "Event" and write.after is not None and write.after["reason"].startswith("FailedCreate")

        scene.api.observers.append(count)
        scene.api.create(JOBS[scene.kind], scene.manifest, actor="user")
        await asyncio.sleep(HOUR_S / 4)
        assert tries <= 3 * 5 + 3 * 15, (
            "the third pod's name is in the message, so it is told once; no pod is tried more than once a minute"
        )
        assert "the API server refused the last" in scene.message
        assert "exceeded quota" in scene.message
        scene.api.quota = None
        await scene.until(lambda: scene.running >= 3, within_s=75)
        await scene.until_quiet()
        assert "refused" not in scene.elastic
        assert "It waits" not in scene.message

    played(how, story)


def test_a_scale_in_is_not_delayed_by_a_quota_that_is_full() -> None:
    async def story(scene: Refused) -> None:
        await scene.begin()
        scene.api.quota = 3
        scene.scale(4)
        await asyncio.sleep(100.0)
        assert scene.running == 3
        scene.scale(2)
        await scene.until(lambda: scene.running == len(scene.workers()) == 2, within_s=60)
        await scene.until_quiet()
        assert "It waits" not in scene.message

    played("ours", story)
