"""A pod that ends because its peer's node went is replaced, and its job goes on."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from job_builders import NOW, OURS, Cluster, job, reasons, replica, tainted

from elastic.api.job import Job
from elastic_training.controller.facts.settings import Settings
from elastic_training.controller.facts.snapshot import Container, Node, PodPhase, pod_from

LOST = Container(name="", exit_code=255, exit_reason="Unknown")
WAIT_S = 60


def of(kind: str, restart: str = "Never", *, policy: dict[str, int] | None = None) -> Job:
    types = {"PyTorchJob": ("Master", 1), "TFJob": ("Chief", 1), "MPIJob": ("Launcher", 1), "XGBoostJob": ("Master", 1)}
    head: dict[str, Any] = {types[kind][0]: replica(types[kind][1], restart=restart, kind=kind)} if kind in types else {}
    if kind == "MXJob":
        head = {"Scheduler": replica(1, restart=restart, kind=kind), "Server": replica(1, restart=restart, kind=kind)}
    return job(kind, policy=policy, **head, Worker=replica(2, restart=restart, kind=kind))


KINDS = ["PyTorchJob", "TFJob", "MPIJob", "XGBoostJob", "PaddleJob", "JAXJob", "MXJob"]


def running(one: Job, *, settings: Settings = OURS) -> Cluster:
    """Return a job whose pods all run, each on its own node."""
    cluster = Cluster(one, settings=settings, lingering=True)
    for _ in range(3):
        cluster.settle()
        for name in cluster.names():
            if cluster.pods[name].phase is PodPhase.PENDING:
                cluster.set(name, PodPhase.RUNNING)
    for name in cluster.names():
        cluster.pods[name] = replace(cluster.pods[name], node=f"node-of-{name}")
    cluster.nodes = {pod.node: Node(pod.node) for pod in cluster.pods.values()}
    cluster.settle()
    return cluster


def ends(cluster: Cluster, name: str, *, code: int = 1, reason: str = "Error", message: str = "") -> None:
    """Let the pod fail now."""
    own = Container(cluster.job.kind.container, exit_code=code, exit_reason=reason, ended_at=cluster.now, message=message)
    cluster.pods[name] = replace(cluster.pods[name], phase=PodPhase.FAILED, is_ready=False, containers=(own,))


def loses(cluster: Cluster, name: str) -> None:
    """Let the kubelet of a restarted node report what became of its pod."""
    own = replace(LOST, name=cluster.job.kind.container, ended_at=cluster.now)
    cluster.pods[name] = replace(cluster.pods[name], phase=PodPhase.FAILED, is_ready=False, containers=(own,))


def later(cluster: Cluster, seconds: float) -> list[str]:
    """Return the reasons of the Events once so many seconds have passed."""
    cluster.now += timedelta(seconds=seconds)
    return [reason for reason in reasons(cluster.settle()) if reason != "ExitedWithCode"]


def head_and_worker(cluster: Cluster) -> tuple[str, str]:
    """Return the pod whose end decides the job's, and a peer of it."""
    workers = [name for name in cluster.names() if "-worker-" in name]
    return next((name for name in cluster.names() if "-worker-" not in name and "-server-" not in name), workers[0]), workers[-1]


def counts(cluster: Cluster) -> dict[str, int]:
    return dict(cluster.job.status.elastic.restarts) if cluster.job.status.elastic is not None else {}


def is_over(cluster: Cluster) -> bool:
    return cluster.state() in ("Failed", "Succeeded")


@pytest.mark.parametrize("restart", ["Never", "ExitCode"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_peer_that_notices_first_that_a_node_restarts_does_not_fail_the_job(kind: str, restart: str) -> None:
    """A node was restarted. The master's barrier broke one second later, and it ended with 1.

    The job was failed at once, five seconds before the kubelet came back and said 255 and Unknown of the worker.
    """
    cluster = running(of(kind, restart))
    head, worker = head_and_worker(cluster)
    before = {name: cluster.pods[name].uid for name in (head, worker)}
    ends(cluster, head)
    assert later(cluster, 0) == []
    assert later(cluster, 4) == []
    loses(cluster, worker)
    plans = cluster.settle()
    assert not is_over(cluster)
    assert all(cluster.pods[name].uid != uid for name, uid in before.items() if name in cluster.pods)
    known = counts(cluster)
    assert set(known) <= {"disruption", "collateral"}
    assert known.get("disruption", 0) >= 1
    said = [news.message for planned in plans for news in planned.news if news.reason.endswith("Restarting")]
    assert any(f"node-of-{worker}" in words for words in said), said
    conditions = " ".join(condition.message for condition in cluster.job.status.conditions)
    assert f"node-of-{worker}" in conditions


def test_an_unexplained_failure_fails_the_job_with_upstreams_words_a_few_seconds_later() -> None:
    unexplained = running(of("PyTorchJob"), settings=OURS)
    ends(unexplained, "train-master-0")
    unexplained.settle()
    assert not is_over(unexplained)
    look = unexplained.round().look_again_at
    assert look == NOW + timedelta(seconds=WAIT_S)
    assert later(unexplained, WAIT_S - 1) == []
    assert not is_over(unexplained)
    assert later(unexplained, 1) == ["PyTorchJobFailed"]
    words = unexplained.job.status.conditions[-1].message.partition(" First of all")[0]
    assert words == "PyTorchJob train is failed because 1 Master replica(s) failed."
    assert unexplained.job.status.replica_statuses["Master"].failed == 1


@pytest.mark.parametrize("restart", ["Never", "ExitCode"])
@pytest.mark.parametrize("is_namespaced", [False, True])
def test_a_loss_that_is_reported_after_most_of_a_minute_still_explains_the_end(restart: str, is_namespaced: bool) -> None:
    """A node took 50 s to start again. After 30 s the job had failed, and nobody asked any more what its kubelet reported."""
    cluster = running(of("PyTorchJob", restart))
    if is_namespaced:
        cluster.nodes, cluster.sees_nodes = {}, False
    ends(cluster, "train-master-0")
    for _ in range(5):
        assert later(cluster, 10) == []
    loses(cluster, "train-worker-1")
    cluster.settle()
    assert not is_over(cluster)
    assert counts(cluster) == {"disruption": 1, "collateral": 1}


def test_a_silent_node_explains_the_end_although_it_counts_as_ready_for_50_s() -> None:
    """The cluster sees late that a node is silent. Nothing reports its pods for minutes, and the job does not wait for that."""
    cluster = running(of("PyTorchJob"))
    ends(cluster, "train-master-0")
    assert later(cluster, 50) == []
    cluster.nodes[NODE] = Node(NODE, is_ready=False)
    assert later(cluster, 5) == ["PyTorchJobRestarting"]
    assert counts(cluster) == {"collateral": 1}
    assert later(cluster, 600) == []
    assert not is_over(cluster)


def test_a_controller_that_sees_no_nodes_learns_from_the_pod_that_its_node_is_silent() -> None:
    """A controller of a single namespace may not list nodes. The cluster also marks the pods of a silent node."""
    cluster = running(of("PyTorchJob"))
    cluster.nodes, cluster.sees_nodes = {}, False
    ends(cluster, "train-master-0")
    assert later(cluster, 50) == []
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], is_ready=False, is_unheard=True)
    assert later(cluster, 5) == ["PyTorchJobRestarting"]
    assert counts(cluster) == {"collateral": 1}
    assert not is_over(cluster)


@pytest.mark.parametrize(
    ("ready", "containers", "is_unheard"),
    [
        ({"status": "False"}, {"status": "True"}, True),
        ({"status": "True"}, {"status": "True"}, False),
        ({"status": "False", "reason": "ContainersNotReady"}, {"status": "False"}, False),
        ({"status": "False", "reason": "ReadinessGatesNotReady"}, {"status": "True"}, False),
        ({"status": "False"}, {}, False),
    ],
    ids=["node is silent", "ready", "probe fails", "gate is closed", "no word of the containers"],
)
def test_a_pod_that_is_not_ready_although_its_containers_are_is_on_a_silent_node(
    ready: dict[str, str], containers: dict[str, str], is_unheard: bool
) -> None:
    conditions = [{"type": "Ready", **ready}, {"type": "ContainersReady", **containers}]
    pod = pod_from({"metadata": {"name": "train-worker-0"}, "status": {"phase": "Running", "conditions": conditions}})
    assert pod.is_unheard is is_unheard


def test_the_status_shows_the_failed_pod_while_the_job_waits_for_an_explanation() -> None:
    cluster = running(of("PyTorchJob"))
    ends(cluster, "train-worker-0")
    cluster.settle()
    assert cluster.job.status.replica_statuses["Worker"].failed == 1


def test_a_controller_that_starts_during_the_wait_waits_no_longer() -> None:
    cluster = running(of("PyTorchJob"))
    ends(cluster, "train-master-0")
    cluster.now += timedelta(seconds=WAIT_S)
    cluster.round()
    assert is_over(cluster), "the wait counts from the end of the container, and no memory is needed"


def test_a_node_whose_clock_is_ahead_holds_nothing_up() -> None:
    cluster = running(of("PyTorchJob"))
    now, cluster.now = cluster.now, cluster.now + timedelta(minutes=10)
    ends(cluster, "train-master-0")
    cluster.now = now
    cluster.round()
    assert is_over(cluster)


def test_a_job_of_one_pod_does_not_wait() -> None:
    cluster = running(job(Master=replica(1, restart="Never")))
    ends(cluster, "train-master-0")
    cluster.round()
    assert is_over(cluster)


def test_a_job_does_not_wait_once_all_of_its_pods_have_ended() -> None:
    cluster = running(of("PyTorchJob"))
    for name in cluster.names():
        ends(cluster, name)
    cluster.round()
    assert is_over(cluster)


@pytest.mark.parametrize(
    ("code", "reason", "message"),
    [(137, "OOMKilled", ""), (2, "Error", "train.py: error: unrecognized arguments: --epoch"), (128, "StartError", "")],
)
def test_a_failure_that_cannot_follow_from_a_peer_fails_the_job_at_once(code: int, reason: str, message: str) -> None:
    cluster = running(of("PyTorchJob"))
    ends(cluster, "train-master-0", code=code, reason=reason, message=message)
    cluster.round()
    assert is_over(cluster)


NODE = "node-of-train-worker-1"
SIGNS = {
    "is unreachable": tainted(NODE, "node.kubernetes.io/unreachable"),
    "gives notice": tainted(NODE, "aws-node-termination-handler/spot-itn"),
    "is not ready": Node(NODE, is_ready=False),
    "was not ready a moment ago": Node(NODE, ready_since=NOW + timedelta(seconds=6)),
    "is gone": None,
}


@pytest.mark.parametrize("sign", SIGNS)
def test_a_peers_node_explains_the_end_before_any_pod_shows_it(sign: str) -> None:
    cluster = running(of("PyTorchJob"))
    ends(cluster, "train-master-0")
    uid = cluster.pods["train-master-0"].uid
    later(cluster, 3)
    found = SIGNS[sign]
    if found is None:
        del cluster.nodes[NODE]
    else:
        cluster.nodes[NODE] = found
    plans = [*cluster.settle()]
    assert cluster.pods["train-master-0"].uid != uid
    assert counts(cluster) == {"collateral": 1}
    assert any(NODE in news.message for planned in plans for news in planned.news if news.reason == "PyTorchJobRestarting")
    assert not is_over(cluster)


@pytest.mark.parametrize(
    "node",
    [
        tainted(NODE, "aws-node-termination-handler/rebalance-recommendation"),
        tainted(NODE, is_cordoned=True),
        Node(NODE, ready_since=NOW - timedelta(hours=1)),
        Node(NODE, is_ready=True),
    ],
    ids=["may go one day", "cordoned", "ready for an hour", "ready"],
)
def test_an_event_that_ends_nothing_explains_nothing(node: Node) -> None:
    cluster = running(of("PyTorchJob"))
    cluster.nodes[NODE] = node
    ends(cluster, "train-master-0")
    later(cluster, WAIT_S)
    assert is_over(cluster)


def test_a_node_that_came_up_before_its_pod_has_not_restarted() -> None:
    cluster = running(of("PyTorchJob"))
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], created_at=NOW + timedelta(seconds=1))
    cluster.nodes[NODE] = Node(NODE, ready_since=NOW)
    ends(cluster, "train-master-0")
    later(cluster, WAIT_S)
    assert is_over(cluster)


def test_a_peer_that_was_replaced_already_still_explains_the_end() -> None:
    """The lost worker was replaced within a second. The master gave up half a minute later, when nothing showed the loss any more."""
    cluster = running(of("PyTorchJob"))
    loses(cluster, "train-worker-1")
    cluster.settle()
    cluster.run_all()
    cluster.now += timedelta(seconds=30)
    ends(cluster, "train-master-0")
    plans = cluster.settle()
    assert counts(cluster) == {"disruption": 1, "collateral": 1}
    assert any(NODE in news.message for planned in plans for news in planned.news if "ended with exit code 1" in news.message)
    cluster.run_all()
    cluster.now += timedelta(minutes=5)
    ends(cluster, "train-master-0")
    later(cluster, WAIT_S)
    assert is_over(cluster), "a loss explains what follows within two minutes"


def test_an_evicted_peer_explains_the_end_while_it_goes_and_afterwards() -> None:
    cluster = running(of("PyTorchJob"))
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], is_deleting=True, disruption="EvictionByEvictionAPI")
    cluster.settle()
    del cluster.pods["train-worker-1"]
    cluster.settle()
    cluster.now += timedelta(seconds=2)
    ends(cluster, "train-master-0")
    cluster.settle()
    assert not is_over(cluster)
    assert counts(cluster) == {"collateral": 1}


def test_a_peer_that_failed_by_itself_explains_nothing() -> None:
    """Under ExitCode, a worker that a signal ended is replaced and charged; the master that ends with 1 after it fails the job."""
    cluster = running(of("PyTorchJob", "ExitCode"))
    ends(cluster, "train-worker-1", code=139)
    cluster.round()
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], is_deleting=True)
    ends(cluster, "train-master-0")
    cluster.round()
    later(cluster, WAIT_S)
    assert is_over(cluster)


def test_an_explained_failure_stays_explained_when_nothing_shows_the_loss_any_more() -> None:
    cluster = running(of("PyTorchJob"))
    ends(cluster, "train-master-0")
    cluster.nodes[NODE] = Node(NODE, is_ready=False)
    cluster.round()
    assert counts(cluster) == {"collateral": 1}
    cluster.nodes[NODE] = Node(NODE)
    cluster.now += timedelta(seconds=WAIT_S)
    cluster.settle()
    assert not is_over(cluster)


def test_a_tolerated_worker_that_its_peers_loss_ended_is_made_again() -> None:
    one = job(
        "TFJob", enableDynamicWorker=True, PS=replica(1, restart="Never", kind="TFJob"), Worker=replica(3, restart="Never", kind="TFJob")
    )
    cluster = running(one)
    uid = cluster.pods["train-worker-1"].uid
    ends(cluster, "train-worker-1")
    cluster.settle()
    assert cluster.pods["train-worker-1"].uid == uid, "it stays as it is, and the job goes on"
    later(cluster, 3)
    loses(cluster, "train-worker-2")
    cluster.settle()
    assert cluster.pods["train-worker-1"].uid != uid
    assert counts(cluster) == {"disruption": 1, "collateral": 1}


def test_restarts_in_place_that_a_loss_explains_do_not_use_up_the_backoff_limit() -> None:
    cluster = running(of("PyTorchJob", "OnFailure", policy={"backoffLimit": 1}))
    failed = Container("pytorch", restarts=1, is_running=True, last_exit_code=1, last_exit_reason="Error", ended_at=cluster.now)
    cluster.pods["train-master-0"] = replace(cluster.pods["train-master-0"], containers=(failed,))
    assert later(cluster, 5) == []
    lost = replace(failed, last_exit_code=255, last_exit_reason="Unknown", ended_at=cluster.now)
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], containers=(lost,))
    later(cluster, 1)
    assert counts(cluster) == {"disruption": 1, "collateral": 1}
    later(cluster, 60)
    assert not is_over(cluster)
    cluster.now += timedelta(minutes=5)
    again = replace(failed, restarts=2, ended_at=cluster.now)
    cluster.pods["train-master-0"] = replace(cluster.pods["train-master-0"], containers=(again,))
    later(cluster, 0)
    assert not is_over(cluster)
    assert "PyTorchJobFailed" in later(cluster, WAIT_S)


def test_an_event_about_a_lost_pod_names_its_node() -> None:
    cluster = running(of("PyTorchJob"))
    loses(cluster, "train-worker-1")
    said = [news.message for planned in cluster.settle() for news in planned.news if news.reason == "PyTorchJobRestarting"]
    lost = "train-worker-1 on node node-of-train-worker-1 was lost (exit code 255, Unknown)"
    assert said == [f"job train is restarting because Worker replica(s) failed: {lost}."]


def test_a_job_at_rest_writes_nothing_while_a_pod_is_being_deleted() -> None:
    cluster = running(of("PyTorchJob"))
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], is_deleting=True)
    cluster.settle()
    before = cluster.job.status
    cluster.now += timedelta(seconds=20)
    cluster.round()
    assert cluster.job.status == before
