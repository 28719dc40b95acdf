"""Stragglers that the rendezvous server reports: in the status, in Events, in what commands say, and replaced if the job asks for it."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cli_api import PYTORCH
from cli_api import job as served
from cli_api import running as shown
from job_builders import OURS, Cluster, created, elastic_job, reasons
from msgspec import structs

from elastic.client.explanation import findings
from elastic.client.summary import summary
from elastic.kube.resources import PODS
from elastic.membership import wire
from elastic_training.controller.acting.link import _world
from elastic_training.controller.deciding.actions import Create, Plan, SetExpectation
from elastic_training.controller.deciding.rendezvous.straggler_replacement import GAP_S, HOUR_S, MOST_AN_HOUR, PATIENCE_S
from elastic_training.controller.facts.snapshot import Node, PodPhase, WorldSeen
from elastic_training.rendezvous.engine.messages.pace import Slowness, Straggler
from elastic_training.rendezvous.engine.values import replace as replaced

SLOW = Straggler(
    rank=2, member="train-worker-2", local_rank=0, kind=Slowness.COMPUTE, percent=210, own_s=0.44, usual_s=0.21, part_s=0.4,
    usual_part_s=0.19, for_s=60.0, among=3,
)  # fmt: skip
WORDS = (
    "rank 2 (train-worker-2 on node-2) needs 2.1 times the median of 0.21 s a step: "
    "it computes for 0.4 s a step, and the median is 0.19 s; "
    "compare its node with the others, and its share of the work"
)
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def made(plans: Iterable[Plan], name: str) -> Mapping[str, Any]:
    """Return the pod of this name, as it was created."""
    actions = [action for planned in plans for action in planned.actions]
    return next(one.object for one in actions if isinstance(one, Create) and one.resource == PODS and one.name == name)


class Training(Cluster):
    """A job whose workers all train, each on a node of its own."""

    def __init__(self, **elastic: Any) -> None:
        super().__init__(elastic_job(3, least=3, most=3, elastic=elastic), settings=OURS, lingering=True)
        self.settle()
        self.run_all()
        for index, name in enumerate(self.names()):
            self.pods[name] = replace(self.pods[name], node=f"node-{index}")
        self.nodes = {f"node-{index}": Node(f"node-{index}") for index in range(3)}
        self.train(self.names())
        self.settle()

    def train(self, members: list[str], *slow: Straggler, generation: int = 1) -> None:
        """Let a world of these members work, in which these ranks are slow."""
        self.world = WorldSeen(generation, frozenset(members), phase="running", ranked=tuple(members), stragglers=slow)

    def after(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def sent(self) -> SetExpectation:
        return next(action for action in reversed(self.told) if isinstance(action, SetExpectation))

    def replacements(self) -> set[str]:
        return {entry.member for entry in self.sent().leaving}

    def exchange(self, old: str, new: str) -> None:
        """Let the new worker take the place of the old one, whose pod then ends."""
        self.run_all()
        self.pods[new] = replace(self.pods[new], node="node-9")
        self.nodes["node-9"] = Node("node-9")
        assert self.world is not None
        members = sorted({*self.world.members, new} - {old})
        self.train(members, generation=self.world.generation + 1)
        self.settle()
        assert self.pods.pop(old).is_deleting
        self.settle()

    @property
    def status(self) -> Any:
        return self.job.status.elastic


def test_a_straggler_is_in_the_status_and_told_once_until_it_is_fast_again() -> None:
    cluster = Training()
    cluster.train(cluster.names(), SLOW)
    plans = cluster.settle()
    (entry,) = cluster.status.stragglers
    assert (entry.rank, entry.pod, entry.node, entry.kind, entry.percent) == (2, "train-worker-2", "node-2", "Compute", 210)
    assert (entry.message, entry.since) == (WORDS, (cluster.now - timedelta(seconds=60)).replace(microsecond=0))
    cluster.after(600)
    plans += cluster.settle()
    assert reasons(plans).count("Straggler") == 1
    assert cluster.status.stragglers == (entry,), "since when does not change"
    assert cluster.replacements() == set()
    cluster.train(cluster.names())
    plans = cluster.settle()
    assert cluster.status.stragglers == ()
    assert reasons(plans).count("StragglerRecovered") == 1


def test_a_rank_that_is_slow_in_another_way_is_told_again() -> None:
    cluster = Training()
    cluster.train(cluster.names(), SLOW)
    plans = cluster.settle()
    cluster.train(cluster.names(), replaced(SLOW, kind=Slowness.DATA))
    plans += cluster.settle()
    assert (reasons(plans).count("Straggler"), reasons(plans).count("StragglerRecovered")) == (2, 0)


def test_a_straggler_that_gets_another_rank_is_the_same_one() -> None:
    cluster = Training()
    cluster.train(cluster.names(), SLOW)
    cluster.settle()
    cluster.train(cluster.names(), replaced(SLOW, rank=0), generation=2)
    plans = cluster.settle()
    assert cluster.status.stragglers[0].rank == 0
    assert not {"Straggler", "StragglerRecovered"} & set(reasons(plans))


def test_a_server_that_has_just_started_takes_back_nothing() -> None:
    cluster = Training()
    cluster.train(cluster.names(), SLOW)
    cluster.settle()
    assert cluster.world is not None
    cluster.world = replace(cluster.world, stragglers=None)
    cluster.settle()
    assert [one.pod for one in cluster.status.stragglers] == ["train-worker-2"]
    del cluster.pods["train-worker-2"]
    cluster.settle()
    assert cluster.status.stragglers == (), "its pod is gone"


def test_nothing_is_measured_or_said_if_the_job_ignores_stragglers() -> None:
    cluster = Training(stragglers="Ignore")
    assert cluster.sent().budget.pace_s == 0.0
    cluster.train(cluster.names(), SLOW)
    plans = cluster.settle()
    assert (cluster.status.stragglers, "Straggler" in reasons(plans)) == ((), False)


def test_the_link_passes_on_what_the_server_knows() -> None:
    heard = wire.WorldReport(job="uid", generation=1, phase="running", stragglers=(SLOW,))
    cluster = Training()
    assert _world(heard, None, now=cluster.now).stragglers == (SLOW,)
    assert _world(wire.WorldReport(job="uid", generation=1, phase="running"), None, now=cluster.now).stragglers is None


def test_commands_say_which_rank_is_slow() -> None:
    entry = {"rank": 2, "pod": "train-worker-2", "kind": "Compute", "message": WORDS, "since": "2026-01-01T01:50:00Z"}
    of = served(status=shown(worldSize=3, stragglers=[entry]), elasticPolicy={"minReplicas": 1, "maxReplicas": 4})
    told = summary(PYTORCH, of)
    assert told.awaits() == "rank 2 (train-worker-2), which is slow: Compute"
    found = [one for one in findings(told, [], of["spec"], datetime(2026, 1, 1, 2, tzinfo=UTC)) if one.reason == "Straggler"]
    assert [one.message for one in found] == [f"R{WORDS[1:]}. It has been slow for 10m."]


# --- Replace


def test_a_straggler_is_replaced_while_all_train_on() -> None:
    cluster = Training(stragglers="Replace")
    cluster.train(cluster.names(), SLOW)
    plans = cluster.settle()
    assert [name for planned in plans for name in created(planned)] == ["train-worker-3"]
    sent = cluster.sent()
    assert (cluster.replacements(), sent.when_replaced) == ({"train-worker-2"}, {"train-worker-2"})
    assert sent.members == ("train-worker-0", "train-worker-1", "train-worker-3")
    assert not cluster.pods["train-worker-2"].is_deleting, "it trains until the other one is there"
    pod = made(plans, "train-worker-3")
    wishes = json.dumps(pod["spec"]["affinity"]["nodeAffinity"][PREFERRED])
    assert '"node-2"' in wishes
    cluster.exchange("train-worker-2", "train-worker-3")
    assert cluster.names() == ["train-worker-0", "train-worker-1", "train-worker-3"]
    assert (cluster.replacements(), cluster.status.stragglers) == (set(), ())
    assert cluster.status.restarts == {}, "no restart is counted"
    assert [(one.signal, one.outcome) for one in cluster.status.disruptions] == [("Straggler", "Left")]


def test_a_throttled_worker_may_come_back_to_its_node() -> None:
    cluster = Training(stragglers="Replace")
    cluster.train(cluster.names(), replaced(SLOW, kind=Slowness.THROTTLED))
    plans = cluster.settle()
    pod = made(plans, "train-worker-3")
    assert "node-2" not in json.dumps(pod["spec"].get("affinity"))


@pytest.mark.parametrize("elastic", [{}, {"stragglers": "Report"}])
def test_nobody_is_replaced_unasked(elastic: dict[str, Any]) -> None:
    cluster = Training(**elastic)
    cluster.train(cluster.names(), SLOW)
    cluster.settle()
    assert cluster.replacements() == set()


@pytest.mark.parametrize("kind", [Slowness.OUTSIDE, Slowness.NETWORK])
def test_a_slowness_that_another_pod_would_have_too_replaces_nobody(kind: Slowness) -> None:
    cluster = Training(stragglers="Replace")
    cluster.train(cluster.names(), replaced(SLOW, kind=kind))
    cluster.settle()
    assert cluster.replacements() == set()


def test_an_incomplete_job_replaces_nobody() -> None:
    cluster = Training(stragglers="Replace")
    cluster.train(cluster.names()[1:], SLOW)
    cluster.settle()
    assert cluster.replacements() == set()


def test_a_worker_that_is_fast_again_before_its_replacement_comes_stays() -> None:
    cluster = Training(stragglers="Replace")
    cluster.train(cluster.names(), SLOW)
    cluster.settle()
    cluster.train(cluster.names()[:3])
    cluster.settle()
    assert cluster.replacements() == set()
    assert [name for name, pod in cluster.pods.items() if not pod.is_deleting] == ["train-worker-0", "train-worker-1", "train-worker-2"]


def test_without_room_for_a_replacement_the_worker_stays_and_nothing_is_tried_for_a_while() -> None:
    cluster = Training(stragglers="Replace")
    members = cluster.names()
    cluster.train(members, SLOW)
    cluster.settle()
    assert cluster.round().look_again_at == cluster.now + timedelta(seconds=PATIENCE_S)
    cluster.after(PATIENCE_S - 1)
    cluster.settle()
    assert cluster.replacements() == {"train-worker-2"}
    cluster.after(1)
    cluster.settle()
    cluster.pods = {name: pod for name, pod in cluster.pods.items() if not pod.is_deleting}
    assert (cluster.replacements(), cluster.names()) == (set(), members)


def test_replacements_are_limited() -> None:
    cluster = Training(stragglers="Replace")
    for number in range(MOST_AN_HOUR):
        old, new = f"train-worker-{number + 1}", f"train-worker-{number + 3}"
        cluster.train(cluster.names(), replaced(SLOW, member=old), generation=number + 2)
        if number:
            assert cluster.settle()[-1].look_again_at == cluster.now + timedelta(seconds=GAP_S)
            assert cluster.replacements() == set(), "at most one in ten minutes"
            cluster.after(GAP_S)
        cluster.settle()
        assert cluster.replacements() == {old}
        cluster.exchange(old, created_now(cluster, new))
    cluster.after(GAP_S)
    cluster.train(cluster.names(), replaced(SLOW, member="train-worker-0"), generation=9)
    cluster.settle()
    assert cluster.replacements() == set()
    cluster.after(HOUR_S - MOST_AN_HOUR * GAP_S)
    cluster.settle()
    assert cluster.replacements() == {"train-worker-0"}


def created_now(cluster: Training, wanted: str) -> str:
    """Return the newest pod, which is the replacement."""
    pending = [name for name, pod in cluster.pods.items() if pod.phase.name == "PENDING"]
    return pending[-1] if pending else wanted


def test_two_stragglers_are_replaced_one_after_the_other() -> None:
    cluster = Training(stragglers="Replace")
    cluster.train(cluster.names(), SLOW, replaced(SLOW, rank=1, member="train-worker-1"))
    cluster.settle()
    assert cluster.replacements() == {"train-worker-2"}, "the slowest first"


def test_a_straggler_does_not_outlive_its_job() -> None:
    cluster = Training()
    cluster.train(cluster.names(), SLOW)
    cluster.settle()
    for name in cluster.names():
        cluster.set(name, PodPhase.SUCCEEDED)
    plans = cluster.settle()
    assert cluster.state() == "Succeeded"
    assert cluster.status.stragglers == ()
    assert "StragglerRecovered" not in reasons(plans), "it was slow to its end"


def test_a_suspended_job_has_no_straggler() -> None:
    cluster = Training()
    cluster.train(cluster.names(), SLOW)
    cluster.settle()
    cluster.job = structs.replace(cluster.job, run_policy=structs.replace(cluster.job.run_policy, suspend=True))
    cluster.settle()
    assert cluster.status.stragglers == ()
