"""The cluster says that a worker must go: it is told at first sight, replaced at once, and nothing is charged."""

from dataclasses import replace
from datetime import timedelta

import pytest
from job_builders import NOW, OURS, Cluster, created, deleted, elastic_job, job, reasons, replica, restarts, tainted
from msgspec import structs

from elastic.api.book import Rescale
from elastic.api.words import Cause
from elastic.membership.wire import Restart
from elastic_training.controller.deciding.actions import End, SetExpectation
from elastic_training.controller.facts.snapshot import Container, Node, PodPhase, WorldSeen


def running(workers: int, **more: object) -> Cluster:
    cluster = Cluster(elastic_job(workers, **more), settings=OURS, lingering=True)
    cluster.settle()
    cluster.run_all()
    for index, name in enumerate(cluster.names()):
        cluster.pods[name] = replace(cluster.pods[name], node=f"node-{index}")
    cluster.nodes = {f"node-{index}": Node(f"node-{index}") for index in range(workers)}
    cluster.world = WorldSeen(generation=1, members=frozenset(cluster.pods), phase="running")
    cluster.settle()
    return cluster


def told(cluster: Cluster) -> SetExpectation:
    return next(action for action in reversed(cluster.told) if isinstance(action, SetExpectation))


@pytest.mark.parametrize(
    ("taint", "seconds"),
    [
        ("aws-node-termination-handler/spot-itn", 120),
        ("ToBeDeletedByClusterAutoscaler", 60),
        ("cloud.google.com/impending-node-termination", 15),
        ("node.kubernetes.io/unreachable", 0),
    ],
)
def test_a_taint_of_the_node_is_passed_on_with_the_time_that_is_left(taint: str, seconds: int) -> None:
    cluster = running(2)
    cluster.nodes["node-1"] = tainted("node-1", taint)
    planned = cluster.round()
    assert created(planned) == ["train-worker-2"]
    leave = told(cluster).leaving[0]
    assert (leave.member, leave.cause, leave.by) == ("train-worker-1", "disruption", NOW + timedelta(seconds=seconds))
    assert told(cluster).members == ("train-worker-0", "train-worker-2")
    assert told(cluster).pending == ("train-worker-2",)


def test_a_node_that_goes_after_its_notice_makes_nobody_else_leave() -> None:
    """The taint went with the node and the pod stayed a moment longer: it counted as one that stays, so another was told to go."""
    cluster = running(2)
    cluster.nodes["node-1"] = tainted("node-1", "cloud.google.com/impending-node-termination")
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    del cluster.nodes["node-1"]
    cluster.settle()
    assert [leave.member for leave in told(cluster).leaving] == ["train-worker-1"]
    assert told(cluster).members == ("train-worker-0", "train-worker-2")


def test_the_end_of_a_worker_that_left_a_reclaimed_node_in_time_is_neither_counted_nor_told_as_a_restart() -> None:
    """It was told, left, and was replaced; then its node went, and its pod was marked as failed for a moment before it went too."""
    cluster = running(2)
    cluster.nodes["node-1"] = tainted("node-1", "cloud.google.com/impending-node-termination")
    plans = cluster.settle()
    cluster.run_all()
    cluster.world = WorldSeen(generation=2, members=frozenset({"train-worker-0", "train-worker-2"}), phase="running")
    plans += cluster.settle()
    del cluster.nodes["node-1"]
    cluster.set("train-worker-1", PodPhase.FAILED, disruption="DeletionByPodGC")
    plans += cluster.settle()
    assert cluster.pods.pop("train-worker-1").is_deleting
    plans += cluster.settle()
    assert cluster.names() == ["train-worker-0", "train-worker-2"]
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.restarts == {}
    assert cluster.job.status.elastic.leaving == ()
    assert "PyTorchJobRestarting" not in reasons(plans)
    assert cluster.state() == "Running"


def test_a_worker_that_crashes_after_it_was_told_to_leave_fails_no_job() -> None:
    cluster = running(3, restart="Never")
    cluster.nodes["node-2"] = tainted("node-2", "karpenter.sh/disrupted")
    cluster.settle()
    cluster.set("train-worker-2", PodPhase.FAILED, code=1)
    cluster.settle()
    assert cluster.state() == "Running"
    assert cluster.names() == ["train-worker-0", "train-worker-1", "train-worker-3"]


def test_the_deadline_of_a_notice_does_not_move_from_round_to_round() -> None:
    cluster = running(2)
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], disruption="PreemptionByScheduler")
    cluster.settle()
    cluster.now = NOW + timedelta(seconds=10)
    cluster.settle()
    assert told(cluster).leaving[0].by == NOW + timedelta(seconds=30)


def test_a_worker_being_deleted_is_told_by_when_its_grace_ends() -> None:
    cluster = running(2)
    gone_by = NOW + timedelta(seconds=17)
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], is_deleting=True, gone_by=gone_by)
    cluster.settle()
    assert told(cluster).leaving[0].by == gone_by
    del cluster.pods["train-worker-1"]
    cluster.settle()
    assert told(cluster).leaving == ()
    assert cluster.names() == ["train-worker-0", "train-worker-2"]


def test_a_cordon_moves_a_worker_only_if_a_drain_could_not_end() -> None:
    relaxed, tight = running(3, least=1), running(3, least=3)
    for cluster in (relaxed, tight):
        cluster.nodes["node-0"] = Node("node-0", is_cordoned=True)
        cluster.settle()
    assert relaxed.names() == ["train-worker-0", "train-worker-1", "train-worker-2"]
    assert tight.names() == ["train-worker-0", "train-worker-1", "train-worker-2", "train-worker-3"]
    assert told(tight).leaving == (), "it trains on until the eviction is let through"


def test_after_a_cordon_is_lifted_the_number_of_workers_is_as_before() -> None:
    cluster = running(3, least=3)
    cluster.nodes["node-0"] = Node("node-0", is_cordoned=True)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    assert len(cluster.names()) == 4
    cluster.nodes["node-0"] = Node("node-0")
    cluster.settle()
    cluster.now = NOW + timedelta(seconds=60)
    cluster.settle()
    cluster.pods = {name: one for name, one in cluster.pods.items() if not one.is_deleting}
    cluster.settle()
    assert cluster.names() == ["train-worker-0", "train-worker-1", "train-worker-2"]


def test_a_kind_that_cannot_resize_restarts_its_whole_group_at_the_new_size() -> None:
    policy = {"minReplicas": 1, "maxReplicas": 4}
    cluster = Cluster(job("PaddleJob", Worker=replica(2, kind="PaddleJob"), elasticPolicy=policy))
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    before = {one.uid for one in cluster.pods.values()}
    cluster.job = job("PaddleJob", Worker=replica(3, kind="PaddleJob"), elasticPolicy=policy, status=cluster.job.status)
    cluster.settle()
    assert cluster.names() == ["train-worker-0", "train-worker-1", "train-worker-2"]
    assert not before & {one.uid for one in cluster.pods.values()}
    assert all(one.phase is PodPhase.PENDING for one in cluster.pods.values())
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.restarts == {}, "nothing of it is held against the job"


def test_the_server_is_told_of_each_end_that_was_the_containers_own_doing() -> None:
    cluster = running(3)
    ended = Container(name="pytorch", restarts=2, last_exit_code=137, last_exit_reason="OOMKilled")
    cluster.pods["train-worker-0"] = replace(cluster.pods["train-worker-0"], containers=(ended,))
    fine = Container(name="pytorch", restarts=1, last_exit_code=0)
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], containers=(fine,))
    cluster.settle()
    uid = cluster.pods["train-worker-0"].uid
    assert told(cluster).ended == (End("train-worker-0", uid, 1, Cause.OUT_OF_MEMORY),)


def test_restarts_that_the_server_has_charged_are_not_charged_again_by_restarts_of_containers() -> None:
    cluster = running(2, policy={"backoffLimit": 2})
    ended = Container(name="pytorch", restarts=1, last_exit_code=1)
    cluster.pods["train-worker-0"] = replace(cluster.pods["train-worker-0"], containers=(ended,))
    assert cluster.world is not None
    cluster.world = replace(cluster.world, unacknowledged_restarts=restarts("user"))
    cluster.settle()
    assert cluster.state() == "Running"
    cluster.world = replace(cluster.world, unacknowledged_restarts=restarts("user", "user"))
    cluster.settle()
    assert cluster.state() == "Failed"


def spot(cluster: Cluster, *names: str, taint: str = "aws-node-termination-handler/spot-itn") -> None:
    for name in names:
        cluster.nodes[name] = tainted(name, taint)


def advance(cluster: Cluster, seconds: float) -> None:
    cluster.now += timedelta(seconds=seconds)


def test_the_pod_on_a_doomed_node_is_deleted_once_a_world_works_without_it() -> None:
    """No disruption budget holds up a deletion, as it would an eviction; and its node need not be drained by anybody."""
    cluster = running(3, least=2)
    spot(cluster, "node-2")
    first = cluster.round()
    assert created(first) == ["train-worker-3"]
    assert deleted(first) == []
    assert deleted(cluster.round()) == [], "the others are still to form a world without it"
    cluster.world = WorldSeen(generation=2, members=frozenset({"train-worker-0", "train-worker-1"}), phase="running")
    assert deleted(cluster.round()) == ["train-worker-2"]


def test_a_worker_that_is_needed_stays_until_shortly_before_its_node_goes() -> None:
    """120 s of notice, 30 s of grace, 5 s for a rescale that nobody has measured yet."""
    cluster = running(2, least=2)
    spot(cluster, "node-0", "node-1")
    cluster.settle()
    assert told(cluster).most == 5
    advance(cluster, 84)
    planned = cluster.settle()[-1]
    assert not any(one.is_deleting for one in cluster.pods.values())
    assert planned.look_again_at == NOW + timedelta(seconds=85)
    advance(cluster, 1)
    assert sorted(name for planned in cluster.settle() for name in deleted(planned)) == ["train-worker-0", "train-worker-1"]


def test_a_measured_rescale_takes_the_place_of_a_guess() -> None:
    cluster = running(1, most=1)
    elastic = cluster.job.status.elastic
    assert elastic is not None
    slow = Rescale(id="1-x", cause="plan", from_size=1, phases={"detect": 60_000, "drain": 9_000, "start": 3_000})
    status = structs.replace(cluster.job.status, elastic=structs.replace(elastic, last_rescale=slow))
    cluster.job = structs.replace(cluster.job, status=status)
    spot(cluster, "node-0")
    assert cluster.round().look_again_at == NOW + timedelta(seconds=120 - 30 - 12)
    assert told(cluster).most == 2, "the state passes on beside the one worker"


def test_a_notice_of_fifteen_seconds_leaves_time_to_train_and_to_save() -> None:
    cluster = running(1)
    spot(cluster, "node-0", taint="cloud.google.com/impending-node-termination")
    assert cluster.round().look_again_at == NOW + timedelta(seconds=15 - 7.5 - 3.75)
    assert told(cluster).leaving[0].by == NOW + timedelta(seconds=15), "checkpoint now, with the true time"
    advance(cluster, 4)
    assert [name for planned in cluster.settle() for name in deleted(planned)] == ["train-worker-0"]


def test_a_worker_that_may_have_to_go_is_replaced_first_however_long_that_takes() -> None:
    cluster = running(2)
    spot(cluster, "node-1", taint="aws-node-termination-handler/rebalance-recommendation")
    assert created(cluster.round()) == ["train-worker-2"]
    assert told(cluster).when_replaced == {"train-worker-1"}
    advance(cluster, 3600)
    cluster.settle()
    assert not cluster.pods["train-worker-1"].is_deleting
    cluster.world = WorldSeen(generation=2, members=frozenset({"train-worker-0", "train-worker-2"}), phase="running")
    cluster.settle()
    assert cluster.pods["train-worker-1"].is_deleting


def test_a_warning_that_becomes_a_notice_gets_its_time() -> None:
    cluster = running(2)
    spot(cluster, "node-1", taint="aws-node-termination-handler/rebalance-recommendation")
    cluster.settle()
    advance(cluster, 300)
    cluster.nodes["node-1"] = tainted(
        "node-1", "aws-node-termination-handler/rebalance-recommendation", "aws-node-termination-handler/spot-itn"
    )
    cluster.settle()
    (leave,) = told(cluster).leaving
    assert (leave.signal, leave.by) == ("aws-spot", cluster.now + timedelta(seconds=120))
    assert told(cluster).when_replaced == frozenset()


@pytest.mark.parametrize("taint", ["aws-node-termination-handler/spot-itn", "aws-node-termination-handler/rebalance-recommendation"])
def test_a_notice_can_be_taken_back(taint: str) -> None:
    cluster = running(2, least=2)
    spot(cluster, "node-1", taint=taint)
    cluster.settle()
    assert cluster.names() == ["train-worker-0", "train-worker-1", "train-worker-2"]
    cluster.nodes["node-1"] = Node("node-1")
    cluster.settle()
    assert cluster.names() == ["train-worker-0", "train-worker-1"]
    assert told(cluster).leaving == ()
    assert told(cluster).members == ("train-worker-0", "train-worker-1")


def test_a_pod_that_the_cluster_ends_is_left_to_the_cluster() -> None:
    cluster = running(2)
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], disruption="PreemptionByScheduler")
    cluster.settle()
    cluster.world = WorldSeen(generation=2, members=frozenset({"train-worker-0"}), phase="running")
    cluster.settle()
    assert not cluster.pods["train-worker-1"].is_deleting


def test_our_own_deletion_is_still_the_disruption_that_was_announced() -> None:
    cluster = running(2)
    spot(cluster, "node-1")
    cluster.settle()
    cluster.world = WorldSeen(generation=2, members=frozenset({"train-worker-0"}), phase="running")
    cluster.settle()
    assert cluster.pods["train-worker-1"].is_deleting
    assert told(cluster).leaving[0].signal == "aws-spot"


@pytest.mark.parametrize(("is_said", "counted"), [(True, {}), (False, {"disruption": 1})])
def test_a_worker_that_goes_once_the_job_says_that_it_is_suspended_is_no_disruption(is_said: bool, counted: dict[str, int]) -> None:
    """The controller died after it had deleted one pod, before the rendezvous server had heard that it may forget the job.

    When the next controller looked, the pod was gone.
    """
    cluster = running(3)
    cluster.job = elastic_job(3, policy={"suspend": True}, status=cluster.job.status)
    if is_said:
        cluster.round()
    lost = cluster.pods.pop("train-worker-2")
    left = Restart(id="1-s/2", generation=1, cause="disruption", pod=lost.uid, lost=True)
    cluster.world = WorldSeen(generation=2, members=frozenset(cluster.pods), phase="running", unacknowledged_restarts=(left,))
    for _ in range(3):
        cluster.round()
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.restarts == counted
    assert cluster.state() == "Suspended"
