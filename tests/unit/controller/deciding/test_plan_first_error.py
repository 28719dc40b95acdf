"""The message of a failed elastic job names the worker to blame and the line of its exception."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from job_builders import NOW, OURS, PLAIN, Cluster, elastic_job, job, pod_for, replica, snapshot

from elastic.membership.bounds import MAX_ERROR
from elastic_training.controller.deciding.lifecycle.collateral import REPORTED_WITHIN_S
from elastic_training.controller.facts.settings import Settings
from elastic_training.controller.facts.snapshot import Container, PodPhase, WorldSeen
from elastic_worker.agent import last_words
from elastic_worker.agent.last_words import USAGE, Failure, Unmet

SUMMARY = """[rank1]: ValueError: bad batch
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
  rank      : 1 (local_rank: 0)
  exitcode  : 1 (pid: 77)
============================================================"""

PEER = "RuntimeError: Connection closed by peer [10.0.0.2]:4711"
PEERS = "RuntimeError: the peer is gone"


def failed(message: str, *, peers: str = PEERS, settings: Settings = PLAIN, restart: str = "Never", **elastic: Any) -> Cluster:
    cluster = Cluster(elastic_job(2, restart=restart, elastic=elastic), settings=settings)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    for after_s, (name, words) in enumerate({"train-worker-1": message, "train-worker-0": peers}.items()):
        ended = Container(name="pytorch", exit_code=1, message=words, ended_at=NOW + timedelta(seconds=after_s))
        cluster.pods[name] = replace(cluster.pods[name], phase=PodPhase.FAILED, is_ready=False, containers=(ended,))
    cluster.settle()
    assert cluster.state() == "Failed"
    return cluster


def words(cluster: Cluster) -> str:
    return cluster.job.status.conditions[-1].message


def test_without_the_library_the_end_of_the_first_failed_containers_log_is_quoted() -> None:
    assert words(failed(SUMMARY)).endswith(" First of all train-worker-1 failed: rank 1: ValueError: bad batch.")


def test_an_error_that_tells_of_a_lost_peer_is_quoted_after_one_that_does_not() -> None:
    said = words(failed(PEER, peers="ValueError: bad batch"))
    assert said.endswith(" First of all train-worker-0 failed: ValueError: bad batch.")


def test_with_the_library_its_agents_words_are_quoted() -> None:
    message = last_words.message("job-uid", failure=Failure(5, "ValueError: no\nmore"))
    assert words(failed(message, settings=OURS)).endswith(" First of all train-worker-1 failed: rank 5: more.")


def test_the_words_of_a_container_are_cut_and_escaped() -> None:
    said = words(failed("ValueError: \x1b[2J" + "x" * 5000))
    assert "\\x1b[2J" in said
    assert "\x1b" not in said
    assert len(said) < MAX_ERROR + 200


STATIC = "PyTorchJob train is failed because 2 Worker replica(s) failed."


def static(*ends: Container, restart: str = "Never", settings: Settings = PLAIN) -> str:
    """Return the failure message of a job that is not elastic and whose workers have ended so, one after the other."""
    one = job(Master=replica(1, restart=restart), Worker=replica(len(ends), restart=restart))
    cluster = Cluster(one, settings=settings)
    cluster.settle()
    cluster.run_all()
    for index, end in enumerate(ends):
        name = f"train-worker-{index}"
        ended = replace(end, name="pytorch", ended_at=NOW + timedelta(seconds=index))
        cluster.pods[name] = replace(cluster.pods[name], phase=PodPhase.FAILED, is_ready=False, containers=(ended,))
    cluster.now += timedelta(seconds=len(ends) + REPORTED_WITHIN_S)
    cluster.settle()
    assert cluster.state() == "Failed"
    return words(cluster)


def test_the_first_failed_pod_of_a_static_job_is_named_with_its_exit_code_and_its_last_line() -> None:
    first, second = Container(name="", exit_code=3, message="loading\nno such file: train.bin\n"), Container(name="", exit_code=1)
    assert static(first, second) == f"{STATIC} First of all train-worker-0 failed with exit code 3: no such file: train.bin."
    assert static(second, first) == f"{STATIC} First of all train-worker-0 failed with exit code 1."
    killed = Container(name="", exit_code=137, exit_reason="OOMKilled")
    assert static(killed, second) == f"{STATIC} First of all train-worker-0 failed with exit code 137 (OOMKilled)."


def test_a_pod_of_a_static_job_whose_peer_was_lost_is_not_named_first() -> None:
    peer, own = Container(name="", exit_code=1, message=PEER), Container(name="", exit_code=1, message=SUMMARY)
    assert static(peer, own) == f"{STATIC} First of all train-worker-1 failed with exit code 1: rank 1: ValueError: bad batch."


def test_a_pod_of_a_static_job_that_is_made_again_is_not_to_blame() -> None:
    retried, fatal = Container(name="", exit_code=137), Container(name="", exit_code=2)
    said = static(retried, fatal, restart="ExitCode")
    assert said == 'job "train" is failing because "Worker" replica(s) failed. First of all train-worker-1 failed with exit code 2.'


def test_an_elastic_job_whose_workers_said_nothing_names_the_exit_code() -> None:
    assert words(failed("", peers="")).endswith(" First of all train-worker-1 failed with exit code 1.")


def test_an_etcds_closing_words_are_followed_by_the_error_of_the_worker_that_they_name() -> None:
    cluster = Cluster(elastic_job(2, elastic={"rdzvBackend": "etcd", "rdzvHost": "etcd"}), settings=OURS)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    closed = "a worker of train-worker-1 ended with status 1. Restarts used: 0 of 0."
    for name, rank in (("train-worker-0", 0), ("train-worker-1", 1)):
        message = last_words.message("job-uid", closed=closed, failure=Failure(rank, f"ValueError: of {rank}"))
        ended = Container(name="pytorch", last_exit_code=1, restarts=1, last_message=message)
        cluster.pods[name] = replace(cluster.pods[name], containers=(ended,))
    cluster.settle()
    assert words(cluster) == f"rank 1: ValueError: of 1. A{closed[1:]}"


@pytest.mark.parametrize(("chosen", "found"), [(None, "FallbackToLogsOnError"), ("File", "File")])
def test_a_container_without_the_library_says_what_it_printed_last_unless_the_user_chose(chosen: str | None, found: str) -> None:
    type = replica(2)
    if chosen is not None:
        type["template"]["spec"]["containers"][0]["terminationMessagePolicy"] = chosen
    one = job(Worker=type, elasticPolicy={"minReplicas": 1, "maxReplicas": 2, "rdzvBackend": "c10d"})
    made = pod_for(one, "Worker", 0, snapshot(settings=OURS))
    assert made["spec"]["containers"][0]["terminationMessagePolicy"] == found


def test_with_the_library_and_without_a_rendezvous_server_the_policy_stays_open() -> None:
    for settings in (OURS, PLAIN):
        made = pod_for(elastic_job(2), "Worker", 0, snapshot(settings=settings))
        assert "terminationMessagePolicy" not in made["spec"]["containers"][0]


def test_a_wrong_command_is_quoted_at_its_first_failure_until_the_worker_meets_the_others() -> None:
    """Its pod runs and waits to be started again, so the job looked healthy until maxRestarts was used up."""
    cluster = Cluster(elastic_job(2), settings=OURS)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    words_of_agent = last_words.message("job-uid", unmet=Unmet(USAGE, "torchrun: error: unrecognized arguments: --nonsense"))
    ended = Container(name="pytorch", waiting="CrashLoopBackOff", last_exit_code=2, restarts=1, last_message=words_of_agent)
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], containers=(ended,))
    cluster.settle()
    missing = "1 of 2 workers: train-worker-1 could not start: torchrun: error: unrecognized arguments: --nonsense"
    assert cluster.state() == "Running"
    assert words(cluster).endswith(f" Missing {missing}.")
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.waits_for == missing
    cluster.world = WorldSeen(generation=1, members=frozenset({"train-worker-0", "train-worker-1"}), phase="running")
    cluster.settle()
    assert "could not start" not in words(cluster)
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], containers=(replace(ended, waiting="", is_running=True),))
    cluster.world = WorldSeen(generation=1, members=frozenset({"train-worker-0"}), phase="re-forming")
    cluster.settle()
    assert "could not start" not in words(cluster), "it was in a world since, and is on its way to the next one"
