"""Check that a job tells of workers that ended with status 0 while others failed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from cli_api import PYTORCH, running
from cli_api import job as raw_job
from job_builders import OURS, Cluster, elastic_job
from rendezvous_group import group_of

from elastic.client.explanation import Finding, findings
from elastic.client.summary import summary as summary_of
from elastic_training.controller.facts.snapshot import PodPhase, WorldSeen
from elastic_training.rendezvous.engine.views import summary

WORDS = "w1 ended with status 0, and then a worker of w0 ended with status 1 (rank 0: RuntimeError: Connection closed by peer)"


def test_a_worker_that_ends_early_completes_the_job_and_is_named() -> None:
    """The job succeeded, and nothing said that the other worker had failed."""
    group = group_of(2, min=2)
    group.finish("w1")
    assert summary(group.job).ended_early == ""
    group.fail("w0", rank=0, error="RuntimeError: Connection closed by peer")
    assert summary(group.job).ended_early == WORDS
    group.come("w0")
    group.advance(1.0)
    assert group.job.is_done
    assert summary(group.job).ended_early == WORDS


def test_workers_that_drop_out_while_others_train_on_are_named() -> None:
    group = group_of(3)
    group.finish("w1")
    for name in ("w0", "w2"):
        group.fail(name, rank=0, error="RuntimeError: Connection closed by peer")
    group.come("w0")
    group.come("w2")
    group.advance(1.1)
    assert set(group.world()) == {"w0", "w2"}
    seen = summary(group.job)
    assert (seen.ended_early, seen.reason, seen.restarts) == (WORDS, f"{WORDS}; 2 members", {"collateral": 2})
    assert seen.rescale is not None
    assert seen.rescale.cause == "collateral", "the cause is the same everywhere"


def test_workers_that_end_together_are_no_early_ends() -> None:
    group = group_of(2)
    for name in ("w0", "w1"):
        group.finish(name)
    group.advance(1.0)
    assert summary(group.job).ended_early == ""


def test_failures_without_a_worker_that_ended_are_no_early_ends() -> None:
    group = group_of(2)
    group.fail("w0")
    group.advance(1.1)
    assert summary(group.job).ended_early == ""


def test_the_status_and_an_event_name_it_once() -> None:
    cluster = Cluster(elastic_job(1, most=1), settings=OURS)
    cluster.settle()
    cluster.run_all()
    cluster.world = WorldSeen(generation=1, members=frozenset(cluster.pods), phase="running", ended_early="w1 ended")
    news = [event for planned in cluster.settle() for event in planned.news]
    (event,) = [event for event in news if event.reason == "EndedEarly"]
    assert event.type == "Warning"
    assert event.message == "PyTorchJob train: w1 ended; if the training was not complete, let all ranks end together"
    cluster.world = replace(cluster.world, ended_early="")
    assert not [event for planned in cluster.settle() for event in planned.news if event.reason == "EndedEarly"]
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.ended_early == "w1 ended", "another server does not know it"


def test_a_job_that_has_succeeded_before_the_controller_looked_names_it_too() -> None:
    cluster = Cluster(elastic_job(1, most=1), settings=OURS)
    cluster.settle()
    cluster.run_all()
    cluster.world = WorldSeen(generation=1, members=frozenset(cluster.pods), phase="finished", ended_early="w1 ended")
    for name in list(cluster.pods):
        cluster.set(name, PodPhase.SUCCEEDED, code=0)
    news = [event.reason for planned in cluster.settle() for event in planned.news]
    assert "EndedEarly" in news
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.ended_early == "w1 ended"


def test_explain_names_it() -> None:
    of = raw_job(status=running(worldSize=2, endedEarly="w1 ended"), elasticPolicy={"minReplicas": 2})
    found = list(findings(summary_of(PYTORCH, of), [], of["spec"], datetime(2026, 1, 1, 2, 0, tzinfo=UTC)))
    assert Finding("w1 ended; if the training was not complete, let all ranks end together.", "EndedEarly") in found
