"""In a namespace that is being deleted nothing is created any more, once the API server has said so."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from elastic.api.job import Condition, JobStatus
from elastic.kube.errors import KubeError
from elastic.kube.resources import PODS, SERVICES, Object, Resource
from elastic.runtime.terminating import PAUSE_S, ConsiderateWriter, is_terminating
from elastic_training.autoscale.acting.scaler import Scaler
from elastic_training.autoscale.deciding.jobs import JobName, ScaledJob
from elastic_training.controller.acting.apply import Applier
from elastic_training.controller.acting.event_recorder import EventRecorder
from elastic_training.controller.deciding.actions import Create, Delete, Plan, normal
from elastic_training.controller.facts.keys import Key

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = Key("PyTorchJob", "team", "train")
RUNNING = JobStatus(conditions=(Condition(type="Running", status="True"),))


def job(uid: str) -> Object:
    metadata = {"name": "train", "namespace": "team", "uid": uid, "resourceVersion": "1", "generation": 1}
    return {"kind": "PyTorchJob", "metadata": metadata}


def owned(name: str, uid: str) -> Object:
    labels = {"training.kubeflow.org/replica-type": "worker"}
    return {"metadata": {"name": name, "labels": labels, "ownerReferences": [{"uid": uid, "controller": True}]}}


class Kube:
    """An API server with one namespace."""

    def __init__(self) -> None:
        self.is_terminating = True
        self.uid = "old"
        self.asked: list[str] = []
        self.deleted: list[str] = []
        self.patched: list[Any] = []

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> Object:
        return job(self.uid)

    async def create(self, resource: Resource, body: Object, *, namespace: str | None = None) -> Object:
        self.asked.append(resource.plural)
        if self.is_terminating:
            cause = {"reason": "NamespaceTerminating", "message": "namespace team is being terminated", "field": "metadata.namespace"}
            message = "unable to create new content in namespace team because it is being terminated"
            raise KubeError(code=403, reason="Forbidden", message=message, body={"details": {"causes": [cause]}})
        return {**body, "metadata": {**body["metadata"], "uid": "made", "resourceVersion": "2"}}

    async def patch(self, resource: Resource, name: str, body: Any, **_: Any) -> Object:
        self.patched.append(body)
        return {"metadata": {"resourceVersion": "3"}}

    async def delete(self, resource: Resource, name: str, **_: Any) -> Object:
        self.deleted.append(name)
        return {"metadata": {}}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class World:
    """The controller's applier before such an API server."""

    def __init__(self) -> None:
        self.kube, self.clock = Kube(), Clock()
        writer = ConsiderateWriter(self.kube, clock=self.clock)
        self.applier = Applier(writer, EventRecorder(writer), None)

    async def reconcile(self, uid: str = "old", *, pods: int = 1) -> Any:
        self.kube.uid = uid
        made = [Create(PODS, owned(f"train-worker-{index}", uid)) for index in range(pods)]
        news = (normal("PyTorchJobRunning", "it runs"),)
        actions = (*made, Create(SERVICES, owned("train-worker-0", uid)), Delete(PODS, "train-worker-9", "uid-9"))
        return await self.applier.carry_out(KEY, job(uid), Plan(actions, RUNNING, news), old=JobStatus(), now=NOW)


async def test_a_job_asks_no_more_after_the_first_refusal() -> None:
    """The deletion of a namespace with 14 jobs took minutes, in which 806 requests were refused."""
    world = World()
    await world.reconcile()
    first = len(world.kube.asked)
    outcome = await world.reconcile()
    for _ in range(20):
        await world.reconcile(pods=9)
    assert len(world.kube.asked) == first, "neither pods nor services nor Events"
    assert outcome.is_terminating
    assert (outcome.errors, outcome.not_created) == ([], [])
    assert "FailedCreatePod" not in [event.reason for event in outcome.news]


async def test_objects_are_still_deleted_and_the_status_is_still_written() -> None:
    world = World()
    for _ in range(2):
        outcome = await world.reconcile()
    assert world.kube.deleted == ["train-worker-9"] * 2
    assert outcome.status == RUNNING


async def test_one_request_asks_again_after_the_pause() -> None:
    world = World()
    await world.reconcile()
    first = len(world.kube.asked)
    world.clock.now += PAUSE_S + 1
    await world.reconcile(pods=9)
    assert len(world.kube.asked) == first + 1
    world.kube.is_terminating = False
    world.clock.now += PAUSE_S + 1
    await world.reconcile(pods=9)
    outcome = await world.reconcile(pods=9)
    assert not outcome.is_terminating


async def test_a_job_of_a_new_namespace_of_that_name_does_not_wait() -> None:
    world = World()
    await world.reconcile("old")
    world.kube.is_terminating = False
    await world.reconcile("new")
    outcome = await world.reconcile("new")
    assert not outcome.is_terminating
    assert not outcome.errors


async def test_each_other_job_of_the_namespace_asks_once() -> None:
    world = World()
    await world.reconcile("old")
    first = len(world.kube.asked)
    for _ in range(5):
        for uid in ("a", "b", "c"):
            await world.reconcile(uid, pods=9)
    assert len(world.kube.asked) == first + 3


async def test_the_autoscaler_writes_no_events_there_either(caplog: pytest.LogCaptureFixture) -> None:
    kube = Kube()
    scaler = Scaler(kube, None)  # type: ignore[arg-type]
    seen = cast(ScaledJob, SimpleNamespace(key=JobName(*KEY), uid="old", version="1"))
    for at in range(5):
        await scaler.warn(seen, f"trouble {at}", now=float(at))
    assert len(kube.asked) == 1
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize(
    ("code", "body"),
    [(403, {}), (403, {"details": None}), (403, {"details": {"causes": "x"}}), (403, {"details": {"causes": [None, {}]}}), (409, {})],
)
def test_another_refusal_says_nothing_about_the_namespace(code: int, body: dict[str, Any]) -> None:
    assert not is_terminating(KubeError(code=code, reason="Forbidden", message="no", body=body))
