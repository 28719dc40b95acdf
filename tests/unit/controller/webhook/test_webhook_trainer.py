"""The webhook refuses what Kubeflow Trainer's webhook refuses, and TrainJobs that the controller would not carry out."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from arbitrary_json import anything, places, planted
from hypothesis import given, settings
from hypothesis import strategies as st
from train_job_builders import runtime, train_job
from train_job_reviews import fields, request, said

from elastic.api.job import Object
from elastic.api.kinds import KINDS
from elastic.api.trainer.modes import LABEL, VALUE, Mode
from elastic.api.trainer.train_job import MULTI_KUEUE
from elastic.kube.errors import KubeError
from elastic_training.controller.deciding.trainjobs.admission import RuntimeSight
from elastic_training.controller.webhook.answers import Response
from elastic_training.controller.webhook.judges import Judges, command
from elastic_training.controller.webhook.review import answer

NODES = "spec.template.spec.replicatedJobs[0]"


def patch(name: str = "node", manager: str = "a.io/b", **pod: Any) -> Object:
    jobs = [{"name": name, "template": {"spec": {"template": {"spec": pod}}}}]
    return {"manager": manager, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}}}


def changed(found: Object, **job: Any) -> Object:
    """Return the runtime with these fields of the nodes' job."""
    found["spec"]["template"]["spec"]["replicatedJobs"][0].update(job)
    return found


def test_a_train_job_that_can_be_carried_out_comes_in() -> None:
    assert said(train_job()) == Response("u", True)
    assert said(train_job(), train_job(suspend=True)) == Response("u", True)


@pytest.mark.parametrize(
    ("spec", "field", "words"),
    [
        ({"runtimeRef": {"name": "x", "kind": "Odd"}}, "spec.runtimeRef", "unsupported runtime: Odd"),
        ({"runtimePatches": [patch(manager="odd")]}, "spec.runtimePatches[0].manager", 'manager is "odd"; it must be a domain and a path'),
        (
            {"runtimePatches": [patch("launcher")]},
            "spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0].name",
            'the runtime has no job "launcher"; it has node',
        ),
        ({"trainer": {"env": [{"name": "PET_NNODES", "value": "4"}]}}, "spec.trainer.env", "reserved envs"),
        ({"trainer": {"numNodes": 0}}, "spec.trainer.numNodes", "numNodes is 0; at least 1 is needed"),
    ],
)
def test_a_train_job_that_upstream_refuses_is_refused_with_the_field(spec: Object, field: str, words: str) -> None:
    found = fields(said(train_job(**spec)))
    assert words in found[field]


def test_a_train_job_without_its_runtime_is_refused_only_if_that_is_certain() -> None:
    found = fields(said(train_job(), sight=RuntimeSight(is_known=True)))
    assert found == {"spec.runtimeRef": "ClusterTrainingRuntime torch-distributed does not exist; create it or name another"}
    assert said(train_job(), sight=RuntimeSight()).allowed
    assert "spec.runtimeRef" in fields(said(train_job(runtimeRef={"name": "x", "kind": "Odd"}), sight=RuntimeSight()))


def test_the_runtime_is_looked_up_in_the_namespace_of_the_train_job() -> None:
    asked: list[tuple[str, ...]] = []

    def look_up(*key: str) -> RuntimeSight:
        asked.append(key)
        return RuntimeSight()

    for kind in ("TrainingRuntime", "ClusterTrainingRuntime"):
        job = train_job(runtimeRef={"name": "own", "kind": kind})
        answer(request(job), kinds=KINDS, namespace=None, mode=Mode.INSTEAD, look_up=look_up)
    assert asked == [("TrainingRuntime", "team", "own"), ("ClusterTrainingRuntime", "", "own")]


def test_an_update_is_refused_for_new_problems_only() -> None:
    broken = train_job(trainer={"env": [{"name": "PET_NNODES", "value": "4"}]})
    assert said(broken | {"spec": broken["spec"] | {"suspend": True}}, broken).allowed
    assert not said(broken, train_job()).allowed


@pytest.mark.parametrize(
    ("before", "after", "allowed"), [(False, False, False), (True, True, True), (True, False, True), (False, True, True)]
)
def test_patches_change_only_while_or_when_a_train_job_is_suspended(before: bool, after: bool, allowed: bool) -> None:
    new = train_job(suspend=after, runtimePatches=[patch(nodeSelector={"pool": "a"})])
    response = said(new, train_job(suspend=before))
    assert response.allowed == allowed
    assert allowed or list(fields(response)) == ["spec.runtimePatches"]
    timed = train_job(runtimePatches=[patch() | {"time": "2026-01-01T00:00:00Z"}])
    assert said(timed | {"spec": timed["spec"] | {"activeDeadlineSeconds": 9}}, train_job(runtimePatches=[patch()])).allowed


@pytest.mark.parametrize("kind", ["TrainingRuntime", "ClusterTrainingRuntime"])
def test_a_runtime_that_upstream_refuses_is_refused_with_the_field(kind: str) -> None:
    two = changed(runtime(), replicas=2) | {"kind": kind}
    assert "replicas is 2" in fields(said(two))[f"{NODES}.replicas"]
    nameless = runtime(pod={"containers": [{"name": "main", "image": "a"}]}) | {"kind": kind}
    at = f"{NODES}.template.spec.template.spec.containers"
    assert fields(said(nameless)) == {
        at: "the containers are main, but a job with the label trainer.kubeflow.org/trainjob-ancestor-step: trainer "
        "needs a container node; name one so"
    }
    assert said(nameless, changed(nameless | {}, replicas=1)).allowed, "it was so before"
    nameless["metadata"]["labels"]["trainer.kubeflow.org/webhook-validation"] = "disabled"
    assert said(nameless).allowed


def test_a_runtime_that_only_upstream_carries_out_comes_in_with_a_warning() -> None:
    response = said(runtime({"numNodes": 1, "flux": {}}))
    assert response.allowed
    assert any("flux" in words and "TrainJobs of this runtime are refused" in words for words in response.warnings), response.warnings
    old = runtime()
    old["metadata"]["labels"]["trainer.kubeflow.org/support"] = "deprecated"
    assert [words for words in said(old).warnings if "is deprecated" in words]
    assert [words for words in said(train_job(), sight=RuntimeSight(old, is_known=True)).warnings if "is deprecated" in words]
    assert said(runtime()) == Response("u", True)


def test_objects_that_another_controller_serves_pass() -> None:
    bad: Object = {"trainer": {"numNodes": 0}}
    theirs, asking = train_job(**bad), train_job(**bad, managedBy=MULTI_KUEUE)
    asking["metadata"]["labels"] = {LABEL: VALUE}
    assert [said(theirs, mode=mode).allowed for mode in Mode] == [True, False, True]
    assert [said(asking, mode=mode).allowed for mode in Mode] == [True, False, False]
    assert said(train_job(**bad, managedBy=MULTI_KUEUE)).allowed
    assert said(changed(runtime(), replicas=2), mode=Mode.BESIDE).allowed
    assert said(theirs, operation="DELETE").allowed
    assert said(theirs, sub_resource="status").allowed


@settings(max_examples=200)
@given(st.data())
def test_every_request_gets_an_answer(data: st.DataObject) -> None:
    good = data.draw(st.sampled_from([train_job(runtimePatches=[patch()]), runtime()]))
    odd = planted(good, data.draw(st.sampled_from([("spec", *place) for place in places(good["spec"])])), data.draw(anything))
    msgspec.json.encode(said(odd))
    assert said(odd, odd).allowed


async def judged(look_up: Any, new: Object) -> bool:
    body = msgspec.json.encode({"request": msgspec.to_builtins(request(new))})
    judges = Judges(command(kinds=KINDS, namespace=None, mode=Mode.INSTEAD), look_up=look_up, size=1, limit_s=30, wait_s=60)
    async with judges.running():
        return (await judges.judge(body, address="a")).allowed


async def test_a_judge_asks_the_controller_for_the_runtime_and_does_without_one_that_it_cannot_get() -> None:
    asked: list[tuple[str, ...]] = []

    async def absent(*key: str) -> RuntimeSight:
        asked.append(key)
        return RuntimeSight(is_known=True)

    async def there(*key: str) -> RuntimeSight:
        return RuntimeSight(runtime({"numNodes": 1, "flux": {}}), is_known=True)

    async def down(*key: str) -> RuntimeSight:
        raise KubeError(code=0, reason="Unreachable", message="down")

    async def silent(*key: str) -> RuntimeSight:
        await asyncio.Event().wait()
        raise AssertionError

    assert [await judged(look_up, train_job()) for look_up in (absent, there, down, silent, None)] == [False, False, True, True, True]
    assert asked == [("ClusterTrainingRuntime", "", "torch-distributed")]
