"""Several signals about one worker: the one with the least time counts for as long as it is there; times count from first sights."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from job_builders import NOW, OURS, Cluster, elastic_job, job, pod, replica, snapshot, tainted
from test_plan_doomed_pods import running as doomed

from elastic.api.book import Leaving
from elastic.signals.signal import Meaning
from elastic_training.controller.deciding.lifecycle.disruption import Notice, asked_to_leave, notices, with_notice
from elastic_training.controller.facts.snapshot import Node, PodPhase, WorldSeen

KARPENTER, SPOT, GKE = "karpenter.sh/disrupted", "aws-node-termination-handler/spot-itn", "cloud.google.com/impending-node-termination"
REMOVED, GONE = "ToBeDeletedByClusterAutoscaler", "node.kubernetes.io/unreachable"
TWO_DAYS = {"karpenter.sh/nodeclaim-termination-timestamp": (NOW + timedelta(days=2)).isoformat()}


def unix(seconds: float) -> str:
    return str(int((NOW + timedelta(seconds=seconds)).timestamp()))


def azure(event: str, minutes: int) -> dict[str, Any]:
    message = f"{event} Scheduled: Thu, 01 Jan 2026 12:{minutes:02}:00 GMT"
    return {"status": {"conditions": [{"type": "VMEventScheduled", "status": "True", "message": message}]}}


class Told:
    """The status of one worker as the seconds go by. Its node and its pod show given signs."""

    def __init__(self) -> None:
        self.pod = pod(node="n")
        self.node = Node("n")
        self.entry: Leaving | None = None
        self.notice: Notice | None = None

    def at(self, seconds: float, *taints: str, **node: Any) -> tuple[str, float]:
        """Return the signal, and by when the worker is lost."""
        self.node = tainted("n", *taints, **node)
        look = snapshot(self.pod, after_s=seconds, nodes={"n": self.node})
        self.notice = notices(look, [self.entry] if self.entry is not None else []).get(self.pod.name)
        if self.notice is None:
            self.entry = None
            return ("", 0.0)
        self.entry = with_notice(self.entry, self.notice) if self.entry is not None else asked_to_leave(self.pod, self.notice)
        assert self.entry.by is not None
        return self.entry.signal, (self.entry.by - NOW).total_seconds()


@pytest.mark.parametrize("later", [{REMOVED: ""}, {REMOVED: unix(100)}, {GKE: ""}, {SPOT: ""}])
def test_a_second_signal_that_leaves_more_time_gives_nobody_more(later: dict[str, str]) -> None:
    """After 100 of 120 s Karpenter's node was to be removed by cluster-autoscaler, too: the worker got 160 s."""
    told = Told()
    first = ("karpenter-disrupted", 120.0)
    assert told.at(0, KARPENTER) == first
    more = [f"{key}={value}" for key, value in later.items()]
    signal, by = told.at(100, KARPENTER, *more)
    assert (signal, by) == (first if GKE not in later else ("gke-termination", 115.0))


def test_the_end_of_a_grace_of_days_extends_no_notice_of_minutes() -> None:
    told = Told()
    told.at(0, KARPENTER)
    assert told.at(100, KARPENTER, annotations=TWO_DAYS) == ("karpenter-disrupted", 120.0)
    assert Told().at(0, KARPENTER, annotations=TWO_DAYS) == ("karpenter-disrupted", 120.0)


def test_a_stale_notice_gives_way_to_one_with_seconds_left() -> None:
    labels = {"aws-node-termination-handler/action-time": unix(-110)}
    assert Told().at(0, f"{REMOVED}={unix(-3600)}", SPOT, labels=labels) == ("aws-spot", 10.0)


@pytest.mark.parametrize(("taint", "expected"), [(GKE, ("gke-termination", 15.0)), (GONE, ("node-unreachable", 0.0))])
def test_the_node_may_have_less_time_than_the_pod_itself(taint: str, expected: tuple[str, float]) -> None:
    told = Told()
    told.pod = replace(told.pod, disruption="EvictionByEvictionAPI")
    assert told.at(0, taint) == expected


def test_the_pod_itself_may_have_less_time_than_its_node() -> None:
    told = Told()
    told.pod = replace(told.pod, disruption="EvictionByEvictionAPI")
    assert told.at(0, SPOT) == ("pod-eviction-by-eviction-api", 30.0)


def test_nothing_is_more_urgent_than_a_node_that_is_gone() -> None:
    told = Told()
    labels = {"aws-node-termination-handler/action-time": unix(-115)}
    assert told.at(0, SPOT, labels=labels) == ("aws-spot", 5.0)
    assert told.at(20, SPOT, GONE, labels=labels) == ("node-unreachable", 20.0)
    assert told.notice is not None
    assert told.notice.meaning is Meaning.GONE


def test_a_mere_warning_shortens_no_notice() -> None:
    told = Told()
    told.at(0, "aws-node-termination-handler/rebalance-recommendation")
    assert told.at(1000, "aws-node-termination-handler/rebalance-recommendation", SPOT) == ("aws-spot", 1120.0)


def test_when_the_earlier_signal_is_taken_back_the_others_time_counts_from_its_own_first_sight() -> None:
    told = Told()
    told.at(0, KARPENTER)
    told.at(100, KARPENTER, REMOVED)
    told.at(105, KARPENTER, REMOVED)
    assert told.at(110, REMOVED) == ("autoscaler-to-be-deleted", 160.0)
    assert told.at(120, REMOVED) == ("autoscaler-to-be-deleted", 160.0)
    assert told.at(130) == ("", 0.0)


def test_an_eviction_that_is_called_off_leaves_the_nodes_time() -> None:
    told = Told()
    told.at(0, KARPENTER)
    told.pod = replace(told.pod, disruption="PreemptionByScheduler")
    assert told.at(10, KARPENTER) == ("karpenter-disrupted", 40.0)
    assert told.at(20, KARPENTER) == ("karpenter-disrupted", 40.0)
    told.pod = replace(told.pod, disruption="")
    assert told.at(30, KARPENTER) == ("karpenter-disrupted", 120.0)


def test_a_deletion_by_us_is_still_the_disruption_that_was_announced_also_if_that_is_taken_back() -> None:
    told = Told()
    told.at(0, KARPENTER)
    told.pod = replace(told.pod, is_deleting=True, gone_by=NOW + timedelta(seconds=90))
    assert told.at(60, KARPENTER) == told.at(61) == ("karpenter-disrupted", 90.0)


@pytest.mark.parametrize("minutes", [15, 3])
def test_a_time_that_the_object_moves_is_taken_over(minutes: int) -> None:
    """AKS put a termination off from 12:05 to 12:15, and the pod was deleted before 12:05."""
    told = Told()
    assert told.at(0, **azure("Terminate", 5)) == ("aks-terminate", 300.0)
    assert told.at(60, **azure("Terminate", minutes)) == ("aks-terminate", 60.0 * minutes)


def until(minutes: int) -> dict[str, Any]:
    return {"annotations": {"karpenter.sh/node-termination-time": f"2026-01-01T12:{minutes:02}:00Z"}}


def given_at(seconds: float) -> dict[str, Any]:
    return {"labels": {"aws-node-termination-handler/action-time": unix(seconds)}}


MOVED = [((), until(5), until(9), 300, 540), ((SPOT,), given_at(-60), given_at(30), 60, 150)]


@pytest.mark.parametrize(("taints", "before", "after", "first", "second"), MOVED)
def test_a_moved_annotation_or_label_is_taken_over(
    taints: tuple[str, ...], before: dict[str, Any], after: dict[str, Any], first: float, second: float
) -> None:
    told = Told()
    assert told.at(0, *taints, **before)[1] == first
    assert told.at(30, *taints, **after)[1] == second


def test_a_moved_value_is_taken_over() -> None:
    told = Told()
    assert told.at(0, f"{REMOVED}={unix(-20)}")[1] == 40
    assert told.at(30, f"{REMOVED}={unix(25)}")[1] == 85


@pytest.mark.parametrize("node", [azure("Terminate", 5), until(5)])
def test_a_time_that_has_passed_moves_no_more(node: dict[str, Any]) -> None:
    told = Told()
    assert told.at(0, **node)[1] == 300
    assert told.at(301, **node)[1] == told.at(500, **node)[1] == 300


SIGNALS = some.sampled_from([KARPENTER, SPOT, GKE, REMOVED, "aws-node-termination-handler/rebalance-recommendation"])


@given(some.lists(some.tuples(some.integers(1, 50), some.sets(SIGNALS)), max_size=8))
def test_while_a_signal_stands_no_other_gives_the_worker_more_time(looks: list[tuple[int, set[str]]]) -> None:
    """Compare with a model that remembers every first sight."""
    told, now, first = Told(), 0, {}
    leads = {KARPENTER: 120, SPOT: 120, GKE: 15, REMOVED: 60}
    for seconds, taints in looks:
        now += seconds
        first = {taint: first.get(taint, now + leads[taint]) for taint in sorted(taints) if taint in leads}
        _, by = told.at(now, *sorted(taints))
        if first:
            assert by == min(first.values())


@pytest.mark.parametrize("seconds", [84, 86])
def test_at_our_rendezvous_the_pod_goes_by_the_earlier_time(seconds: int) -> None:
    cluster = Cluster(elastic_job(1, most=1), settings=OURS, lingering=True)
    cluster.settle()
    cluster.run_all()
    cluster.pods["train-worker-0"] = replace(cluster.pods["train-worker-0"], node="n")
    cluster.nodes = {"n": tainted("n", KARPENTER)}
    cluster.world = WorldSeen(generation=1, members=frozenset(cluster.pods), phase="running")
    cluster.settle()
    cluster.nodes = {"n": tainted("n", KARPENTER, annotations=TWO_DAYS)}
    cluster.now = NOW + timedelta(seconds=seconds)
    cluster.settle()
    assert cluster.pods["train-worker-0"].is_deleting == (seconds > 85)


@pytest.mark.parametrize("seconds", [89, 91])
def test_if_nobody_can_be_asked_the_pod_goes_by_the_earlier_time_too(seconds: int) -> None:
    cluster = doomed(job(Master=replica(1), Worker=replica(1)))
    cluster.nodes["node-1"] = tainted("node-1", KARPENTER)
    cluster.settle()
    cluster.nodes["node-1"] = tainted("node-1", KARPENTER, annotations=TWO_DAYS)
    cluster.now = NOW + timedelta(seconds=seconds)
    cluster.settle()
    assert cluster.pods["train-worker-0"].is_deleting == (seconds > 90)


def test_a_pod_whose_node_falls_silent_after_its_notice_is_still_leaving() -> None:
    """Its end was charged: the notice counted as taken back."""
    cluster = doomed(job(Master=replica(1), Worker=replica(1, restart="Never")))
    cluster.nodes["node-1"] = tainted("node-1", SPOT)
    cluster.settle()
    cluster.nodes["node-1"] = tainted("node-1", SPOT, GONE)
    cluster.settle()
    cluster.set("train-worker-0", PodPhase.FAILED, code=1)
    cluster.settle()
    assert cluster.state() == "Running"
