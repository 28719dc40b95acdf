"""Stories that the simulation told first: each was a defect once, found by a seed and played here by hand."""

from dataclasses import replace
from datetime import timedelta

import pytest
from job_builders import NOW, OURS, PLAIN, Cluster, created, deleted, elastic_job, job, reasons, replica, tainted
from msgspec import structs

from elastic.api import parse
from elastic.api.job import Job
from elastic.api.words import ConditionType
from elastic_training.controller.deciding.actions import Forget
from elastic_training.controller.deciding.lifecycle.failure import REMEMBERED
from elastic_training.controller.facts.snapshot import Container, PodPhase, WorldSeen


def running(one: Job) -> Cluster:
    cluster = Cluster(one, settings=OURS, lingering=True)
    cluster.settle()
    cluster.run_all()
    cluster.world = WorldSeen(generation=1, members=frozenset(cluster.pods), phase="running")
    cluster.settle()
    return cluster


def scaled(one: Job, workers: int) -> Job:
    """Return the same job with another count, as /scale leaves it."""
    raw = {"apiVersion": "kubeflow.org/v1", "kind": one.kind.name}
    raw["metadata"] = {"name": "train", "namespace": "team", "uid": "job-uid", "resourceVersion": "2"}  # type: ignore[assignment]
    policy = {"minReplicas": one.least_workers, "maxReplicas": one.most_workers}
    raw["spec"] = {"pytorchReplicaSpecs": {"Worker": replica(workers)}, "elasticPolicy": policy, "runPolicy": {}}  # type: ignore[assignment]
    parsed, _ = parse(raw, stored=True)
    return type(parsed)(**{**{f: getattr(parsed, f) for f in parsed.__struct_fields__}, "status": one.status})


def test_a_worker_on_a_node_that_is_reclaimed_and_cordoned_is_replaced_once() -> None:
    cluster = running(elastic_job(3, least=3))
    cluster.pods["train-worker-2"] = replace(cluster.pods["train-worker-2"], node="spot")
    cluster.nodes = {"spot": tainted("spot", "aws-node-termination-handler/spot-itn")}
    plans = cluster.settle()
    cluster.run_all()
    cluster.nodes = {"spot": tainted("spot", "aws-node-termination-handler/spot-itn", is_cordoned=True)}
    plans += cluster.settle()
    assert [name for planned in plans for name in created(planned)] == ["train-worker-3"]


def test_a_worker_told_to_go_stays_when_another_is_lost_before_it_left() -> None:
    cluster = running(elastic_job(4, least=3))
    cluster.job = scaled(cluster.job, 3)
    cluster.round()
    assert [entry.member for entry in cluster.job.status.elastic.leaving] == ["train-worker-3"]  # type: ignore[union-attr]
    cluster.set("train-worker-0", PodPhase.FAILED, reason="Evicted")
    cluster.now = NOW + timedelta(seconds=60)
    plans = cluster.settle()
    assert "train-worker-3" not in [name for planned in plans for name in deleted(planned)]
    assert [pod.name for pod in cluster.pods.values() if pod.is_active] == ["train-worker-1", "train-worker-2", "train-worker-3"]
    assert cluster.job.status.elastic.leaving == ()  # type: ignore[union-attr]


def test_a_world_found_running_grows_in_the_status_as_its_members_come_back() -> None:
    """No controller ran when it was formed, and the rendezvous server restarted: its members presented themselves one after the other."""
    cluster = Cluster(elastic_job(3, least=2), settings=OURS)
    cluster.settle()
    cluster.run_all()
    cluster.world = WorldSeen(generation=1, members=frozenset({"train-worker-1", "train-worker-2"}), phase="running")
    cluster.settle()
    assert cluster.job.status.elastic.world_size == 2  # type: ignore[union-attr]
    cluster.world = WorldSeen(generation=1, members=frozenset(cluster.pods), phase="running", ranked=tuple(sorted(cluster.pods)))
    cluster.settle()
    assert cluster.job.status.elastic.world_size == 3  # type: ignore[union-attr]
    assert cluster.job.status.elastic.ranks == "0,1,2"  # type: ignore[union-attr]


def test_a_worker_told_to_go_stays_while_the_world_lives_on_it_though_its_time_is_up() -> None:
    """The rendezvous server had taken it in again, for its peer was lost; the controller's view of pods did not show that yet."""
    cluster = running(elastic_job(2, least=1))
    cluster.job = scaled(cluster.job, 1)
    cluster.round()
    assert [entry.member for entry in cluster.job.status.elastic.leaving] == ["train-worker-1"]  # type: ignore[union-attr]
    cluster.world = WorldSeen(generation=2, members=frozenset({"train-worker-1"}), phase="running")
    cluster.now = NOW + timedelta(hours=1)
    assert [name for planned in cluster.settle() for name in deleted(planned)] == []
    cluster.world = WorldSeen(generation=3, members=frozenset({"train-worker-0"}), phase="running")
    assert [name for planned in cluster.settle() for name in deleted(planned)] == ["train-worker-1"]


def test_that_a_worker_leaves_by_plan_is_written_down_before_its_pod_goes_also_without_any_grace() -> None:
    """A controller that died in between left a pod in deletion, which the next one took for a disruption."""
    cluster = running(elastic_job(2, elastic={"scaleInGraceSeconds": 0}))
    cluster.job = elastic_job(1, elastic={"scaleInGraceSeconds": 0}, status=cluster.job.status)
    assert deleted(cluster.round()) == []
    assert [entry.member for entry in cluster.job.status.elastic.leaving] == ["train-worker-1"]  # type: ignore[union-attr]
    assert deleted(cluster.round()) == ["train-worker-1"]


def test_that_a_pending_worker_leaves_is_written_down_before_its_pod_goes() -> None:
    """The view may lag: the pod runs, and is killed. A controller that died before it stored why left it for the next one to count."""
    cluster = running(elastic_job(2))
    cluster.set("train-worker-1", PodPhase.PENDING)
    cluster.world = WorldSeen(generation=1, members=frozenset({"train-worker-0"}), phase="running")
    cluster.job = elastic_job(1, status=cluster.job.status)
    assert deleted(cluster.round()) == []
    assert [entry.member for entry in cluster.job.status.elastic.leaving] == ["train-worker-1"]  # type: ignore[union-attr]
    assert deleted(cluster.round()) == ["train-worker-1"]


def test_a_worker_that_looks_pending_and_is_in_the_world_has_its_time_to_leave() -> None:
    cluster = running(elastic_job(2))
    cluster.set("train-worker-1", PodPhase.PENDING)
    cluster.world = WorldSeen(generation=1, members=frozenset({"train-worker-0", "train-worker-1"}), phase="running")
    cluster.job = elastic_job(1, status=cluster.job.status)
    assert [deleted(cluster.round()), deleted(cluster.round())] == [[], []]
    cluster.world = WorldSeen(generation=2, members=frozenset({"train-worker-0"}), phase="running")
    assert deleted(cluster.round()) == ["train-worker-1"]


def test_a_worker_stuck_in_its_end_asks_for_no_rounds_once_its_time_is_up() -> None:
    cluster = running(elastic_job(2))
    gone_by = NOW + timedelta(seconds=30)
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], is_deleting=True, gone_by=gone_by)
    assert cluster.settle()[-1].look_again_at == gone_by
    cluster.now = NOW + timedelta(seconds=31)
    assert cluster.settle()[-1].look_again_at is None


@pytest.mark.parametrize("kind", ["TFJob", "JAXJob", "PyTorchJob"])
def test_a_worker_that_ends_with_0_because_it_was_told_to_stop_is_no_success(kind: str) -> None:
    cluster = Cluster(job(kind, Worker=replica(1, kind=kind)), lingering=True)
    cluster.settle()
    cluster.run_all()
    cluster.set("train-worker-0", PodPhase.SUCCEEDED, code=0, is_deleting=True)
    cluster.settle()
    del cluster.pods["train-worker-0"]
    cluster.settle()
    assert cluster.job.status.condition(ConditionType.SUCCEEDED.value) is None
    assert cluster.names() == ["train-worker-0"]


def test_two_controllers_with_views_of_different_age_count_the_end_of_a_pod_once() -> None:
    """One had deleted the pod and dropped its uid from the status; the other still saw the pod there, and counted it again."""
    cluster = Cluster(job(Worker=replica(2, restart="ExitCode")))
    cluster.settle()
    cluster.run_all()
    cluster.set("train-worker-1", PodPhase.FAILED, code=137)
    cluster.round()
    old = dict(cluster.pods)
    for _ in range(3):
        cluster.settle()
        newest, cluster.pods = cluster.pods, old
        assert "PyTorchJobRestarting" not in reasons([cluster.round()])
        cluster.pods = newest
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.restarts == {"user": 1}


def test_ends_of_pods_that_are_gone_are_not_kept_for_ever() -> None:
    cluster = Cluster(job(Worker=replica(1, restart="ExitCode")))
    for _ in range(REMEMBERED + 5):
        cluster.settle()
        cluster.run_all()
        cluster.set("train-worker-0", PodPhase.FAILED, code=137)
        cluster.now += timedelta(seconds=301)  # so far apart none waits for the one before
    cluster.settle()
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.restarts == {"user": REMEMBERED + 5}
    assert len(cluster.job.status.elastic.counted) == REMEMBERED


def test_a_worker_of_a_higher_place_stays_while_without_it_fewer_than_the_minimum_were_there() -> None:
    """As upstream has it, the others meet at worker 0, so its place is filled again; that must not cost the job its last workers."""
    cluster = Cluster(elastic_job(3, least=2, most=3), settings=PLAIN)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    cluster.set("train-worker-0", PodPhase.FAILED, reason="Evicted")
    cluster.job = elastic_job(2, least=2, most=3, status=cluster.job.status)
    plans = cluster.settle()
    assert [sorted(deleted(planned)) for planned in plans if deleted(planned)] == [["train-worker-0"], ["train-worker-2"]]
    assert [sorted(created(planned)) for planned in plans if created(planned)] == [["train-worker-0"]]
    assert cluster.names() == ["train-worker-0", "train-worker-1"]


def dynamic(**more: str) -> Cluster:
    workers = replica(3, restart="Never", kind="TFJob")
    one = job("TFJob", PS=replica(1, restart="Never", kind="TFJob"), Worker=workers, enableDynamicWorker=True, **more)
    cluster = Cluster(one)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    return cluster


def test_a_job_of_dynamic_workers_that_lost_worker_0_succeeds_when_the_others_have_done_the_work() -> None:
    cluster = dynamic()
    cluster.set("train-worker-0", PodPhase.FAILED, code=1)
    cluster.set("train-worker-1", PodPhase.SUCCEEDED, code=0)
    cluster.settle()
    assert cluster.state() == "Running", "somebody still works"
    cluster.set("train-worker-2", PodPhase.SUCCEEDED, code=0)
    cluster.settle()
    assert cluster.state() == "Succeeded"


@pytest.mark.parametrize(("policy", "last"), [({}, 1), ({"successPolicy": "AllWorkers"}, 0)])
def test_a_job_of_dynamic_workers_fails_once_no_worker_is_left_that_could_succeed(policy: dict[str, str], last: int) -> None:
    cluster = dynamic(**policy)
    for index in (0, 1):
        cluster.set(f"train-worker-{index}", PodPhase.FAILED, code=1)
        cluster.settle()
        assert cluster.state() == "Running"
    cluster.set("train-worker-2", PodPhase.FAILED if last else PodPhase.SUCCEEDED, code=last)
    cluster.settle()
    assert cluster.state() == "Failed"


def test_an_evicted_dynamic_worker_is_made_again_and_waited_for() -> None:
    cluster = dynamic()
    cluster.set("train-worker-0", PodPhase.FAILED, reason="Evicted")
    cluster.set("train-worker-1", PodPhase.SUCCEEDED, code=0)
    cluster.set("train-worker-2", PodPhase.SUCCEEDED, code=0)
    plans = cluster.settle()
    assert [name for planned in plans for name in created(planned)] == ["train-worker-0"]
    assert cluster.job.status.condition(ConditionType.SUCCEEDED.value) is None


def test_a_job_whose_restarts_are_used_up_fails_even_if_the_controller_dies_while_it_removes_the_pods() -> None:
    """The restarts of containers, which show that the limit is reached, go with the pods."""
    cluster = Cluster(job(Worker=replica(2), policy={"backoffLimit": 1}))
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    worker = cluster.pods["train-worker-0"]
    cluster.pods[worker.name] = replace(worker, containers=(Container(name="pytorch", restarts=1, last_exit_code=1),))
    assert deleted(cluster.round()) == [], "first it is written down"
    cluster.pods.clear()
    cluster.settle()
    assert cluster.state() == "Failed"
    assert cluster.job.status.conditions[-1].message == "Job train has failed because it has reached the specified backoff limit"
    assert cluster.names() == []


def test_a_job_that_is_resumed_after_half_of_its_suspension_waits_until_its_former_run_is_forgotten() -> None:
    """The controller died after it had deleted two of three pods, and nothing said that they went for the suspension.

    The next controller told the server that the two had to leave for a disruption, and the server counted them as lost.
    """
    cluster = running(elastic_job(3, least=3))
    policy = cluster.job.run_policy
    cluster.job = structs.replace(cluster.job, run_policy=structs.replace(policy, suspend=True))
    assert cluster.round().actions == (), "the status comes first"
    assert cluster.job.status.condition(ConditionType.SUSPENDED.value).status == "True"  # type: ignore[union-attr]
    assert len(deleted(cluster.round())) == 3
    for name in ("train-worker-0", "train-worker-1"):
        cluster.pods[name] = replace(cluster.pods[name], is_deleting=True)
    cluster.pods["train-worker-2"] = replace(cluster.pods["train-worker-2"], is_deleting=False)
    cluster.job, cluster.is_forgotten = structs.replace(cluster.job, run_policy=policy), False
    assert cluster.round().actions == (Forget(is_awaited=True),)
