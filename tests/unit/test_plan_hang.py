"""A standstill that the rendezvous server reports: in the status, in Events, and in what commands say."""

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta

from cli_api import PYTORCH, running
from cli_api import job as served
from job_builders import OURS, Cluster, elastic_job, reasons

from controller.acting.link import _world
from controller.facts.hang_seen import HangSeen
from controller.facts.snapshot import Phase, World
from elastic.client.explanation import explained
from elastic.client.summary import summary
from elastic.membership import wire
from rendezvous.engine.messages.doing import Doing, Hang, HangState, Kind, RanksDoing, Span

ASLEEP = Doing(kind=Kind.OTHER, looks=4, for_s=31.2, does="sleeps", place="train.py:41", code="time.sleep(1e6)")
WAITS = Doing(kind=Kind.COLLECTIVE, looks=4, for_s=31.0, does="waits in all_reduce", place="train.py:44")
HANG = Hang(
    state=HangState.SUSPECTED,
    since_s=33.0,
    has_stepped=True,
    groups=(
        RanksDoing(spans=(Span(first=1, last=1),), count=1, first="train-worker-1", doing=ASLEEP),
        RanksDoing(spans=(Span(first=0, last=0), Span(first=2, last=2)), count=2, first="train-worker-0", doing=WAITS),
    ),
)
WORDS = (
    "no step has come for 33 s: rank 1 (train-worker-1 on node-7) has been at train.py:41, `time.sleep(1e6)`, for 31 s: "
    "it sleeps; "
    "ranks 0 and 2 wait in all_reduce at train.py:44"
)


def trained() -> Cluster:
    cluster = Cluster(elastic_job(), settings=OURS)
    cluster.settle()
    for index in range(3):
        cluster.set(f"train-worker-{index}", Phase.RUNNING)
        name = f"train-worker-{index}"
        cluster.pods[name] = replace(cluster.pods[name], node="node-7")
    cluster.settle()
    return cluster


def world(cluster: Cluster, hang: Hang | None) -> World:
    seen = HangSeen(hang, cluster.now) if hang is not None else None
    return World(1, frozenset(f"train-worker-{index}" for index in range(3)), phase="running", hang=seen)


def test_a_suspected_hang_is_in_the_status_and_told_once_until_it_is_over() -> None:
    cluster = trained()
    cluster.world = world(cluster, HANG)
    plans = cluster.settle()
    known = cluster.job.status.elastic
    assert known is not None
    assert known.hang is not None
    assert (known.hang.state, known.hang.message) == ("SuspectedHang", WORDS)
    assert known.hang.since == (cluster.world.hang.at - timedelta(seconds=33)).replace(microsecond=0)  # type: ignore[union-attr]
    first = known.hang.ranks[0]
    assert (first.ranks, first.pod, first.node, first.kind, first.does, first.place) == (
        "1",
        "train-worker-1",
        "node-7",
        "other",
        "sleeps",
        "train.py:41",
    )
    assert known.hang.ranks[1].ranks == "0,2"
    news = [event for planned in plans for event in planned.news if event.reason == "SuspectedHang"]
    assert [(event.type, event.message) for event in news] == [
        ("Warning", f"PyTorchJob train may hang: {WORDS}. `elastic stacks train` shows what each rank does")
    ]
    cluster.world = world(cluster, None)
    assert reasons(cluster.settle()).count("TrainingMoves") == 1
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.hang is None


def test_a_wait_is_in_the_status_and_is_no_event() -> None:
    cluster = trained()
    cluster.world = world(cluster, Hang(state=HangState.WAITING, since_s=40, has_stepped=True))
    plans = cluster.settle()
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.hang is not None
    assert cluster.job.status.elastic.hang.message == "no step has come for 40 s"
    assert not {"SuspectedHang", "TrainingMoves"} & set(reasons(plans))


def test_a_hang_does_not_outlive_its_job() -> None:
    cluster = trained()
    cluster.world = world(cluster, HANG)
    cluster.settle()
    for index in range(3):
        cluster.set(f"train-worker-{index}", Phase.SUCCEEDED)
    cluster.settle()
    assert cluster.state() == "Succeeded"
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.hang is None


def test_the_time_of_a_standstill_is_kept_from_message_to_message() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    heard = wire.World(job="uid", generation=1, phase="running", hang=HANG)
    first = _world(heard, None, now=now)
    assert first.hang == HangSeen(HANG, now)
    later = wire.World(job="uid", generation=1, phase="running", hang=Hang(**{**_fields(HANG), "ago_s": 9.5}))
    assert _world(later, first, now=now + timedelta(seconds=10)).hang == first.hang
    assert _world(later, None, now=now).hang == HangSeen(HANG, now - timedelta(seconds=9.5))


def test_explain_says_what_the_next_step_waits_for() -> None:
    hang = {"state": "SuspectedHang", "since": "2026-01-01T01:59:00Z", "message": WORDS}
    of = served(status=running(worldSize=3, hang=hang), elasticPolicy={"minReplicas": 1, "maxReplicas": 4})
    said = list(explained(summary(PYTORCH, of), [], of["spec"], datetime(2026, 1, 1, 2, tzinfo=UTC)))
    assert f"It waits for its next step, and may hang: {WORDS}." in said
    assert "It has stood still for 60s." in said
    assert "`elastic stacks train` shows the stacks of its ranks." in said


def _fields(hang: Hang) -> dict[str, object]:
    return {one.name: getattr(hang, one.name) for one in fields(hang)}
