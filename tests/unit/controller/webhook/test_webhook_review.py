"""The webhook judges a job that somebody creates or changes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from arbitrary_json import anything, places, planted
from hypothesis import given
from hypothesis import strategies as st
from written_jobs import job, job_names, merged, mistakes

from elastic.api import KINDS, kind_of
from elastic_training.controller.webhook.answers import LONGEST_WARNING, MOST_TOLD, AdmissionKind, Request, Response
from elastic_training.controller.webhook.review import answer

ELASTIC = {"spec": {"elasticPolicy": {"minReplicas": 2, "maxReplicas": 3}, "pytorchReplicaSpecs": {"Worker": {"replicas": 3}}}}
NINE = {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 9}}}}
SUSPENDED = {"spec": {"runPolicy": {"suspend": True}}}


def elastic_job(*patches: dict[str, Any]) -> dict[str, Any]:
    made = job("pytorch-smallest", {"metadata": {"name": "j", "namespace": "n"}, **ELASTIC})
    for patch in patches:
        made = merged(made, patch)
    return made


def asked(new: Any, old: Any = None, *, kinds: Any = KINDS, namespace: str | None = None, **facts: Any) -> Response:
    kind = new["kind"] if isinstance(new, dict) and isinstance(new.get("kind"), str) else "PyTorchJob"
    operation = "CREATE" if old is None else "UPDATE"
    given = {"uid": "u", "name": "j", "namespace": "n", "operation": operation, "object": new, "old_object": old} | facts
    request = Request(kind=AdmissionKind("kubeflow.org", "v1", kind), **given)
    said = answer(request, kinds=kinds, namespace=namespace).response
    assert said.uid == "u"
    return said


def test_a_bad_job_is_refused_with_every_problem_and_its_field():
    said = asked(elastic_job(NINE, {"spec": {"runPolicy": {"backoffLimit": -1}}}))
    assert not said.allowed
    assert said.status is not None
    assert (said.status.code, said.status.reason) == (422, "Invalid")
    assert {cause.field for cause in said.status.details.causes} == {
        "spec.runPolicy.backoffLimit",
        "spec.pytorchReplicaSpecs.Worker.replicas",
    }
    assert "spec.pytorchReplicaSpecs.Worker.replicas: Worker.replicas is 9 but maxReplicas is 3" in said.status.message


def test_every_known_mistake_is_refused_at_the_door_as_it_is_by_validate():
    for mistake in mistakes():
        if kind_of(mistake.job) is None:
            continue  # no API server would ask us about it
        said = asked(mistake.job)
        text = said.status.message if said.status is not None else ""
        assert not said.allowed, mistake.name
        assert all(line in text for line in mistake.says), mistake.name


@pytest.mark.parametrize("name", job_names())
def test_good_jobs_come_in(name: str):
    assert asked(job(name)).allowed


def test_warnings_go_with_a_job_that_comes_in():
    said = asked(elastic_job({"spec": {"elasticPolicy": {"minReplica": 1}}}))
    assert said.allowed
    assert said.warnings == ("spec.elasticPolicy.minReplica: unknown field, it has no effect; did you mean minReplicas?",)


def test_warnings_are_few_and_short():
    unknown = {f"nothing{n}": 1 for n in range(100)} | {"x" * 600: 1}
    said = asked(elastic_job({"spec": unknown}))
    assert said.allowed
    assert len(said.warnings) == MOST_TOLD
    assert all(len(warning) <= LONGEST_WARNING for warning in said.warnings)


def test_problems_without_number_are_told_in_short():
    containers = [{"name": f"c{n}", "image": 1} for n in range(100)]
    said = asked(elastic_job({"spec": {"pytorchReplicaSpecs": {"Worker": {"template": {"spec": {"containers": containers}}}}}}))
    assert said.status is not None
    assert len(said.status.details.causes) == MOST_TOLD
    assert "more problems" in said.status.message


def test_a_job_stored_with_more_problems_than_are_told_of_can_be_mended_in_steps():
    def with_ports(count: int) -> dict[str, Any]:
        container = {"name": "pytorch", "image": "x", "ports": [{"containerPort": 70_000 + i} for i in range(count)]}
        return elastic_job({"spec": {"pytorchReplicaSpecs": {"Worker": {"template": {"spec": {"containers": [container]}}}}}})

    mended = with_ports(200)
    mended["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"] = 1
    said = asked(mended, with_ports(200))
    assert said.allowed
    assert "a port is between 1 and 65535" in said.warnings[0]
    assert not asked(with_ports(200), elastic_job()).allowed
    assert not asked(with_ports(30), with_ports(20)).allowed


def test_an_update_that_makes_a_job_wrong_is_refused():
    assert not asked(elastic_job(NINE), elastic_job()).allowed


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"finalizers": ["x/y"]}},
        {"metadata": {"labels": {"a": "b"}}},
        {"status": {"conditions": []}},
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, **SUSPENDED},
    ],
)
def test_a_job_stored_broken_is_not_held_by_what_does_not_concern_its_spec_or_by_its_end(change: dict[str, Any]):
    assert asked(elastic_job(NINE, change), elastic_job(NINE)) == Response("u", True)


def test_a_job_stored_broken_can_be_suspended_and_its_author_hears_what_is_wrong():
    said = asked(elastic_job(NINE, SUSPENDED), elastic_job(NINE))
    assert said.allowed
    assert "Worker.replicas is 9 but maxReplicas is 3" in said.warnings[0]


def test_a_job_stored_broken_must_not_get_worse():
    ten = {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 10}}}}
    assert not asked(elastic_job(ten), elastic_job(NINE)).allowed


@pytest.mark.parametrize(
    "facts",
    [
        {"kinds": ["TFJob"]},
        {"namespace": "elsewhere"},
        {"sub_resource": "status"},
        {"operation": "DELETE"},
        {"kind_asked": AdmissionKind("kubeflow.org", "v2beta1", "PyTorchJob")},
    ],
)
def test_jobs_of_others_are_admitted(facts: dict[str, Any]):
    if kind := facts.pop("kind_asked", None):
        request = Request(uid="u", kind=kind, operation="CREATE", object=elastic_job(NINE))
        assert answer(request, kinds=KINDS, namespace=None).response.allowed
        return
    assert asked(elastic_job(NINE), **facts) == Response("u", True)


@given(st.data())
def test_every_request_gets_an_answer_and_an_unchanged_spec_is_never_refused(data: st.DataObject):
    good = elastic_job()
    at = data.draw(st.sampled_from([("spec", *place) for place in places(good["spec"])]))
    odd = planted(good, at, data.draw(anything))
    said = asked(odd)
    assert said.allowed == (said.status is None)
    msgspec.json.encode(said)
    assert asked(odd, odd).allowed
    assert asked(merged(odd, {"metadata": {"labels": {"x": "y"}}}), odd).allowed
