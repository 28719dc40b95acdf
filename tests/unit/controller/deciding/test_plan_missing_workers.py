"""A job with fewer workers than it wants says why, in one place that stays: its status, and the message of its condition."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from job_builders import OURS, PLAIN, Cluster, elastic_job

from elastic.api.job import ElasticStatus
from elastic.membership.bounds import MAX_ERROR
from elastic_training.controller.deciding.lifecycle.conditions import is_over
from elastic_training.controller.deciding.rendezvous import latecomers
from elastic_training.controller.facts.settings import Settings
from elastic_training.controller.facts.snapshot import Container, PodPhase, WorldSeen

NO_CPU = "0/1 nodes are available: 1 Insufficient cpu."


def three(settings: Settings = PLAIN) -> Cluster:
    """Return a cluster in which two of three workers run and the third is pending."""
    cluster = Cluster(elastic_job(3), settings=settings)
    cluster.settle()
    cluster.run_all()
    cluster.set("train-worker-2", PodPhase.PENDING)
    cluster.settle()
    return cluster


def elastic(cluster: Cluster) -> ElasticStatus:
    assert cluster.job.status.elastic is not None
    return cluster.job.status.elastic


def message(cluster: Cluster) -> str:
    return cluster.job.status.conditions[-1].message


@pytest.mark.parametrize("settings", [PLAIN, OURS])
def test_a_worker_without_a_node_is_named_until_it_has_one(settings: Settings) -> None:
    cluster = three(settings)
    assert "Missing" not in message(cluster), "it is only starting"
    cluster.pods["train-worker-2"] = replace(cluster.pods["train-worker-2"], unscheduled=NO_CPU)
    cluster.settle()
    assert elastic(cluster).waits_for == "1 of 3 workers: train-worker-2 has no node: 0/1 nodes are available: 1 Insufficient cpu"
    assert cluster.state() == "Running"
    assert message(cluster).endswith(" Missing 1 of 3 workers: train-worker-2 has no node: 0/1 nodes are available: 1 Insufficient cpu.")
    cluster.set("train-worker-2", PodPhase.RUNNING, unscheduled="")
    cluster.settle()
    assert (elastic(cluster).waits_for, "Missing" in message(cluster)) == ("", False)


def test_a_container_that_cannot_start_is_quoted_escaped_and_cut() -> None:
    cluster = three()
    waiting = Container(name="pytorch", waiting="ErrImagePull", message="no such \x1bimage" + "x" * 1000)
    cluster.pods["train-worker-2"] = replace(cluster.pods["train-worker-2"], containers=(waiting,))
    cluster.settle()
    said = elastic(cluster).waits_for
    assert said.startswith("1 of 3 workers: train-worker-2, pytorch: ErrImagePull: no such \\x1bimagexxx")
    assert len(said) < MAX_ERROR + 30


def test_a_finished_or_suspended_job_waits_for_nothing() -> None:
    cluster = three()
    cluster.pods["train-worker-2"] = replace(cluster.pods["train-worker-2"], unscheduled=NO_CPU)
    cluster.settle()
    for name in ("train-worker-0", "train-worker-1"):
        cluster.set(name, PodPhase.SUCCEEDED, code=0)
    cluster.settle()
    assert elastic(cluster).waits_for == ""


def test_the_status_says_which_worker_has_which_rank() -> None:
    cluster = three(OURS)
    names = ("train-worker-1", "train-worker-0")
    cluster.world = WorldSeen(generation=1, members=frozenset(names), ranked=names, phase="running")
    cluster.settle()
    assert elastic(cluster).ranks == "1,0"
    cluster.world = WorldSeen(
        generation=2, members=frozenset(names), ranked=tuple(f"train-worker-{n}" for n in range(1025)), phase="running"
    )
    cluster.settle()
    assert elastic(cluster).ranks == ""


@pytest.mark.parametrize("closed", ["", "all 0 restarts are used up"])
def test_a_finished_job_keeps_the_ranks_of_its_last_world(closed: str) -> None:
    """Its failure names a rank, and `elastic logs --rank 1` then knew none."""
    cluster = Cluster(elastic_job(2), settings=OURS)
    cluster.settle()
    cluster.run_all()
    names = ("train-worker-1", "train-worker-0")
    cluster.world = WorldSeen(generation=1, members=frozenset(names), ranked=names, phase="running")
    cluster.settle()
    if closed:
        cluster.world = WorldSeen(generation=1, members=frozenset(), phase="closed", closed=closed)
    else:
        for name in names:
            cluster.set(name, PodPhase.SUCCEEDED, code=0)
    cluster.settle()
    assert is_over(cluster.job.status)
    assert elastic(cluster).ranks == "1,0"


def test_a_worker_that_runs_and_does_not_come_to_the_first_rendezvous_is_named() -> None:
    cluster = Cluster(elastic_job(3), settings=OURS)
    cluster.settle()
    for name in list(cluster.pods):
        running = Container(name="pytorch", is_running=True, started_at=cluster.now)
        cluster.set(name, PodPhase.RUNNING)
        cluster.pods[name] = replace(cluster.pods[name], containers=(running,))
    here = frozenset(("train-worker-0", "train-worker-1"))
    cluster.world = WorldSeen(generation=0, members=frozenset(), phase="forming", waiting=here)
    last = cluster.settle()[-1]
    assert elastic(cluster).waits_for == "", "loading Python and torch takes time"
    assert last.look_again_at is not None
    cluster.now = last.look_again_at
    cluster.settle()
    said = "1 of 3 workers: train-worker-2 has run for 30 s and has not come to the rendezvous; see the log"
    assert elastic(cluster).waits_for == said
    assert message(cluster).endswith(f" Missing {said}.")
    cluster.world = WorldSeen(generation=1, members=here | {"train-worker-2"}, size=3, phase="running")
    cluster.settle()
    assert (elastic(cluster).waits_for, "Missing" in message(cluster)) == ("", False)
    cluster.world = WorldSeen(generation=1, members=frozenset(), phase="forming", waiting=here)
    cluster.settle()
    assert elastic(cluster).waits_for == "", "a new rendezvous server hears from them one by one"


def shrunk(**silent: datetime) -> Cluster:
    """Worker 1 of two runs, and the world is formed without it."""
    cluster = Cluster(elastic_job(2), settings=OURS)
    cluster.settle()
    for name in list(cluster.pods):
        cluster.set(name, PodPhase.RUNNING)
        cluster.pods[name] = replace(cluster.pods[name], containers=(Container(name="pytorch", is_running=True, started_at=cluster.now),))
    cluster.now += timedelta(minutes=5)
    cluster.world = WorldSeen(
        generation=2,
        members=frozenset(["train-worker-0"]),
        size=1,
        phase="running",
        since=cluster.now,
        silent={name.replace("_", "-"): at for name, at in silent.items()},
    )
    return cluster


def test_a_worker_that_runs_and_fell_silent_is_named() -> None:
    """All processes of worker 1 were stopped. After the shrink, everything showed 2/2 running workers and no trouble."""
    last = shrunk().now - timedelta(seconds=19)
    cluster = shrunk(train_worker_1=last)
    cluster.settle()
    assert elastic(cluster).waits_for == f"1 of 2 workers: train-worker-1, which has been silent since {last:%H:%M:%S} UTC"
    assert cluster.world is not None
    cluster.world = replace(cluster.world, phase="forming", members=frozenset(), size=None)
    cluster.settle()
    assert "train-worker-1, which" in elastic(cluster).waits_for, "the next world does not form with it either"
    cluster.world = replace(cluster.world, phase="running", members=frozenset(["train-worker-0", "train-worker-1"]), size=2, silent={})
    cluster.settle()
    assert elastic(cluster).waits_for == ""


def test_a_new_pod_is_not_called_silent_because_of_its_predecessor() -> None:
    cluster = shrunk(train_worker_1=shrunk().now - timedelta(minutes=6))
    cluster.settle()
    assert elastic(cluster).waits_for == ""


def test_a_worker_that_runs_outside_of_a_standing_world_is_named_after_a_while() -> None:
    cluster = shrunk()
    last = cluster.settle()[-1]
    assert elastic(cluster).waits_for == ""
    assert last.look_again_at is not None
    cluster.now += latecomers.LATE
    cluster.settle()
    said = "1 of 2 workers: train-worker-1 has run for 30 s and has not come to the rendezvous; see the log"
    assert elastic(cluster).waits_for == said


def test_some_of_many_missing_workers_are_named() -> None:
    cluster = Cluster(elastic_job(5), settings=OURS)
    cluster.settle()
    for name in list(cluster.pods):
        cluster.set(name, PodPhase.RUNNING)
        cluster.pods[name] = replace(cluster.pods[name], containers=(Container(name="pytorch", is_running=True, started_at=cluster.now),))
    cluster.world = WorldSeen(generation=0, members=frozenset(), phase="empty")
    cluster.now += latecomers.LATE
    cluster.settle()
    names = "train-worker-0, train-worker-1, train-worker-2 and 2 more"
    assert elastic(cluster).waits_for == f"5 of 5 workers: {names} have run for 30 s and have not come to the rendezvous; see the log"
