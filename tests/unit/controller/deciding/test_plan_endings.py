"""The pods that are left of a finished job, and the deletion of the job itself."""

from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest
from job_builders import NOW, PLAIN, Cluster, deleted, elastic_job, job, reasons, replica, snapshot, with_status
from job_builders import pod as a_pod

from elastic.api.job import JobStatus
from elastic_training.controller.deciding.actions import DeleteJob
from elastic_training.controller.deciding.plan import plan
from elastic_training.controller.facts.snapshot import PodPhase


def over(cluster: Cluster) -> Cluster:
    """Let all running pods finish their work."""
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    for name in cluster.names():
        cluster.set(name, PodPhase.SUCCEEDED, code=0)
    cluster.settle()
    return cluster


def test_workers_that_never_began_go_when_an_elastic_job_has_succeeded_and_the_others_keep_their_logs() -> None:
    cluster = Cluster(elastic_job(3))
    cluster.settle()
    cluster.run_all()
    cluster.pods["train-worker-2"] = replace(cluster.pods["train-worker-2"], phase=PodPhase.PENDING, is_ready=False)
    cluster.settle()
    for name in ("train-worker-0", "train-worker-1"):
        cluster.set(name, PodPhase.SUCCEEDED, code=0)
    cluster.settle()
    assert cluster.state() == "Succeeded"
    assert cluster.names() == ["train-worker-0", "train-worker-1"]
    assert sorted(cluster.services) == cluster.names()


def test_pods_of_a_static_job_are_kept_in_any_phase() -> None:
    cluster = Cluster(job(Master=replica(), Worker=replica(1)))
    cluster.settle()
    cluster.set("train-master-0", PodPhase.SUCCEEDED, code=0)
    cluster.settle()
    assert cluster.names() == ["train-master-0", "train-worker-0"]
    assert cluster.pods["train-worker-0"].phase is PodPhase.PENDING


@pytest.mark.parametrize("type", ["Succeeded", "Failed"])
def test_a_job_that_ended_without_a_completion_time_goes_by_the_time_of_its_end(type: str) -> None:
    word = NOW.isoformat().replace("+00:00", "Z")
    ended = {"type": type, "status": "True", "lastTransitionTime": word, "lastUpdateTime": word}
    status = msgspec.convert({"conditions": [ended], "startTime": word}, JobStatus)
    one = with_status(job(Worker=replica(1), policy={"ttlSecondsAfterFinished": 60}), status)
    assert plan(one, snapshot(after_s=59)).look_again_at == NOW + timedelta(seconds=60)
    assert DeleteJob() in plan(one, snapshot(after_s=60)).actions


def test_a_service_whose_deletion_failed_goes_later() -> None:
    cluster = over(Cluster(job(Worker=replica(2), policy={"cleanPodPolicy": "All"})))
    assert cluster.services == {}
    cluster = Cluster(job(Worker=replica(2), policy={"cleanPodPolicy": "All"}))
    cluster.settle()
    left = dict(cluster.services)
    cluster = over(cluster)
    cluster.services = left
    cluster.settle()
    assert cluster.services == {}


@pytest.mark.parametrize("by_deadline", [False, True])
def test_the_end_of_a_gang_is_told_once_for_its_pod_group(by_deadline: bool) -> None:
    settings = replace(PLAIN, gang_scheduler="scheduler-plugins-scheduler")
    cluster = Cluster(job(Worker=replica(1), policy={"activeDeadlineSeconds": 60}), settings=settings)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    if by_deadline:
        cluster.now = NOW + timedelta(seconds=60)
    else:
        cluster.set("train-worker-0", PodPhase.SUCCEEDED, code=0)
    assert reasons(cluster.settle()).count("JobTerminated") == 1
    assert ("PodGroup", "train") not in cluster.owned
    assert "JobTerminated" not in reasons([cluster.round()])


def test_a_finished_job_is_left_alone_by_scaling_suspending_and_lost_pods() -> None:
    done = over(Cluster(job(Worker=replica(2)))).job.status
    for changed in (job(Worker=replica(3), status=done), job(Worker=replica(2), policy={"suspend": True}, status=done)):
        planned = plan(changed, snapshot(a_pod(index=0, phase=PodPhase.SUCCEEDED)))
        assert planned.status is None
        assert deleted(planned) == []
        assert planned.news == ()
