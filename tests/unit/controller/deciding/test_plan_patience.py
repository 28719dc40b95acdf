"""Some changes of a job's status may wait a moment; the others never do."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_builders import NOW, Cluster, elastic_job, job, replica

from elastic.api.job import JobStatus, ReplicaStatus
from elastic.kube.resources import PODS
from elastic_training.controller.acting import status_debounce
from elastic_training.controller.acting.status_debounce import PATIENCE_S, PendingStatus, believed, can_wait, held_back
from elastic_training.controller.deciding.actions import Delete, Plan, normal
from elastic_training.controller.facts.snapshot import PodPhase

STATIC = job(Master=replica(), Worker=replica(2))
COUNTED = JobStatus(start_time=NOW, replica_statuses={"Worker": ReplicaStatus(active=1)})


def settled(cluster: Cluster) -> Cluster:
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    return cluster


def waits(cluster: Cluster) -> bool:
    """Return whether the result of the next look can wait."""
    stored, planned = cluster.job.status, cluster.round()
    return held_back(None, cluster.job, planned, stored=stored, now=0.0) is not None


def test_that_a_job_is_accepted_waits_for_its_pods_to_run() -> None:
    cluster = Cluster(STATIC)
    assert waits(cluster)
    cluster.settle()
    cluster.job = msgspec.structs.replace(cluster.job, status=JobStatus())
    cluster.run_all()
    assert not waits(cluster), "all run: there is nothing more to wait for"


def test_that_a_job_runs_waits_for_the_rest_of_its_pods() -> None:
    cluster = Cluster(STATIC)
    cluster.settle()
    cluster.set("train-master-0", PodPhase.RUNNING)
    assert waits(cluster)
    assert cluster.state() == "Running"


def test_the_end_of_a_pod_that_decides_nothing_waits_and_that_of_the_head_does_not() -> None:
    cluster = settled(Cluster(STATIC))
    cluster.set("train-worker-0", PodPhase.SUCCEEDED, code=0)
    assert waits(cluster)
    cluster.set("train-master-0", PodPhase.SUCCEEDED, code=0)
    assert not waits(cluster)
    assert cluster.state() == "Succeeded"


def failed(cluster: Cluster) -> None:
    cluster.set("train-worker-0", PodPhase.FAILED, code=1)


def too_late(cluster: Cluster) -> None:
    policy = msgspec.structs.replace(cluster.job.run_policy, active_deadline_seconds=60)
    cluster.job = msgspec.structs.replace(cluster.job, run_policy=policy)
    cluster.now += timedelta(seconds=61)


def suspended(cluster: Cluster) -> None:
    cluster.job = msgspec.structs.replace(cluster.job, run_policy=msgspec.structs.replace(cluster.job.run_policy, suspend=True))


@pytest.mark.parametrize("happens", [failed, too_late, suspended])
def test_fields_that_others_act_on_never_wait(happens: Callable[[Cluster], None]) -> None:
    cluster = settled(Cluster(STATIC))
    happens(cluster)
    assert not waits(cluster)


def test_a_job_made_again_after_a_suspension_says_at_once_that_it_is_resumed() -> None:
    cluster = Cluster(job(Worker=replica(2), policy={"suspend": True}))
    assert not waits(cluster)
    cluster.job = msgspec.structs.replace(cluster.job, run_policy=msgspec.structs.replace(cluster.job.run_policy, suspend=False))
    assert not waits(cluster)


def test_nothing_of_an_elastic_job_waits() -> None:
    assert not waits(Cluster(elastic_job()))


def test_news_of_a_pod_that_goes_in_this_round_is_told_in_this_round() -> None:
    going = Plan((Delete(PODS, "train-worker-2", "uid"),), COUNTED)
    assert held_back(None, STATIC, going, stored=JobStatus(), now=0.0) is None


def test_news_waits_with_the_status_unless_it_comes_of_what_the_round_does() -> None:
    told = normal("ExitedWithCode", "Pod: team.train-worker-0 exited with code 0")
    quiet = Plan(status=COUNTED, news=(told,))
    assert status_debounce.without_what_waits(quiet) == Plan()
    busy = replace(quiet, actions=(Delete(PODS, "train-worker-2", "uid"),))
    assert status_debounce.without_what_waits(busy).news == (told,)


def test_the_start_of_a_job_stays_where_it_was_while_it_is_held_back() -> None:
    cluster = Cluster(STATIC)
    stored, planned = cluster.job.status, cluster.round()
    held = held_back(None, cluster.job, planned, stored=stored, now=0.0)
    cluster.now += timedelta(seconds=1)
    cluster.run_all()
    cluster.job = msgspec.structs.replace(cluster.job, status=believed(held, uid="job-uid", stored=stored))
    written = cluster.round().status
    assert written is not None
    assert written.start_time == NOW
    assert [(c.type, c.last_transition_time) for c in written.conditions] == [("Created", NOW), ("Running", cluster.now)]


@pytest.mark.parametrize(("uid", "stored"), [("another", JobStatus()), ("job-uid", COUNTED)])
def test_held_back_changes_are_forgotten_with_the_job_and_with_their_status(uid: str, stored: JobStatus) -> None:
    held = PendingStatus("job-uid", JobStatus(), msgspec.structs.replace(COUNTED, completion_time=NOW), until=1.0)
    assert believed(held, uid=uid, stored=stored) == stored


@given(st.lists(st.tuples(st.floats(0.001, 2.0), st.integers(0, 3)), min_size=1, max_size=30))
def test_a_change_waits_no_longer_because_of_later_ones(looks: list[tuple[float, int]]) -> None:
    held, stored, now, since = None, JobStatus(), 0.0, None
    for pause_s, active in looks:
        now += pause_s
        status = JobStatus(start_time=NOW, replica_statuses={"Worker": ReplicaStatus(active=active)})
        held = held_back(held, STATIC, Plan(status=status), stored=stored, now=now)
        if held is None:
            stored, since = status, None
        else:
            since = now if since is None else since
            assert now < since + PATIENCE_S
            assert held.until <= since + PATIENCE_S
            assert can_wait(STATIC, stored, held.status)
