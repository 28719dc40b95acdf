"""Saves of `elastic_worker.Run` fail on a full disk: the status, an Event and `elastic explain` say so until a save succeeds."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from cli_api import PYTORCH, Api, Object, elastic, running
from cli_api import job as served
from cli_api import served as serve
from job_builders import NOW, OURS, Cluster, elastic_job, reasons
from rendezvous_group import Group, group_of

from elastic.client.explanation import findings
from elastic.client.summary import summary as summary_of
from elastic.membership import wire
from elastic_training.controller.facts.snapshot import PodPhase, WorldSeen
from elastic_training.rendezvous.engine.failing_saves import sentence
from elastic_training.rendezvous.engine.messages import saves
from elastic_training.rendezvous.engine.messages.saves import FailedSave, FailingRank, Saves
from elastic_training.rendezvous.engine.views import summary
from elastic_worker.agent import saves as agent_saves
from elastic_worker.agent.saves import LocalSaves
from elastic_worker.training.save_news import SaveNews

FULL = OSError(28, "No space left on device")
FIRST = FailedSave(local_rank=0, step=11, words="No space left on device", last=10)
WORDS = (
    "the save of step 11 failed on rank 0 (train-worker-0): No space left on device; training goes on, and the last complete save is of "
    "step 10"
)


class Worker:
    """A worker whose news pass through its agent."""

    def __init__(self) -> None:
        self.agent = LocalSaves()
        self.news = SaveNews()
        self.news.listener = self._tell
        self.sent: list[Mapping[str, Any]] = []

    def _tell(self, **fields: object) -> None:
        if (message := self.agent.heard(0, {"t": "save", **fields}, local_size=2)) is not None:
            self.sent.append(message)


def test_the_server_hears_of_the_first_failure_once_more_if_it_lasts_and_of_the_next_success() -> None:
    worker = Worker()
    worker.news.succeeded(10)
    assert worker.sent == []
    for step in range(11, 16):
        worker.news.failed(step, FULL)
    assert [message["failed"][0]["step"] for message in worker.sent] == [11, 13]
    assert worker.agent.repeated() == worker.sent[-1:], "a new server hears of it, too"
    assert worker.sent[0] == {
        "t": "saves",
        "workers": 2,
        "failed": [{"local_rank": 0, "step": 11, "failures": 1, "words": "No space left on device", "last": 10}],
    }
    worker.news.succeeded(16)
    assert worker.sent[2:] == [{"t": "saves", "workers": 2, "failed": []}]
    assert worker.agent.repeated() == worker.sent[2:], "the connection may have broken before the server heard of the success"
    worker.news.failed(17, FULL)
    assert worker.sent[-1]["failed"][0]["last"] == 16
    worker.agent.begin()
    assert worker.agent.repeated() == [], "other processes have taken their places"


def test_agent_and_server_have_the_same_limits() -> None:
    assert (agent_saves.LASTING, agent_saves.MOST_TOLD) == (saves.LASTING, saves.MOST_FAILING)


def told(group: Group) -> tuple[FailingRank, ...]:
    return summary(group.job).failing_saves


def test_the_controller_hears_of_it_until_a_save_succeeds_or_the_processes_restart() -> None:
    group = group_of(2, min=1)
    group.say("w1", Saves(failed=(FIRST,), workers=4))
    assert told(group) == (FailingRank(rank=4 * group.world()["w1"], member="w1", save=FIRST),)
    report = summary(group.job)
    assert wire.Decoder[wire.WorldReport](wire.WorldReport).decode(wire.encode(report)) == report
    group.say("w1", Saves())
    assert told(group) == ()
    group.say("w1", Saves(failed=(FIRST,)))
    group.kill("w0")
    group.advance(3)
    group.come_all()
    group.advance(5)
    assert set(group.world()) == {"w1"}
    assert told(group) == ()


def test_a_rank_that_no_member_can_have_is_not_told() -> None:
    """The API server refused each status of the job, because the rank was beyond the bound of its field."""
    group = group_of(2)
    group.say("w1", Saves(failed=(replace(FIRST, local_rank=1_000_000),), workers=1))
    assert told(group) == ()
    group.say("w1", Saves(failed=(replace(FIRST, local_rank=3),), workers=2))
    assert told(group) == ()


def test_words_of_the_system_are_escaped() -> None:
    group = group_of(1)
    group.say("w0", Saves(failed=(replace(FIRST, words="\x1b[2J"),)))
    assert "\\x1b[2J" in sentence(told(group)[0])


def world(*failing: FailingRank) -> WorldSeen:
    return WorldSeen(1, frozenset(f"train-worker-{index}" for index in range(3)), phase="running", size=3, failing_saves=failing)


def trained() -> Cluster:
    cluster = Cluster(elastic_job(), settings=OURS)
    cluster.settle()
    for index in range(3):
        cluster.set(f"train-worker-{index}", PodPhase.RUNNING)
    cluster.settle()
    return cluster


def test_status_and_events_name_the_rank_and_the_error_twice_at_most() -> None:
    cluster = trained()
    cluster.world = world(FailingRank(rank=0, member="train-worker-0", save=FIRST))
    news = [event for planned in cluster.settle() for event in planned.news if event.reason == "SaveFailed"]
    assert [(event.type, event.message) for event in news] == [("Warning", f"PyTorchJob train: {WORDS}")]
    assert cluster.job.status.elastic is not None
    (entry,) = cluster.job.status.elastic.failed_saves
    assert (entry.rank, entry.pod, entry.step, entry.last_step, entry.message) == (0, "train-worker-0", 11, 10, WORDS)
    lasting = replace(FIRST, step=13, failures=3)
    cluster.world = world(FailingRank(rank=0, member="train-worker-0", save=lasting))
    (again,) = [event for planned in cluster.settle() for event in planned.news if event.reason == "SaveFailed"]
    assert "3 saves in a row failed on rank 0 (train-worker-0), the last one of step 13: No space left" in again.message
    assert cluster.job.status.elastic.failed_saves[0].since == entry.since
    assert "SaveFailed" not in reasons(cluster.settle())
    cluster.world = world()
    cluster.settle()
    assert cluster.job.status.elastic.failed_saves == ()


def test_explain_says_it_with_a_word_for_programs() -> None:
    cluster = trained()
    cluster.world = world(FailingRank(rank=0, member="train-worker-0", save=FIRST))
    cluster.settle()
    assert cluster.job.status.elastic is not None
    of = served(status=running(failedSaves=msgspec.json.decode(msgspec.json.encode(cluster.job.status.elastic.failed_saves)), worldSize=3))
    found = {one.message: one.reason for one in findings(summary_of(PYTORCH, of), [], of["spec"], NOW)}
    assert found[f"T{WORDS[1:]}."] == "SaveFailed"


def failing(**elastic: Any) -> Object:
    """Return a job that trains while saves of rank 0 fail."""
    entry = {
        "rank": 0,
        "pod": "train-worker-0",
        "step": 11,
        "failures": 1,
        "lastStep": 10,
        "message": WORDS,
        "since": "2026-01-01T01:50:00Z",
    }
    return served(status=running(worldSize=3, failedSaves=[entry], **elastic), elasticPolicy={"minReplicas": 1, "maxReplicas": 4})


def test_get_and_top_say_it(tmp_path: Path) -> None:
    """Only `elastic explain` and an Event said it, which nobody reads while training goes on."""
    with serve(Api(failing()), tmp_path) as kubeconfig:
        assert f"a save that succeeds: {WORDS}" in elastic(kubeconfig, "get").stdout
        assert f"PyTorchJob train waits for a save that succeeds: {WORDS}" in elastic(kubeconfig, "top").stdout
        assert json.loads(elastic(kubeconfig, "top", "-o", "json").stdout)["jobs"][0]["failedSaves"][0]["step"] == 11


def test_a_failing_save_hides_no_other_wait_and_is_hidden_by_none() -> None:
    told = summary_of(PYTORCH, failing(waitsFor="1 of 4 workers: w3 has no node"))
    assert told.awaits() == f"1 of 4 workers: w3 has no node; a save that succeeds: {WORDS}"
    over = failing()
    over["status"]["conditions"].append({"type": "Failed", "status": "True", "message": "x"})
    assert summary_of(PYTORCH, over).awaits() == ""


def test_a_job_without_any_complete_save_says_so() -> None:
    assert sentence(FailingRank(rank=0, member="w0", save=replace(FIRST, last=None))).endswith("and no complete save is known")
