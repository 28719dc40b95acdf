"""A job's Secret, which no watch shows: created once, read by a new controller, mended before the next pod, never another object's."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import sim_time
from sim_api import Write
from sim_jobs import NAME, job_of
from test_sim_rest import KIND, REST_S, Scene

from elastic.api.job import Object
from elastic.api.kinds import KINDS
from elastic.api.owners import controller_uid
from elastic.kube.resources import EVENTS, PODS, SECRETS
from elastic_training.controller.acting.status_debounce import PATIENCE_S
from elastic_training.controller.facts.keys import JOBS

SECRET = f"{NAME}-elastic"


class Secretive(Scene):
    """Notes for each pod whether the Secret that goes into it was the job's own when it was made."""

    def __init__(self) -> None:
        super().__init__()
        self.well_begun: list[bool] = []
        self.api.observers.append(self._note)

    def _note(self, write: Write) -> None:
        if write.resource == PODS and write.before is None:
            secret, job = self.api.find(SECRETS, SECRET), self.api.find(JOBS[KIND], NAME)
            assert job is not None
            self.well_begun.append(secret is not None and controller_uid(secret["metadata"]) == job["metadata"]["uid"])

    async def begin(self) -> None:
        self.api.create(JOBS[KIND], elastic_job(), actor="user")
        await self.until_quiet()

    @property
    def reads(self) -> list[str]:
        """Return the Secrets that the present controller asked for."""
        return [name for resource, name in self.controller.kube.gets if resource == SECRETS]

    @property
    def token(self) -> str:
        secret = self.api.find(SECRETS, SECRET)
        return secret["data"]["token"] if secret is not None else ""


def elastic_job() -> Object:
    return job_of(KINDS[KIND], {"Worker": 2}, policy={"minReplicas": 1, "maxReplicas": 3}, run_policy={})


def played(story: Callable[[Secretive], Coroutine[Any, Any, None]]) -> None:
    async def begun() -> None:
        await story(Secretive())

    sim_time.run(begun())


def test_a_new_job_asks_for_no_secret_and_one_at_rest_neither() -> None:
    async def story(scene: Secretive) -> None:
        await scene.begin()
        await asyncio.sleep(REST_S)
        assert [write.verb for write in scene.writes if write.resource == SECRETS] == ["create"]
        assert scene.reads == []

    played(story)


def test_a_controller_that_restarts_asks_once_and_writes_nothing() -> None:
    async def story(scene: Secretive) -> None:
        await scene.begin()
        scene.restart()
        scene.writes.clear()
        await asyncio.sleep(REST_S)
        assert scene.reads == [SECRET]
        assert scene.writes == []

    played(story)


@pytest.mark.parametrize("damage", ["deleted", "changed"])
def test_a_secret_that_somebody_spoiled_is_mended_before_the_next_pod_is_made(damage: str) -> None:
    async def story(scene: Secretive) -> None:
        await scene.begin()
        token = scene.token
        _spoil(scene, damage)
        scene.cluster.evict(scene.cluster.running()[0])
        await scene.until_quiet()
        assert len(scene.well_begun) == 3
        assert all(scene.well_begun)
        assert scene.token == token != ""
        assert scene.reads == [SECRET]

    played(story)


def test_a_secret_of_the_jobs_own_that_another_controller_made_before_it_died_is_taken_over() -> None:
    """The status of such a job says nothing yet, so the controller does not look for the Secret, and its name turns out to be taken."""

    async def story(scene: Secretive) -> None:
        job = scene.api.create(JOBS[KIND], elastic_job(), actor="user")
        owner = {"kind": KIND, "name": NAME, "uid": job["metadata"]["uid"], "controller": True}
        left = {"metadata": {"name": SECRET, "namespace": "team", "ownerReferences": [owner]}, "data": {"token": "b2xk", "ca.crt": "b2xk"}}
        scene.api.create(SECRETS, left, actor="another controller")
        await scene.until_quiet()
        assert scene.well_begun == [True, True]
        assert scene.token != "b2xk"
        assert [write.verb for write in scene.writes if write.resource == SECRETS] == ["patch"]

    played(story)


class OverSsh(Scene):
    kind = "MPIJob"


def test_the_keys_of_a_job_stay_what_they_are_when_the_controller_dies_before_it_has_said_that_the_job_is_accepted() -> None:
    """A pod that has them already and one that is made later must know each other."""

    async def story() -> None:
        scene = OverSsh()
        job = job_of(KINDS["MPIJob"], {"Launcher": 1, "Worker": 2}, run_policy={})
        job["spec"]["mpiTransport"] = "SSH"
        scene.api.create(JOBS["MPIJob"], job, actor="user")
        await asyncio.sleep(PATIENCE_S / 2)
        scene.controller.kill()
        assert scene.conditions(NAME) == []
        made, first = {"ssh-privatekey": "first", "ssh-publickey": "first"}, scene.api.all(PODS)
        assert first
        scene.api.change(SECRETS, f"{NAME}-ssh", lambda secret: secret.update(data=made))
        scene.restart()
        await scene.until_quiet()
        assert scene.api.get(SECRETS, f"{NAME}-ssh")["data"] == made
        assert {pod["metadata"]["uid"] for pod in first} <= {pod["metadata"]["uid"] for pod in scene.api.all(PODS)}
        assert scene.conditions(NAME) == ["MPIJobCreated", "MPIJobRunning"]

    sim_time.run(story())


def test_a_secret_that_a_container_waits_for_is_made_again() -> None:
    """A container that is started again in its pod reads the Secret again."""

    async def story(scene: Secretive) -> None:
        await scene.begin()
        token = scene.token
        _spoil(scene, "deleted")
        waiting = [{"name": "pytorch", "state": {"waiting": {"reason": "CreateContainerConfigError"}}}]
        worker = scene.cluster.running()[0]["metadata"]["name"]
        scene.api.change(PODS, worker, lambda pod: pod["status"].update(containerStatuses=waiting))
        await asyncio.sleep(5.0)
        assert scene.token == token != ""
        assert len(scene.well_begun) == 2

    played(story)


@pytest.mark.parametrize("damage", ["deleted", "changed"])
def test_a_secret_that_somebody_spoiled_is_mended_by_the_next_controller(damage: str) -> None:
    async def story(scene: Secretive) -> None:
        await scene.begin()
        token = scene.token
        _spoil(scene, damage)
        scene.restart()
        await scene.until_quiet()
        assert scene.token == token != ""
        assert len(scene.well_begun) == 2

    played(story)


def test_a_strangers_secret_goes_into_no_pod_and_the_job_begins_when_it_is_gone() -> None:
    async def story(scene: Secretive) -> None:
        stranger = {"metadata": {"name": SECRET, "namespace": "team"}, "data": {"token": "bXkgb3du"}}
        scene.api.create(SECRETS, stranger, actor="user")
        await scene.begin()
        assert scene.api.all(PODS) == []
        assert scene.token == "bXkgb3du"
        (event,) = [event for event in scene.api.all(EVENTS) if event["reason"] == "FailedCreateSecret"]
        assert event["message"] == f"Error creating: secrets {SECRET} already exists"
        scene.api.remove(SECRETS, SECRET)
        await scene.until_quiet()
        assert scene.well_begun == [True, True]

    played(story)


def _spoil(scene: Secretive, damage: str) -> None:
    if damage == "deleted":
        scene.api.remove(SECRETS, SECRET)
    else:
        scene.api.change(SECRETS, SECRET, lambda secret: secret["data"].update(token="c3BvaWxlZA=="))


def test_a_secret_that_may_not_be_read_is_said_once_and_asked_for_ever_less_often() -> None:
    async def story(scene: Secretive) -> None:
        await scene.begin()
        scene.restart()
        scene.controller.kube.forbidden = SECRETS
        await asyncio.sleep(600.0)
        said = [event for event in scene.api.all(EVENTS) if event["reason"] == "FailedGetSecret"]
        assert len(said) == 1
        assert SECRET in said[0]["message"]
        assert len(scene.reads) < 25
        assert "It waits for the right to read its Secret: " in _state(scene)["message"]
        scene.controller.kube.forbidden = None
        await asyncio.sleep(120.0)
        assert scene.reads.count(SECRET) == len(scene.reads)
        assert scene.token
        assert "right to read" not in _state(scene)["message"]

    played(story)


def _state(scene: Secretive) -> Object:
    """Return the last condition."""
    return scene.api.get(JOBS[KIND], NAME)["status"]["conditions"][-1]
