"""A pod that a node or the API server refuses waits before it is made again: what that leaves alone, and what ends it."""

from dataclasses import replace
from datetime import timedelta

from job_builders import NOW, Cluster, created, deleted, job, reasons, replica, with_status

from elastic.api.book import Refusal
from elastic.api.job import ElasticStatus, JobStatus
from elastic_training.controller.deciding.plan import plan
from elastic_training.controller.facts.snapshot import Container, NotCreated, PodPhase


def refused_one(kind: str = "PyTorchJob", **spec: object) -> Cluster:
    cluster = Cluster(job(kind, Worker=replica(3, kind=kind), **spec))
    cluster.settle()
    cluster.run_all()
    refuse(cluster, "train-worker-1")
    return cluster


def refuse(cluster: Cluster, name: str) -> None:
    refused = {"reason": "OutOfcpu", "message": "no room", "node": "gpu-1", "phase": PodPhase.FAILED, "containers": ()}
    cluster.pods[name] = replace(cluster.pods[name], **refused)


def entry(cluster: Cluster) -> Refusal:
    assert cluster.job.status.elastic is not None
    return cluster.job.status.elastic.refused[0]


def test_a_refused_pod_keeps_its_place_until_its_time_is_up() -> None:
    cluster = refused_one()
    uid = cluster.pods["train-worker-1"].uid
    plans = cluster.settle()
    assert plans[-1].look_again_at == NOW + timedelta(seconds=2)
    assert "PodRefused" in reasons(plans)
    assert "PyTorchJobRestarting" not in reasons(plans)
    words = "It waits 2 s, until 12:00:02 UTC, to create pods again: node gpu-1 refused the last 1 (Worker): OutOfcpu: no room."
    assert cluster.job.status.conditions[-1].message == f"PyTorchJob team/train is running. {words}"
    cluster.now += timedelta(seconds=2)
    cluster.settle()
    assert cluster.pods["train-worker-1"].uid != uid


def test_each_try_waits_twice_as_long_however_many_pods_it_costs() -> None:
    cluster = refused_one()
    pauses = []
    for _ in range(10):
        refuse(cluster, "train-worker-2")
        cluster.settle()
        pauses.append(entry(cluster).pause_seconds)
        cluster.now += timedelta(seconds=pauses[-1])
        cluster.settle()
        refuse(cluster, "train-worker-1")
        cluster.settle()
    assert pauses == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_a_replica_that_never_began_restarts_no_whole_group() -> None:
    cluster = refused_one("PaddleJob", elasticPolicy={"minReplicas": 1, "maxReplicas": 3})
    others = {name: cluster.pods[name].uid for name in ("train-worker-0", "train-worker-2")}
    cluster.settle()
    cluster.now += timedelta(seconds=5)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    assert {name: cluster.pods[name].uid for name in others} == others
    assert cluster.job.status.elastic is not None
    assert (cluster.job.status.elastic.generation, cluster.job.status.elastic.world_size) == (0, 3)


def test_once_all_have_begun_the_past_is_forgiven() -> None:
    cluster = refused_one()
    cluster.settle()
    cluster.now += timedelta(seconds=5)
    cluster.settle()
    assert entry(cluster).count == 1, "not as long as the newest one is pending"
    cluster.run_all()
    cluster.settle()
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.refused == ()


def test_a_pause_that_a_clock_which_stepped_back_ended_does_not_begin_again() -> None:
    cluster = refused_one()
    cluster.settle()
    began = cluster.now
    cluster.now -= timedelta(seconds=60)
    cluster.settle()
    assert cluster.pods["train-worker-1"].phase is PodPhase.PENDING, "it is made again at once"
    cluster.now = began + timedelta(seconds=1)
    cluster.settle()
    assert not [condition for condition in cluster.job.status.conditions if "It waits" in condition.message]


def test_an_image_that_cannot_be_pulled_makes_no_new_pod() -> None:
    cluster = Cluster(job(Worker=replica(2)))
    cluster.settle()
    waits = Container(name="pytorch", waiting="ImagePullBackOff", message="not found")
    for name, one in cluster.pods.items():
        cluster.pods[name] = replace(one, containers=(waits,))
    plans = cluster.settle()
    assert not [deleted(each) for each in plans if deleted(each)]
    assert "ImagePullBackOff" in reasons(plans)


def test_only_the_type_that_the_api_server_refuses_waits() -> None:
    cluster = Cluster(job(Master=replica(), Worker=replica(2)))
    look = replace(cluster.look(), not_created=(NotCreated("worker", "exceeded quota"),))
    planned = plan(cluster.job, look)
    assert created(planned) == ["train-master-0"]
    assert planned.status is not None
    assert planned.status.conditions[-1].message == (
        "PyTorchJob train is created. "
        "It waits 2 s, until 12:00:02 UTC, to create pods again: the API server refused the last 1 (Worker): exceeded quota."
    )


def test_an_entry_that_somebody_has_written_keeps_no_pod_waiting_for_ever() -> None:
    cluster = Cluster(job(Worker=replica(2)))
    far = Refusal(type="Worker", at=NOW + timedelta(days=9), pause_seconds=10**6)
    cluster.job = with_status(cluster.job, JobStatus(elastic=ElasticStatus(refused=(far,))))
    assert created(cluster.round()) == ["train-worker-0", "train-worker-1"]
    long = Refusal(type="Worker", at=NOW - timedelta(seconds=100), pause_seconds=10**6)
    cluster = Cluster(job(Worker=replica(2)))
    cluster.job = with_status(cluster.job, JobStatus(elastic=ElasticStatus(refused=(long,))))
    assert created(cluster.round()) == ["train-worker-0", "train-worker-1"]
