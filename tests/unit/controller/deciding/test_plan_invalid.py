"""Check the status of a stored job that is invalid, and that an invalid job of another manager gets none."""

from datetime import timedelta
from typing import Any

import pytest
from job_builders import NOW, replica

from elastic.api import SpecError, parse, status_of
from elastic.api.kinds import KINDS
from elastic_training.controller.deciding.actions import DeleteJob, Plan
from elastic_training.controller.deciding.lifecycle.invalid import plan_for_invalid

Object = dict[str, Any]


def planned(*, status: Any = None, **policy: Any) -> Plan:
    """Return the plan for a job whose worker count is a word."""
    workers = {**replica(1), "replicas": "many"}
    job: Object = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "train", "namespace": "team", "uid": "u"},
        "spec": {"pytorchReplicaSpecs": {"Worker": workers}, "runPolicy": policy},
        "status": status,
    }
    with pytest.raises(SpecError) as caught:
        parse(job, stored=True)
    return plan_for_invalid(KINDS["PyTorchJob"], job, status=status_of(job), problems=caught.value.problems, now=NOW)


@pytest.mark.parametrize(
    "status",
    [
        None,
        {},
        {"conditions": None, "replicaStatuses": None},
        {"replicaStatuses": {"Worker": None}, "phase": "Running"},
        {"conditions": "many"},
    ],
)
def test_a_broken_job_has_failed_with_its_problems_after_any_status(status: Any) -> None:
    found = planned(status=status)
    assert found.status is not None
    assert [c.type for c in found.status.conditions] == ["Created", "Failed"]
    assert "Worker.replicas" in found.status.conditions[1].message
    assert found.status.completion_time == NOW
    assert found.actions == ()
    assert [news.reason for news in found.news] == ["InvalidSpec"]


def test_an_empty_manager_is_a_mistake_and_not_silence() -> None:
    found = planned(managedBy="")
    assert found.status is not None
    assert "managedBy" in found.status.conditions[1].message


@pytest.mark.parametrize("manager", ["kueue.x-k8s.io/multikueue", "example.com/another-operator"])
def test_nothing_is_said_about_an_invalid_job_that_another_controller_manages(manager: str) -> None:
    assert planned(managedBy=manager) == Plan()


FAILED = {"conditions": [{"type": "Failed", "status": "True"}], "completionTime": "2026-01-01T12:00:00Z"}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"ttlSecondsAfterFinished": 0}, Plan((DeleteJob(),))),
        ({"ttlSecondsAfterFinished": 60}, Plan(look_again_at=NOW + timedelta(seconds=60))),
        ({"ttlSecondsAfterFinished": 0, "suspend": True}, Plan()),
        ({"ttlSecondsAfterFinished": "soon"}, Plan()),
        ({}, Plan()),
    ],
)
def test_a_finished_broken_job_goes_when_its_time_has_come(policy: dict[str, Any], expected: Plan) -> None:
    assert planned(status=FAILED, **policy) == expected
