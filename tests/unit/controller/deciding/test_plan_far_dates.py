"""Dates and numbers of seconds as far away as fields hold: such a job is looked after like any other."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from job_builders import NOW, elastic_job, pod, replica, snapshot, with_status
from job_builders import job as plain_job

from elastic.api.book import Refusal, Rescale
from elastic.api.job import Condition, ElasticStatus, JobStatus
from elastic_training.controller.deciding.derivation import derive
from elastic_training.controller.deciding.lifecycle import gang_restart
from elastic_training.controller.deciding.moments import after
from elastic_training.controller.deciding.plan import plan
from elastic_training.controller.facts.snapshot import PodPhase

LARGEST = 2**53
FARTHEST = datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize("start", [NOW, FARTHEST])
def test_a_job_with_the_longest_deadline_gets_its_pods(start: datetime) -> None:
    job = plain_job(Worker=replica(2), policy={"activeDeadlineSeconds": LARGEST}, status=JobStatus(start_time=start))
    assert len([a for a in plan(job, snapshot()).actions if getattr(a, "object", {}).get("kind") == "Pod"]) == 2


@pytest.mark.parametrize("end", [NOW, FARTHEST])
def test_a_finished_job_that_stays_for_the_longest_time_is_kept(end: datetime) -> None:
    done = Condition(type="Succeeded", status="True", last_transition_time=end)
    job = plain_job(
        Worker=replica(1), policy={"ttlSecondsAfterFinished": 2**31 - 1}, status=JobStatus(conditions=(done,), completion_time=end)
    )
    assert plan(job, snapshot()).look_again_at == after(end, 2**31 - 1)


def test_a_refusal_with_the_farthest_date_holds_no_pods_back() -> None:
    refusal = Refusal(type="Worker", message="no", count=3, at=FARTHEST, pause_seconds=60)
    job = with_status(elastic_job(2), JobStatus(elastic=ElasticStatus(refused=(refusal,))))
    assert any(getattr(a, "object", {}).get("kind") == "Pod" for a in plan(job, snapshot()).actions)


@pytest.mark.parametrize("changes", [{"at": FARTHEST}, {"phases": {gang_restart.PAUSE: 2**63}}])
def test_no_pause_between_groups_is_longer_than_the_longest(changes: Mapping[str, Any]) -> None:
    last = Rescale(**{"id": "1-gang", "at": NOW, "phases": {gang_restart.PAUSE: 1000}, **changes})
    job = plain_job("JAXJob", Worker=replica(2, kind="JAXJob"), status=JobStatus(elastic=ElasticStatus(generation=1, last_rescale=last)))
    until = gang_restart.pause_until(derive(job, snapshot()))
    assert until is None or until <= NOW + timedelta(seconds=gang_restart.LONGEST_PAUSE_S)


def test_a_pod_whose_grace_ends_at_the_farthest_date_is_waited_for() -> None:
    lost = pod("worker", 0, PodPhase.RUNNING, node="gone", is_deleting=True, gone_by=FARTHEST)
    assert plan(plain_job(Worker=replica(1)), snapshot(lost, sees_nodes=True)).look_again_at is not None


def test_a_date_within_the_limits_is_exact() -> None:
    assert after(NOW, 90) == NOW + timedelta(seconds=90)
