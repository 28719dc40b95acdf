"""A standstill that the rendezvous server reports: in the status, in Events, and in what commands say."""

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from cli_api import PYTORCH, running
from cli_api import job as served
from job_builders import OURS, Cluster, elastic_job, reasons

from elastic.api.job import ElasticStatus
from elastic.client.explanation import awaited, explained, findings, waits_for
from elastic.client.summary import summary
from elastic.membership import wire
from elastic_training.controller.acting.link import _world
from elastic_training.controller.deciding.rendezvous import hangs
from elastic_training.controller.facts.hang_seen import HangSeen
from elastic_training.controller.facts.snapshot import PodPhase, Snapshot, WorldSeen
from elastic_training.rendezvous.engine.messages.doing import Doing, DoingKind, Hang, HangState, RanksDoing, Span

ASLEEP = Doing(kind=DoingKind.OTHER, looks=4, for_s=31.2, does="sleeps", place="train.py:41", code="time.sleep(1e6)")
WAITS = Doing(kind=DoingKind.COLLECTIVE, looks=4, for_s=31.0, does="waits in all_reduce", place="train.py:44")
HANG = Hang(
    state=HangState.SUSPECTED,
    since_s=33.0,
    has_stepped=True,
    groups=(
        RanksDoing(spans=(Span(first=1, last=1),), count=1, members=("train-worker-1",), doing=ASLEEP),
        RanksDoing(
            spans=(Span(first=0, last=0), Span(first=2, last=2)), count=2, members=("train-worker-0", "train-worker-2"), doing=WAITS
        ),
    ),
)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
WAITING = "ranks 0 and 2 wait in all_reduce at train.py:44"
WORDS = f"no step comes: rank 1 (train-worker-1 on node-7) stands still at train.py:41, `time.sleep(1e6)`: it sleeps; {WAITING}"


def timed(step_s: int, rank_s: int) -> str:
    """Return the words so many seconds after the last step, and after the first look at the rank."""
    rank = f"rank 1 (train-worker-1 on node-7) has been at train.py:41, `time.sleep(1e6)`, for at least {rank_s} s: it sleeps"
    return f"no step has come for {step_s} s: {rank}; {WAITING}"


def trained() -> Cluster:
    cluster = Cluster(elastic_job(), settings=OURS)
    cluster.settle()
    for index in range(3):
        cluster.set(f"train-worker-{index}", PodPhase.RUNNING)
        name = f"train-worker-{index}"
        cluster.pods[name] = replace(cluster.pods[name], node="node-7")
    cluster.settle()
    return cluster


def world(cluster: Cluster, hang: Hang | None) -> WorldSeen:
    seen = HangSeen(hang, cluster.now) if hang is not None else None
    return WorldSeen(1, frozenset(f"train-worker-{index}" for index in range(3)), phase="running", hang=seen)


def test_a_suspected_hang_is_in_the_status_and_told_once_until_it_ends() -> None:
    cluster = trained()
    cluster.world = world(cluster, HANG)
    plans = cluster.settle()
    known = cluster.job.status.elastic
    assert known is not None
    assert known.hang is not None
    assert (known.hang.state, known.hang.message) == ("SuspectedHang", WORDS)
    assert known.hang.since == cluster.world.hang.at - timedelta(seconds=33)  # type: ignore[union-attr]
    first, others = known.hang.ranks
    assert (first.ranks, first.kind, first.does, first.place) == ("1", "other", "sleeps", "train.py:41")
    assert first.since == cluster.world.hang.at - timedelta(seconds=31)  # type: ignore[union-attr]
    assert (others.ranks, others.count) == ("0,2", 2)
    assert [(pod.name, pod.node) for entry in known.hang.ranks for pod in entry.pods] == [
        ("train-worker-1", "node-7"),
        ("train-worker-0", "node-7"),
        ("train-worker-2", "node-7"),
    ]
    news = [event for planned in plans for event in planned.news if event.reason == "SuspectedHang"]
    assert [(event.type, event.message) for event in news] == [
        ("Warning", f"PyTorchJob train may hang: {timed(33, 31)}. `elastic stacks train` shows what each rank does")
    ]
    cluster.world = world(cluster, None)
    assert reasons(cluster.settle()).count("TrainingMoves") == 1
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.hang is None


@pytest.mark.parametrize("phase", ["re-forming", "closed"])
def test_training_does_not_move_again_because_a_restart_or_the_end_of_the_job_ends_the_hang(phase: str) -> None:
    """`hangTimeoutSeconds` ended the job, and an Event said that it moves again."""
    cluster = trained()
    cluster.world = world(cluster, HANG)
    cluster.settle()
    cluster.world = replace(world(cluster, None), phase=phase, closed="it hangs" if phase == "closed" else "")
    assert "TrainingMoves" not in reasons(cluster.settle())


def test_a_wait_is_in_the_status_and_is_no_event() -> None:
    cluster = trained()
    cluster.world = world(cluster, Hang(state=HangState.WAITING, since_s=40, has_stepped=True))
    plans = cluster.settle()
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.hang is not None
    assert cluster.job.status.elastic.hang.message == "no step comes"
    assert not {"SuspectedHang", "TrainingMoves"} & set(reasons(plans))


def test_a_hang_does_not_outlive_its_job() -> None:
    cluster = trained()
    cluster.world = world(cluster, HANG)
    cluster.settle()
    for index in range(3):
        cluster.set(f"train-worker-{index}", PodPhase.SUCCEEDED)
    cluster.settle()
    assert cluster.state() == "Succeeded"
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.hang is None


def test_the_time_of_a_standstill_is_kept_from_message_to_message() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    heard = wire.WorldReport(job="uid", generation=1, phase="running", hang=HANG)
    first = _world(heard, None, now=now)
    assert first.hang == HangSeen(HANG, now)
    later = wire.WorldReport(job="uid", generation=1, phase="running", hang=Hang(**{**_fields(HANG), "ago_s": 9.5}))
    assert _world(later, first, now=now + timedelta(seconds=10)).hang == first.hang
    assert _world(later, None, now=now).hang == HangSeen(HANG, now - timedelta(seconds=9.5))


def test_explain_says_what_the_next_step_waits_for() -> None:
    told = summary(PYTORCH, hanging())
    said = list(explained(told, [], hanging()["spec"], NOON + timedelta(seconds=27)))
    assert f"It waits for its next step, and may hang: {timed(60, 58)}." in said
    assert "`elastic stacks train` shows the stacks of its ranks." in said


def test_all_views_of_a_hang_say_the_same_with_the_times_of_now() -> None:
    """They repeated the times of the moment in which the hang was suspected, for ever."""
    told, now = summary(PYTORCH, hanging()), NOON + timedelta(seconds=3600)
    words = f"its next step, and may hang: {timed(3633, 3631)}"
    assert told.next_step(now) == told.awaits(now) == words
    assert waits_for(told, [], now) == words
    assert told.next_step() == f"its next step, and may hang: {WORDS}", "words that stay have no times"


def test_a_worker_that_is_away_hides_no_hang_of_the_others() -> None:
    """A world that trained without a latecomer and hung was shown with the latecomer alone."""
    late = "1 of 4 workers: train-worker-3 has run for 30 s and has not come to the rendezvous; see the log"
    of = hanging()
    of["status"]["elastic"]["waitsFor"] = late
    told, now = summary(PYTORCH, of), NOON + timedelta(seconds=27)
    words = f"its next step, and may hang: {timed(60, 58)}"
    assert told.awaits(now) == waits_for(told, [], now) == f"{words}; {late}"
    found = [(one.reason, one.message) for one in findings(told, [], of["spec"], now) if one.reason in ("SuspectedHang", "MissingWorkers")]
    assert found == [("SuspectedHang", f"It waits for {words}."), ("MissingWorkers", f"It waits for {late}.")]
    of["status"]["elastic"]["hang"]["state"] = "Waiting"
    assert [reason for reason, _ in awaited(summary(PYTORCH, of), [], now)] == ["MissingWorkers", "Waiting"]


def test_a_job_without_steps_is_not_said_to_wait_for_one() -> None:
    hang = hanging()["status"]["elastic"]["hang"] | {"reportsSteps": False}
    told = summary(PYTORCH, served(status=running(worldSize=3, hang=hang), elasticPolicy={}))
    assert told.next_step(NOON).startswith(
        "its ranks to get on, and may hang: it reports no steps, and nothing has moved for at least 33 s: rank 1 "
    )
    still, others = hang["ranks"]
    hang = hang | {"ranks": [{name: value for name, value in still.items() if name != "since"} | {"does": "runs Python"}, others]}
    told = summary(PYTORCH, served(status=running(worldSize=3, hang=hang | {"state": "Waiting"}), elasticPolicy={}))
    assert told.next_step(NOON).startswith(
        "its ranks to get on: it reports no steps, and every rank except one has waited for at least 33 s: "
        "rank 1 (train-worker-1 on node-7) runs Python at train.py:41"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"ranks": [{"ranks": "x"}]},
        {"ranks": 7},
        {"state": "Odd"},
        {"since": "never"},
        {"ranks": [{"ranks": "1", "kind": "new"}]},
        {"ranks": [{"ranks": "1", "kind": "other", "does": "sleeps"}]},
        {"since": None},
    ],
)
def test_a_status_that_another_program_wrote_breaks_no_command(change: dict[str, Any]) -> None:
    hang = hanging()["status"]["elastic"]["hang"] | change
    told = summary(PYTORCH, served(status=running(worldSize=3, hang=hang), elasticPolicy={}))
    assert isinstance(told.next_step(NOON), str)


def test_a_field_of_a_newer_controller_is_left_out() -> None:
    hang = hanging()["status"]["elastic"]["hang"]
    hang = hang | {"later": 1, "ranks": [entry | {"more": "x"} for entry in hang["ranks"]]}
    told = summary(PYTORCH, served(status=running(worldSize=3, hang=hang), elasticPolicy={}))
    assert told.next_step(NOON) == f"its next step, and may hang: {timed(33, 31)}"


def hanging() -> dict[str, Any]:
    """Return a job as the API server has it 33 s after its last step, at noon."""
    seen = HangSeen(HANG, NOON)
    status = msgspec.json.decode(msgspec.json.encode(hangs.recorded(ElasticStatus(world_size=3), seen_by(seen))))
    return served(status=running(worldSize=3, hang=status["hang"]), elasticPolicy={"minReplicas": 1, "maxReplicas": 4})


def seen_by(seen: HangSeen) -> Snapshot:
    """Return a snapshot with this standstill, and the pods of the job on node-7."""
    cluster = trained()
    cluster.world = replace(world(cluster, None), hang=seen)
    return cluster.look()


def _fields(hang: Hang) -> dict[str, object]:
    return {one.name: getattr(hang, one.name) for one in fields(hang)}
