"""Jobs that the Training Operator started, after our controller has taken its place: their pods go on, and who is lost is replaced."""

from __future__ import annotations

import pytest
from job_builders import NOW, OURS, Cluster, elastic_job, job, pod, replica
from msgspec import structs

from elastic.api.job import Job
from elastic_training.controller.facts.snapshot import PodPhase, Service


def taken_over(one: Job, **types: int) -> Cluster:
    """Return a cluster whose pods and Services lack the fields that only we write."""
    cluster = Cluster(one, settings=OURS)
    for type, count in types.items():
        for index in range(count):
            made = pod(type, index)
            cluster.pods[made.name] = made
            cluster.services[made.name] = Service(name=made.name, uid=f"service-{made.name}", owner="job-uid")
    cluster.settle()
    return cluster


def static() -> Job:
    return job(Worker=replica(3, restart="ExitCode"))


def elastic() -> Job:
    """Return a job that the Training Operator has started: it wrote the time."""
    one = elastic_job(3, restart="ExitCode")
    return structs.replace(one, status=structs.replace(one.status, start_time=NOW))


def mpi() -> Job:
    return job("MPIJob", Launcher=replica(1, kind="MPIJob"), Worker=replica(3, kind="MPIJob", restart="ExitCode"))


@pytest.mark.parametrize(
    ("one", "types"),
    [(static(), {}), (elastic(), {}), (mpi(), {"launcher": 1})],
    ids=["static", "elastic", "mpi"],
)
def test_pods_of_the_former_controller_go_on_to_the_jobs_end(one: Job, types: dict[str, int]) -> None:
    cluster = taken_over(one, worker=3, **types)
    before = {name: found.uid for name, found in cluster.pods.items()}
    cluster.settle()
    assert {name: found.uid for name, found in cluster.pods.items()} == before
    assert cluster.state() == "Running"
    for name in before:
        cluster.set(name, PodPhase.SUCCEEDED, code=0)
    cluster.settle()
    assert cluster.state() == "Succeeded"


@pytest.mark.parametrize("one", [static(), elastic()], ids=["static", "elastic"])
def test_a_worker_that_is_lost_later_comes_back_under_its_name_to_its_peers(one: Job) -> None:
    cluster = taken_over(one, worker=3)
    former = cluster.pods["train-worker-1"].uid
    cluster.set("train-worker-1", PodPhase.FAILED, code=137)
    cluster.settle()
    assert sorted(cluster.pods) == ["train-worker-0", "train-worker-1", "train-worker-2"]
    assert cluster.pods["train-worker-1"].uid != former
    assert not cluster.pods["train-worker-1"].group, "it meets those that have no group"


def test_after_a_suspension_the_workers_of_an_elastic_job_meet_at_our_server() -> None:
    cluster = taken_over(elastic(), worker=3)
    for suspend in (True, False):
        policy = structs.replace(cluster.job.run_policy, suspend=suspend)
        cluster.job = structs.replace(cluster.job, run_policy=policy)
        cluster.settle()
    assert {found.group for found in cluster.pods.values()} == {"elastic"}
