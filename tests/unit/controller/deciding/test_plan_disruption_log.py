"""status.elastic.disruptions: each announced disruption with its signal, its times, how it ended and what it cost; a bounded list."""

from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest
from job_builders import NOW, OURS, PLAIN, Cluster, elastic_job, job, reasons, replica, tainted
from msgspec import structs
from test_plan_spare_workers import running

from elastic.api.book import Disruption, Rescale
from elastic.api.job import Job
from elastic.signals.rows import read_table
from elastic_training.controller.deciding.lifecycle.disruption_log import MOST
from elastic_training.controller.deciding.plan import plan
from elastic_training.controller.facts.settings import Settings
from elastic_training.controller.facts.snapshot import PodPhase, WorldSeen, pod_from

SPOT = "aws-node-termination-handler/spot-itn"


def shown(cluster: Cluster) -> tuple[Disruption, ...]:
    assert cluster.job.status.elastic is not None
    return cluster.job.status.elastic.disruptions


def together(cluster: Cluster, node: str = "node-0") -> None:
    """Put all workers on one node."""
    cluster.pods = {name: replace(one, node=node) for name, one in cluster.pods.items()}


def test_a_disruption_is_shown_from_its_notice_to_its_end_with_its_cost() -> None:
    cluster = running(elastic_job(3))
    cluster.nodes["node-2"] = tainted("node-2", SPOT)
    plans = cluster.settle()
    by = NOW + timedelta(seconds=120)
    assert shown(cluster) == (Disruption(signal="aws-spot", node="node-2", workers=1, noticed_at=NOW, by=by),)
    assert reasons(plans).count("DisruptionAnnounced") == 1
    phases = {"detect": 5_000_500, "drain": 200, "round": 100, "start": 700}
    stays = frozenset({"train-worker-0", "train-worker-1"})
    cluster.world = WorldSeen(2, stays, phase="running", size=2, rescale=Rescale(id="2-s", cause="disruption", phases=phases))
    cluster.now += timedelta(seconds=2)
    cluster.settle()
    assert cluster.world.rescale is not None
    cluster.world = replace(cluster.world, rescale=Rescale(id="2-s", cause="disruption", phases={**phases, "firstStep": 1000}))
    del cluster.pods["train-worker-2"]
    cluster.now += timedelta(seconds=3)
    plans = cluster.settle()
    (entry,) = shown(cluster)
    assert (entry.rescale, entry.pause_milliseconds) == ("2-s", 5_002_500), "a pause of more than 1,000 s was cut"
    assert (entry.outcome, entry.ended_at) == ("Left", cluster.now)
    assert "DisruptionAnnounced" not in reasons(plans)
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.restarts == {}


def test_a_notice_that_is_taken_back_is_shown_as_that() -> None:
    cluster = running(elastic_job(2, least=2))
    cluster.nodes["node-1"] = tainted("node-1", SPOT)
    cluster.settle()
    cluster.nodes["node-1"] = tainted("node-1")
    cluster.settle()
    (entry,) = shown(cluster)
    assert (entry.outcome, entry.ended_at) == ("TakenBack", NOW)


def test_a_worker_that_comes_back_with_its_node_after_the_others_went_on_has_left() -> None:
    cluster = running(elastic_job(3, least=2))
    cluster.nodes["node-2"] = tainted("node-2", "node.kubernetes.io/unreachable")
    cluster.settle()
    cluster.world = WorldSeen(2, frozenset({"train-worker-0", "train-worker-1"}), phase="running", size=2)
    cluster.nodes["node-2"] = tainted("node-2")
    assert cluster.pods["train-worker-2"].is_active
    cluster.settle()
    (entry,) = shown(cluster)
    assert (entry.signal, entry.outcome) == ("node-unreachable", "Left")


def test_the_workers_of_one_node_are_one_disruption() -> None:
    cluster = running(elastic_job(3, least=3))
    together(cluster)
    cluster.nodes["node-0"] = tainted("node-0", SPOT)
    cluster.settle()
    assert [(entry.node, entry.workers) for entry in shown(cluster)] == [("node-0", 3)]


def test_the_list_is_bounded_and_what_lasts_stays() -> None:
    cluster = running(elastic_job(2, least=2))
    cluster.nodes["node-0"] = tainted("node-0", SPOT)
    cluster.settle()
    for _ in range(2 * MOST):
        cluster.nodes["node-1"] = tainted("node-1", SPOT)
        cluster.settle()
        cluster.nodes["node-1"] = tainted("node-1")
        cluster.settle()
        cluster.now += timedelta(seconds=1)
    entries = shown(cluster)
    assert len(entries) == MOST
    assert entries[0].node == "node-0"
    assert entries[0].ended_at is None
    assert [entry.noticed_at for entry in entries[1:]] == [cluster.now - timedelta(seconds=n) for n in range(MOST - 1, 0, -1)]


def test_a_warning_of_what_only_may_come_is_shown_too() -> None:
    cluster = running(elastic_job(2))
    cluster.nodes["node-1"] = tainted("node-1", "aws-node-termination-handler/rebalance-recommendation")
    cluster.settle()
    assert [entry.signal for entry in shown(cluster)] == ["aws-rebalance"]


def test_a_planned_departure_is_no_disruption() -> None:
    cluster = running(elastic_job(3))
    cluster.job = structs.replace(elastic_job(2), status=cluster.job.status)
    cluster.settle()
    cluster.world = WorldSeen(2, frozenset({"train-worker-0", "train-worker-1"}), phase="running", size=2)
    cluster.settle()
    assert shown(cluster) == ()


def test_without_our_rendezvous_the_signals_themselves_are_shown() -> None:
    cluster = running(elastic_job(2), PLAIN)
    cluster.nodes["node-1"] = tainted("node-1", SPOT)
    cluster.settle()
    assert [(entry.signal, entry.node) for entry in shown(cluster)] == [("aws-spot", "node-1")]


def failed(cluster: Cluster, name: str, **status: object) -> None:
    cluster.set(name, PodPhase.FAILED, code=137, **status)


@pytest.mark.parametrize(
    ("status", "signal"),
    [
        ({"reason": "Terminated"}, "pod-terminated"),
        ({"reason": "Evicted"}, "pod-evicted"),
        ({"reason": "Evicted", "disruption": "TerminationByKubelet"}, "pod-evicted"),
        ({"disruption": "TerminationByKubelet"}, "pod-termination-by-kubelet"),
    ],
)
def test_a_disruption_that_nobody_announced_is_shown_with_its_cost_too(status: dict[str, str], signal: str) -> None:
    """The pod says what ended it once it has failed, and it is removed before the others work again."""
    cluster = running(elastic_job(3))
    failed(cluster, "train-worker-2", **status)
    plans = cluster.settle()
    (entry,) = shown(cluster)
    assert (entry.signal, entry.node, entry.workers, entry.noticed_at, entry.outcome) == (signal, "node-2", 1, NOW, "Left")
    assert reasons(plans).count("DisruptionAnnounced") == 1
    cluster.now += timedelta(seconds=3)
    stays = frozenset({"train-worker-0", "train-worker-1"})
    cluster.world = WorldSeen(2, stays, phase="running", size=2, rescale=Rescale(id="2-s", cause="disruption", phases={"drain": 900}))
    cluster.settle()
    assert [(entry.rescale, entry.pause_milliseconds) for entry in shown(cluster)] == [("2-s", 900)]
    cluster.now += timedelta(seconds=90)
    cluster.world = WorldSeen(3, stays, phase="running", size=2, rescale=Rescale(id="3-s", cause="disruption", phases={"drain": 400}))
    cluster.settle()
    assert [(entry.rescale, entry.pause_milliseconds) for entry in shown(cluster)] == [("2-s", 900)]


RESTARTED = {
    "c10d": elastic_job(3, elastic={"rdzvBackend": "c10d"}),
    "as a whole": job("PaddleJob", Worker=replica(3, kind="PaddleJob"), elasticPolicy={"minReplicas": 1, "maxReplicas": 4}),
}


@pytest.mark.parametrize("kind", RESTARTED)
def test_if_only_the_programs_know_when_they_train_again_the_cost_stays_open(kind: str) -> None:
    """docs/spot.md says so: a cost of 0 would be a lie."""
    cluster = running(RESTARTED[kind], PLAIN)
    cluster.world = None
    cluster.nodes["node-2"] = tainted("node-2", SPOT)
    cluster.settle()
    cluster.now += timedelta(seconds=91)
    cluster.settle()
    assert cluster.pods.pop("train-worker-2").is_deleting
    cluster.settle()
    entry = shown(cluster)[0]
    assert (entry.signal, entry.outcome) == ("aws-spot", "Left")
    assert entry.rescale
    assert "pauseMilliseconds" not in msgspec.to_builtins(entry)


@pytest.mark.parametrize("status", [{"reason": "DeadlineExceeded"}, {}])
def test_a_programs_own_end_is_no_disruption(status: dict[str, str]) -> None:
    cluster = running(elastic_job(3), PLAIN)
    failed(cluster, "train-worker-2", **status)
    cluster.settle()
    assert shown(cluster) == ()


def test_a_pod_that_a_node_refused_is_no_disruption() -> None:
    cluster = running(elastic_job(3))
    one = replace(cluster.pods["train-worker-2"], phase=PodPhase.FAILED, reason="NodeShutdown", containers=())
    cluster.pods["train-worker-2"] = one
    cluster.settle()
    assert shown(cluster) == ()


@pytest.mark.parametrize("meaning", ["gone", "leave"])
@pytest.mark.parametrize("row", ["seenIn: pod status, key: SpotReclaimed", "seenIn: pod condition, key: example.com/Reclaimed"])
def test_a_row_of_the_installation_about_pods_counts_also_once_they_have_failed(row: str, meaning: str) -> None:
    """Kubelets write the reason together with phase Failed: such rows were accepted and never noticed."""
    table = read_table(f"signals:\n- {{name: our-reclaim, {row}, meaning: {meaning}, leadSeconds: 9}}\n", name="signals.yaml").rows
    conditions = [{"type": "example.com/Reclaimed", "status": "True"}]
    ended = {"name": "pytorch", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    status = {"phase": "Failed", "reason": "SpotReclaimed", "conditions": conditions, "containerStatuses": [ended]}
    cluster = running(job(Master=replica(1, restart="Never"), Worker=replica(2, restart="Never")), PLAIN)
    seen = pod_from({"metadata": {"name": "train-worker-1"}, "status": status}, table)
    cluster.set("train-worker-1", PodPhase.FAILED, code=1, sights=seen.sights)
    look = replace(cluster.look(), pods=tuple(cluster.pods.values()))
    planned = plan(cluster.job, look)
    assert planned.status is not None
    assert planned.status.elastic is not None
    assert planned.status.elastic.restarts == {"disruption": 1}
    assert [entry.signal for entry in planned.status.elastic.disruptions] == ["our-reclaim"]


REBALANCE = "aws-node-termination-handler/rebalance-recommendation"


def told(cluster: Cluster, *taints: str) -> list[tuple[str, str]]:
    cluster.nodes["node-1"] = tainted("node-1", *taints)
    cluster.settle()
    return [(entry.signal, entry.outcome) for entry in shown(cluster)]


@pytest.mark.parametrize("settings", [OURS, PLAIN], ids=["ours", "static"])
def test_a_warning_that_becomes_a_notice_is_not_taken_back(settings: Settings) -> None:
    cluster = running(elastic_job(2, least=2) if settings is OURS else job(Master=replica(1), Worker=replica(1)), settings)
    warned = [("aws-rebalance", "")]
    assert told(cluster, REBALANCE) == warned
    assert told(cluster, REBALANCE, SPOT) == [*warned, ("aws-spot", "")]
    assert told(cluster, REBALANCE) == [*warned, ("aws-spot", "TakenBack")]
    assert told(cluster) == [("aws-rebalance", "TakenBack"), ("aws-spot", "TakenBack")]


def test_a_warning_ends_with_the_notice_that_it_became() -> None:
    cluster = running(elastic_job(2))
    told(cluster, REBALANCE)
    told(cluster, REBALANCE, SPOT)
    leaving = "train-worker-1"
    cluster.world = WorldSeen(2, frozenset({"train-worker-0"}), phase="running", size=1)
    cluster.pods.pop(leaving)
    cluster.settle()
    assert [(entry.signal, entry.outcome) for entry in shown(cluster)] == [("aws-rebalance", "Left"), ("aws-spot", "Left")]


def test_a_signal_that_is_taken_back_while_another_stands_has_ended() -> None:
    cluster = running(elastic_job(2, least=2))
    told(cluster, SPOT)
    assert told(cluster, SPOT, "cloud.google.com/impending-node-termination")[0] == ("aws-spot", "")
    assert told(cluster, "cloud.google.com/impending-node-termination") == [("aws-spot", "TakenBack"), ("gke-termination", "")]


QUEUED = {"kueue.x-k8s.io/queue-name": "team"}


def suspended(cluster: Cluster, *, labels: dict[str, str]) -> Cluster:
    known = cluster.job
    metadata, policy = structs.replace(known.metadata, labels=labels), structs.replace(known.run_policy, suspend=True)
    cluster.job = structs.replace(known, metadata=metadata, run_policy=policy)
    return cluster


@pytest.mark.parametrize("one", [elastic_job(2, least=2), job(Master=replica(1), Worker=replica(1))], ids=["elastic", "static"])
def test_a_job_whose_quota_kueue_takes_back_shows_that_until_its_pods_have_ended(one: Job) -> None:
    cluster = suspended(running(one, PLAIN), labels=QUEUED)
    plans = cluster.settle()
    assert shown(cluster) == (Disruption(signal="kueue-eviction", workers=2, noticed_at=NOW),)
    assert reasons(plans).count("DisruptionAnnounced") == 1
    cluster.now += timedelta(seconds=7)
    cluster.pods.clear()
    assert "DisruptionAnnounced" not in reasons(cluster.settle())
    assert [(entry.outcome, entry.ended_at) for entry in shown(cluster)] == [("Left", cluster.now)]
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.restarts == {}


def test_a_job_that_its_user_suspends_shows_no_disruption_and_the_end_of_those_before() -> None:
    cluster = running(elastic_job(2))
    cluster.nodes["node-1"] = tainted("node-1", SPOT)
    cluster.settle()
    suspended(cluster, labels={}).settle()
    assert [(entry.signal, entry.outcome) for entry in shown(cluster)] == [("aws-spot", "Left")]


def test_a_job_that_waits_for_its_queue_shows_no_disruption() -> None:
    cluster = suspended(Cluster(elastic_job(2)), labels=QUEUED)
    cluster.settle()
    assert cluster.job.status.elastic is None
