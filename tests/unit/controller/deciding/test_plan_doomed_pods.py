"""A node says when it goes, and nobody can be asked to leave it: its pods end in order before that, uncharged, and nothing else changes."""

from dataclasses import replace
from datetime import timedelta

import pytest
from job_builders import NOW, OURS, Cluster, created, deleted, elastic_job, job, reasons, replica, tainted

from elastic.api.job import Job
from elastic_training.controller.facts.settings import Settings
from elastic_training.controller.facts.snapshot import Node, PodPhase

SPOT, GKE, REBALANCE = (
    "aws-node-termination-handler/spot-itn",
    "cloud.google.com/impending-node-termination",
    "aws-node-termination-handler/rebalance-recommendation",
)


def static(**more: object) -> Job:
    return job(Master=replica(1), Worker=replica(2, **more))  # type: ignore[arg-type]


def servers(**more: object) -> Job:
    return job("TFJob", PS=replica(1, kind="TFJob"), Worker=replica(2, kind="TFJob", **more))  # type: ignore[arg-type]


def at_store(**more: object) -> Job:
    return elastic_job(3, elastic={"rdzvBackend": "c10d"}, **more)


JOBS = {"static": static, "parameter servers": servers, "c10d": at_store}


def running(one: Job, *, settings: Settings = OURS) -> Cluster:
    cluster = Cluster(one, settings=settings, lingering=True)
    cluster.settle()
    cluster.run_all()
    for index, name in enumerate(cluster.names()):
        cluster.pods[name] = replace(cluster.pods[name], node=f"node-{index}")
    cluster.nodes = {f"node-{index}": Node(f"node-{index}") for index in range(len(cluster.pods))}
    cluster.settle()
    return cluster


def last_worker(cluster: Cluster) -> str:
    return max(cluster.names())


def doom(cluster: Cluster, taint: str) -> str:
    """Let the node of the last worker give notice."""
    name = last_worker(cluster)
    node = cluster.pods[name].node
    cluster.nodes[node] = tainted(node, taint)
    return name


def at(cluster: Cluster, seconds: float) -> list[str]:
    """Return the pods that are deleted by then, once all is done."""
    cluster.now = NOW + timedelta(seconds=seconds)
    return [name for planned in cluster.settle() for name in deleted(planned)]


@pytest.mark.parametrize("kind", JOBS)
@pytest.mark.parametrize(("taint", "early", "late"), [(SPOT, 89, 91), (GKE, 7, 8)])
def test_a_pod_goes_its_grace_before_the_loss_and_never_before_half_of_the_notice(kind: str, taint: str, early: int, late: int) -> None:
    cluster = running(JOBS[kind]())
    name = doom(cluster, taint)
    assert at(cluster, 0) == []
    leaving = cluster.job.status.elastic.leaving if cluster.job.status.elastic is not None else ()
    assert [(entry.member, entry.cause, entry.signal != "") for entry in leaving] == [(name, "disruption", True)]
    assert at(cluster, early) == [], "it trains on"
    assert at(cluster, late)[:1] == [name]


def test_the_pods_own_grace_counts() -> None:
    cluster = running(static(terminationGracePeriodSeconds=5))
    name = doom(cluster, SPOT)
    assert at(cluster, 0) == at(cluster, 114) == []
    assert at(cluster, 116)[:1] == [name]


@pytest.mark.parametrize("kind", JOBS)
def test_a_notice_that_is_taken_back_deletes_nothing(kind: str) -> None:
    cluster = running(JOBS[kind]())
    name = doom(cluster, SPOT)
    before = set(cluster.names())
    assert at(cluster, 0) == []
    cluster.nodes[cluster.pods[name].node] = Node(cluster.pods[name].node)
    later = at(cluster, 300)
    assert name not in later or kind == "c10d", "at c10d the replacement is there already, and one of them is too many"
    assert len(set(cluster.names()) & before) >= len(before) - 1
    assert cluster.job.status.elastic is None or all(entry.cause == "plan" for entry in cluster.job.status.elastic.leaving)


@pytest.mark.parametrize("kind", JOBS)
def test_its_end_is_not_charged_and_it_comes_back(kind: str) -> None:
    cluster = running(JOBS[kind]())
    name = doom(cluster, SPOT)
    workers = len(cluster.names())
    at(cluster, 0)
    at(cluster, 100)
    # It ends with the code of SIGTERM while it is being deleted, then it is gone with its node.
    if name in cluster.pods:
        cluster.set(name, PodPhase.FAILED, code=143, is_deleting=True)
        cluster.settle()
    for gone in [one for one, pod in cluster.pods.items() if pod.is_deleting]:
        del cluster.pods[gone]
    cluster.nodes.pop(f"node-{workers - 1}")
    cluster.settle()
    cluster.run_all()
    for gone in [one for one, pod in cluster.pods.items() if pod.is_deleting]:
        del cluster.pods[gone]
    cluster.settle()
    assert len([pod for pod in cluster.pods.values() if not pod.is_deleting]) == workers
    known = cluster.job.status.elastic
    assert known is None or (known.restarts.get("user", 0) == 0 and known.leaving == ())


def test_one_that_fails_before_is_made_again_uncharged() -> None:
    cluster = running(servers())
    name = doom(cluster, SPOT)
    at(cluster, 0)
    cluster.set(name, PodPhase.FAILED, code=1)
    cluster.lingering = False
    plans = cluster.settle()
    assert [made for planned in plans for made in created(planned)] == [name]
    assert cluster.job.status.elastic is None or cluster.job.status.elastic.restarts == {}
    assert "TFJobRestarting" not in reasons(plans)


def test_a_c10d_worker_has_its_replacement_before_it_goes() -> None:
    cluster = running(at_store())
    doom(cluster, SPOT)
    made = [name for planned in cluster.settle() for name in created(planned)]
    assert len([name for name in made if "worker" in name]) == 1
    assert at(cluster, 60) == []


@pytest.mark.parametrize("kind", JOBS)
@pytest.mark.parametrize("taint", [REBALANCE, "DeletionCandidateOfClusterAutoscaler", "node.kubernetes.io/unreachable"])
def test_a_signal_that_is_no_notice_of_a_loss_deletes_nothing(kind: str, taint: str) -> None:
    cluster = running(JOBS[kind]())
    doom(cluster, taint)
    assert at(cluster, 0) == at(cluster, 3600) == []


@pytest.mark.parametrize("kind", JOBS)
def test_status_and_an_event_tell_of_it(kind: str) -> None:
    cluster = running(JOBS[kind]())
    name = doom(cluster, SPOT)
    node = cluster.pods[name].node
    assert "DisruptionAnnounced" in reasons(cluster.settle())
    assert cluster.job.status.elastic is not None
    (entry,) = cluster.job.status.elastic.disruptions
    assert (entry.signal, entry.node, entry.workers, entry.ended_at) == ("aws-spot", node, 1, None)
    assert entry.by == NOW + timedelta(seconds=120)
    cluster.nodes[node] = Node(node)
    cluster.settle()
    assert cluster.job.status.elastic.disruptions[0].outcome == "TakenBack"
