"""A job whose state is only on a node that does not answer may wait for that node (`waitForLostStateSeconds`).

A node with both workers of a job was silent for a minute. The replacements began at step 0, while the cut workers trained on among
themselves. When the node came back, 4,675 steps were thrown away.
"""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from job_builders import NOW, OURS, Cluster, elastic_job, job, replica, tainted
from rendezvous_group import Group, group_of

from elastic.api import parse
from elastic.api.errors import SpecError
from elastic.api.job import to_object
from elastic.membership.phases import WorldPhase
from elastic.membership.wire import LeaveOrder
from elastic_training.controller.acting.link import expectation
from elastic_training.controller.deciding.actions import SetExpectation
from elastic_training.controller.facts.snapshot import InWorld, Node, PodPhase, WorldSeen
from elastic_training.rendezvous.engine.events import Stepped
from elastic_training.rendezvous.engine.views import summary

SILENT, OFF = "node.kubernetes.io/unreachable", "node.kubernetes.io/out-of-service"
BOTH, NEW = ("train-worker-0", "train-worker-1"), ("w2", "w3")


GOING = tuple(LeaveOrder(member=name, cause="disruption", pod_uid=name) for name in ("w0", "w1"))


# --- the server


def cut_off(*, await_s: float, awaited: tuple[str, ...] = ("w0", "w1")) -> Group:
    """Lose both members of a world that had made steps, and let their replacements come to the barrier."""
    group = group_of(2, min=2)
    group.apply(Stepped(1, 4675))
    for name in ("w0", "w1"):
        group.cut(name, noticed=False)
    group.advance(25)
    group.expect(*NEW, min=2, max=3, newcomers=NEW, leaving=GOING, awaited=awaited, await_s=await_s)
    for name in NEW:
        group.start(name)
    group.advance(10)
    return group


def test_without_the_option_the_replacements_begin_at_once() -> None:
    assert set(cut_off(await_s=0.0).world()) == set(NEW)


def test_no_world_is_formed_without_the_state_until_the_time_has_passed() -> None:
    group = cut_off(await_s=360.0)
    assert group.world().keys().isdisjoint(NEW)
    assert "none of them has the state of training" in summary(group.job).reason
    group.advance(300)
    assert group.world().keys().isdisjoint(NEW)
    group.advance(60)
    assert set(group.world()) == set(NEW)


def test_a_worker_that_comes_back_passes_its_state_on() -> None:
    group = cut_off(await_s=360.0)
    for name in ("w0", "w1"):
        group.link(name)
    group.come_all()
    group.advance(10)
    assert {"w0", "w1"} & group.world().keys(), "a worker with the state is in the next world"
    rescaled = summary(group.job).rescale
    assert rescaled is not None
    assert not rescaled.state_lost


def test_the_wait_ends_when_the_controller_says_that_the_pods_are_gone() -> None:
    group = cut_off(await_s=360.0)
    group.expect(*NEW, min=2, newcomers=NEW, leaving=GOING, await_s=360.0)
    group.advance(6)
    assert set(group.world()) == set(NEW)


def test_a_server_that_was_lost_with_the_node_waits_too() -> None:
    """The new server knows nothing of the world; the controller tells it who has the state."""
    group = cut_off(await_s=360.0)
    group.start_server()
    group.expect(*NEW, min=2, newcomers=NEW, leaving=GOING, awaited=("w0", "w1"), await_s=360.0, step=4675)
    for name in NEW:
        group.link(name)
    group.advance(60)
    assert group.world() == {}
    group.link("w0")
    for _ in range(10):
        group.come_all()
        group.advance(2)
    assert "w0" in group.world()


def test_a_job_whose_other_workers_have_the_state_does_not_wait() -> None:
    group = group_of(3, min=1)
    group.apply(Stepped(1, 7))
    group.cut("w2", noticed=False)
    group.expect("w0", "w1", "w2", awaited=("w0", "w1", "w2"), await_s=360.0)
    group.advance(25)
    group.come_all()
    group.advance(5)
    assert set(group.world()) == {"w0", "w1"}


# --- the controller


class Silenced(Cluster):
    """A job with the option, whose two workers have the state and stand on one node."""

    def __init__(self, seconds: int = 300) -> None:
        super().__init__(elastic_job(2, least=2, most=2, elastic={"waitForLostStateSeconds": seconds}), settings=OURS, lingering=True)
        self.settle()
        self.run_all()
        for name in self.names():
            self.pods[name] = replace(self.pods[name], node="a", in_world=InWorld(True, "StepReported", ""))
        self.nodes = {"a": Node("a"), "b": Node("b")}
        self.world = WorldSeen(generation=1, members=frozenset(self.pods), phase="running", size=2)
        self.settle()

    def silence(self, taint: str = SILENT) -> None:
        self.nodes["a"] = tainted("a", taint)
        self.world = WorldSeen(generation=1, members=frozenset(), phase=WorldPhase.RE_FORMING)
        self.settle()
        self.run_all()
        for name, one in self.pods.items():
            if name not in BOTH:
                self.pods[name] = replace(one, node="b", in_world=InWorld())
        self.settle()

    def after(self, seconds: float) -> None:
        self.now = NOW + timedelta(seconds=seconds)
        self.settle()

    @property
    def said(self) -> SetExpectation:
        return next(action for action in reversed(self.told) if isinstance(action, SetExpectation))

    @property
    def waits_for(self) -> str:
        assert self.job.status.elastic is not None
        return self.job.status.elastic.waits_for


def test_the_replacements_are_created_and_the_server_is_told_whom_to_wait_for() -> None:
    cluster = Silenced()
    cluster.silence()
    assert cluster.names() == [*BOTH, "train-worker-2", "train-worker-3"]
    assert (cluster.said.awaited, cluster.said.await_s) == (BOTH, 360.0)
    said = expectation(cluster.said, now=NOW)
    assert (said.awaited, said.await_s) == (BOTH, 360.0)
    words = "the state of training, which only train-worker-0, train-worker-1 on unreachable a have, until 12:05:00 UTC"
    assert cluster.waits_for == f"{words} (waitForLostStateSeconds)"


def test_the_server_knows_before_the_node_is_marked_as_unreachable() -> None:
    """A replacement of another worker may be at the barrier by then: it must not begin without the state."""
    cluster = Silenced()
    assert cluster.said.awaited == BOTH
    assert cluster.waits_for == ""


def test_the_wait_ends_with_its_time_also_for_a_controller_that_was_started_in_between() -> None:
    cluster = Silenced()
    cluster.silence()
    planned = cluster.settle()[-1]
    assert planned.look_again_at == NOW + timedelta(seconds=300)
    cluster.after(299)
    assert cluster.said.awaited == BOTH
    cluster.after(300)
    assert (cluster.said.awaited, cluster.waits_for) == ((), "")


def test_a_node_that_comes_back_ends_the_wait() -> None:
    cluster = Silenced()
    cluster.silence()
    cluster.nodes["a"] = Node("a")
    cluster.after(60)
    assert cluster.waits_for == ""
    assert cluster.said.awaited == BOTH, "they have the state"
    assert not any(cluster.pods[name].is_deleting for name in BOTH)


def gone(cluster: Silenced, how: str) -> None:
    match how:
        case "deleted":
            for name in BOTH:
                cluster.pods[name] = replace(cluster.pods[name], is_deleting=True)
        case "failed":
            for name in BOTH:
                cluster.set(name, PodPhase.FAILED)
        case "node gone":
            del cluster.nodes["a"]
    cluster.settle()


@pytest.mark.parametrize("how", ["deleted", "failed", "node gone"])
def test_pods_that_are_known_to_be_gone_are_not_waited_for(how: str) -> None:
    cluster = Silenced()
    cluster.silence()
    gone(cluster, how)
    assert (cluster.said.awaited, cluster.waits_for) == ((), "")


def test_a_node_that_is_known_to_be_off_is_not_waited_for() -> None:
    cluster = Silenced()
    cluster.silence(OFF)
    assert (cluster.said.awaited, cluster.waits_for) == ((), "")


def test_without_the_option_nothing_is_said() -> None:
    cluster = Silenced(0)
    cluster.silence()
    assert (cluster.said.awaited, cluster.said.await_s, cluster.waits_for) == ((), 0.0, "")


# --- the field


@pytest.mark.parametrize("policy", [{"rdzvBackend": "c10d"}, {"rdzvBackend": "etcd"}])
def test_if_nobody_can_wait_the_field_is_refused(policy: dict[str, Any]) -> None:
    of = job(Worker=replica(2), elasticPolicy={"minReplicas": 1, "maxReplicas": 2, **policy})
    raw = to_object(of)
    raw["spec"]["elasticPolicy"]["waitForLostStateSeconds"] = 300
    words = "waitForLostStateSeconds is 300, but only a PyTorchJob with rdzvBackend elastic can wait for the state; remove it"
    with pytest.raises(SpecError, match=words):
        parse(raw)


@pytest.mark.parametrize("value", [-1, "300", 1.5])
def test_an_invalid_time_is_refused_by_name(value: object) -> None:
    raw = to_object(elastic_job(2))
    raw["spec"]["elasticPolicy"]["waitForLostStateSeconds"] = value
    with pytest.raises(SpecError, match="waitForLostStateSeconds"):
        parse(raw)
