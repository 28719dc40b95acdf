"""The last workers with the state of training stay as long as a replacement can still get it; otherwise they are asked to save.

A spot notice of 120 s for the node of all workers deleted them after 85 s, although no other worker had the state. The replacements came
12 s later and began at step 0: 10,722 steps were lost.
"""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from job_builders import NOW, OURS, Cluster, deleted, job, replica, tainted
from msgspec import structs

from elastic.api.book import Disruption, Rescale
from elastic_training.controller.deciding.actions import JobEvent
from elastic_training.controller.deciding.rendezvous.readiness import Reason
from elastic_training.controller.facts.snapshot import InWorld, Node, PodPhase, WorldSeen

SPOT, GKE, AKS = "aws-node-termination-handler/spot-itn", "cloud.google.com/impending-node-termination", "remediator.kubernetes.azure.com"
HAS_STATE, HAS_NONE = InWorld(True, "StepReported", ""), InWorld()
REHEARSED = Rescale(
    id="7-x", cause="plan", from_size=1, to_size=2, phases={"detect": 60_000, "drain": 2_000, "start": 1_000, "firstStep": 3_000}
)


class Notified(Cluster):
    """A job whose workers all have the state. Worker 0 and 1 stand on node a, every other one on a node of its own."""

    def __init__(self, workers: int = 2, *, grace_s: int = 30, ends_within_s: int | None = 15, least: int = 0) -> None:
        spec: dict[str, Any] = {} if ends_within_s is None else {"terminationGracePeriodSeconds": ends_within_s}
        policy = {"minReplicas": least or workers, "maxReplicas": workers, "scaleInGraceSeconds": grace_s}
        super().__init__(job(Worker=replica(workers, **spec), elasticPolicy=policy), settings=OURS, lingering=True)
        self.settle()
        self.run_all()
        for index, name in enumerate(self.names()):
            self.pods[name] = replace(self.pods[name], node="a" if index < 2 else f"n{index}", in_world=HAS_STATE)
        self.nodes = {one.node: Node(one.node) for one in self.pods.values()}
        self.world = WorldSeen(generation=1, members=frozenset(self.pods), phase="running", size=workers)
        self.events: list[JobEvent] = []
        self.look_again_at = NOW
        self.at(0)

    def notice(self, node: str = "a", taint: str = SPOT) -> None:
        self.nodes[node] = tainted(node, taint)
        self.at((self.now - NOW).total_seconds())

    def at(self, seconds: float) -> list[str]:
        """Return the pods that are deleted once so many seconds have passed."""
        self.now = NOW + timedelta(seconds=seconds)
        plans = self.settle()
        self.events += [event for planned in plans for event in planned.news]
        self.look_again_at = plans[-1].look_again_at or self.now
        return sorted(name for planned in plans for name in deleted(planned))

    def arrive(self, *names: str) -> None:
        """Let the pods of these replacements run, with their agents at the rendezvous."""
        assert self.world is not None
        for name in names:
            self.set(name, PodPhase.RUNNING, node="b", in_world=HAS_NONE)
        self.world = replace(self.world, waiting=self.world.waiting | set(names))

    def exchange(self, *names: str, has_state: bool) -> None:
        """Form the next world of these members; they have the state once it has told a step."""
        assert self.world is not None
        self.world = replace(self.world, generation=2, members=frozenset(names), waiting=frozenset(), has_stepped=has_state)

    @property
    def asked_to_save(self) -> list[str]:
        return [event.message for event in self.events if event.reason == "AskedToSave"]

    @property
    def disruptions(self) -> tuple[Disruption, ...]:
        assert self.job.status.elastic is not None
        return self.job.status.elastic.disruptions


def test_the_last_workers_with_the_state_stay_until_no_replacement_can_have_it_in_time() -> None:
    """120 s of notice, 15 s of terminationGracePeriodSeconds, 5 s for an exchange that was not measured yet."""
    cluster = Notified()
    cluster.notice()
    assert cluster.at(86) == [], "they were deleted after 85 s"
    assert cluster.look_again_at == NOW + timedelta(seconds=100)
    assert cluster.at(99) == []
    assert cluster.asked_to_save == []
    assert cluster.at(100) == ["train-worker-0", "train-worker-1"]
    said = "signal aws-spot on node a: 20 s before the loss no replacement could have the state of training in time"
    assert cluster.asked_to_save == [f"PyTorchJob train: {said}, so the workers were asked to save."]
    assert cluster.disruptions[-1].asked_to_save_at == NOW + timedelta(seconds=100)


@pytest.mark.parametrize("ready_s", [85, 90, 95, 99])
def test_a_replacement_that_comes_before_that_still_gets_the_state(ready_s: int) -> None:
    """99 s is one second before the deadline: the exchange then has the five seconds that it takes."""
    cluster = Notified()
    cluster.notice()
    cluster.at(ready_s)
    cluster.arrive("train-worker-2", "train-worker-3")
    assert cluster.at(min(ready_s + 4, 104)) == []
    cluster.exchange("train-worker-0", "train-worker-2", "train-worker-3", has_state=False)
    assert cluster.at(104) == ["train-worker-1"], "worker 0 passes the state on; nobody needs worker 1"
    cluster.exchange("train-worker-2", "train-worker-3", has_state=True)
    assert cluster.at(104.5) == ["train-worker-0"]
    assert cluster.asked_to_save == []


def test_once_a_replacement_has_come_the_pod_still_ends_in_order() -> None:
    """An exchange that never ends does not take the time that the pod needs to end."""
    cluster = Notified()
    cluster.notice()
    cluster.at(90)
    cluster.arrive("train-worker-2", "train-worker-3")
    assert cluster.at(109) == [], "an exchange that takes longer than measured is not cut short"
    assert cluster.look_again_at == NOW + timedelta(seconds=110)
    assert cluster.at(110) == ["train-worker-0", "train-worker-1"]


def test_an_image_that_is_never_pulled_makes_the_workers_save_themselves() -> None:
    cluster = Notified()
    cluster.notice()
    for seconds in range(0, 100, 5):
        assert cluster.at(seconds) == []
    assert cluster.at(101) == ["train-worker-0", "train-worker-1"]
    cluster.at(110)
    assert len(cluster.asked_to_save) == len([one for one in cluster.disruptions if one.asked_to_save_at is not None]) == 1


def test_the_report_is_stored_before_the_pods_are_deleted() -> None:
    """A controller that died after the deletion, or whose status was refused, had reported nothing: the pods had another notice by then."""
    cluster = Notified()
    cluster.notice()
    cluster.now = NOW + timedelta(seconds=100)
    first = cluster.round()
    assert deleted(first) == []
    assert [event.reason for event in first.news] == ["AskedToSave"]
    assert deleted(cluster.round()) == ["train-worker-0", "train-worker-1"]


@pytest.mark.parametrize(
    ("taint", "grace_s", "ends_within_s", "seconds"),
    [
        (SPOT, 30, None, 85),  # both graces at their defaults
        (SPOT, 5, None, 110),
        (SPOT, 30, 0, 115),
        (GKE, 30, None, 15 - 7.5 - 3.75),  # a short notice is divided
        (GKE, 30, 2, 15 - 2 - 3.75),
        (f"{AKS}/unschedulable", 30, 15, 10),
        (f"{AKS}/unschedulable", 5, 15, 20),
    ],
)
def test_the_shorter_grace_counts_and_short_notices_are_divided(
    taint: str, grace_s: int, ends_within_s: int | None, seconds: float
) -> None:
    cluster = Notified(grace_s=grace_s, ends_within_s=ends_within_s)
    cluster.notice(taint=taint)
    assert cluster.at(seconds - 0.1) == []
    assert cluster.at(seconds) == ["train-worker-0", "train-worker-1"]
    assert len(cluster.asked_to_save) == 1


def test_a_measured_exchange_takes_the_place_of_a_guess() -> None:
    """The 60 s until the newcomer was noticed took nothing from training."""
    cluster = Notified()
    assert cluster.job.status.elastic is not None
    cluster.job = structs.replace(
        cluster.job, status=structs.replace(cluster.job.status, elastic=structs.replace(cluster.job.status.elastic, last_rescale=REHEARSED))
    )
    cluster.notice()
    assert cluster.look_again_at == NOW + timedelta(seconds=120 - 15 - 6)


def test_the_wait_for_pods_of_the_first_world_is_no_exchange() -> None:
    """The first world waited 50 s for its second pod; only the start of its processes says how long an exchange takes."""
    cluster = Notified()
    assert cluster.job.status.elastic is not None
    first = Rescale(id="1-x", cause="start", to_size=2, phases={"drain": 50_000, "round": 500, "start": 2_000, "firstStep": 1_500})
    cluster.job = structs.replace(
        cluster.job, status=structs.replace(cluster.job.status, elastic=structs.replace(cluster.job.status.elastic, last_rescale=first))
    )
    cluster.notice()
    assert cluster.look_again_at == NOW + timedelta(seconds=120 - 15 - 3.5)


def test_if_another_worker_has_the_state_the_pod_goes_as_before() -> None:
    """Worker 2 stands on another node: nothing is lost with the others, and it needs a group to train in."""
    cluster = Notified(3)
    cluster.notice()
    assert cluster.at(84.9) == []
    assert cluster.at(85) == ["train-worker-0", "train-worker-1"]
    assert cluster.asked_to_save == []
    assert cluster.disruptions[-1].asked_to_save_at is None


@pytest.mark.parametrize("reason", ["SpareWorker", "WorldUnseen"])
def test_a_worker_that_is_ready_without_the_state_is_no_holder(reason: str) -> None:
    cluster = Notified(3)
    cluster.pods["train-worker-2"] = replace(cluster.pods["train-worker-2"], in_world=InWorld(True, reason, ""))
    assert cluster.world is not None
    cluster.world = replace(cluster.world, members=frozenset({"train-worker-0", "train-worker-1"}))
    cluster.notice()
    assert cluster.at(99) == []
    assert cluster.at(100) == ["train-worker-0", "train-worker-1"]


def test_the_node_with_the_later_notice_keeps_the_state() -> None:
    cluster = Notified(3)
    cluster.notice("a")
    cluster.at(30)
    cluster.notice("n2")
    assert cluster.at(85) == ["train-worker-0", "train-worker-1"], "worker 2 has the state for 65 s more"
    assert cluster.at(129) == []
    assert cluster.at(130) == ["train-worker-2"]
    assert ["on node n2" in words for words in cluster.asked_to_save] == [True]


def test_a_second_notice_that_comes_late_makes_the_first_workers_no_longer_the_last() -> None:
    """Both nodes go within two seconds of each other: the state stays in the one that goes last."""
    cluster = Notified(3)
    cluster.notice("n2")
    cluster.at(2)
    cluster.notice("a")
    assert cluster.at(85) == ["train-worker-2"]
    assert cluster.at(101) == []
    assert cluster.at(102) == ["train-worker-0", "train-worker-1"]


def test_a_notice_that_is_taken_back_asks_nobody_to_save() -> None:
    cluster = Notified()
    cluster.notice()
    cluster.at(99)
    cluster.nodes["a"] = Node("a")
    assert not {"train-worker-0", "train-worker-1"} & set(cluster.at(100))
    assert cluster.asked_to_save == []


def test_the_reasons_that_show_the_state_are_those_that_the_controller_writes() -> None:
    met = [reason for reason in Reason if InWorld(True, reason.value, "").has_state]
    assert met == [Reason.STEP_REPORTED, Reason.WORLD_STANDS]
