"""A pod that the kubelet evicts because it exceeded its own storage limit failed by itself; no node is to blame."""

from dataclasses import replace
from typing import Any

import pytest
from job_builders import NOW, OURS, Cluster, elastic_job, job, replica, with_sights

from elastic.api.job import Job
from elastic.api.words import Cause
from elastic_training.controller.acting.link import expectation
from elastic_training.controller.deciding.actions import SetExpectation
from elastic_training.controller.deciding.lifecycle import end_reasons
from elastic_training.controller.deciding.lifecycle.end_reasons import Meaning
from elastic_training.controller.facts.snapshot import Container, Pod, PodPhase, WorldSeen, pod_from

TOTAL = "Pod ephemeral local storage usage exceeds the total limit of containers 60Mi. "
WORDS = [
    TOTAL,
    'Container pytorch exceeded its local ephemeral storage limit "60Mi". ',
    "Container pytorch exceeds the local ephemeral storage limit 60Mi.",
    'Usage of EmptyDir volume "cache" exceeds the limit "1Gi". ',
]
PRESSURE = (
    "The node was low on resource: ephemeral-storage. Threshold quantity: 10, available: 5. "
    "Container pytorch was using 209Mi, request is 0, has larger consumption of ephemeral-storage. "
)


def raw(message: str, *, phase: str = "Failed", with_condition: bool = False) -> dict[str, Any]:
    ended = {"name": "pytorch", "state": {"terminated": {"exitCode": 137, "reason": "Error", "finishedAt": "2026-01-01T12:00:00Z"}}}
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": message}
    status = {"phase": phase, "reason": "Evicted", "message": message, "containerStatuses": [ended]}
    return {"metadata": {"name": "train-worker-1"}, "status": status | ({"conditions": [condition]} if with_condition else {})}


@pytest.mark.parametrize("with_condition", [False, True])
@pytest.mark.parametrize("words", WORDS)
def test_the_kubelets_words_tell_the_pods_own_limit(words: str, with_condition: bool) -> None:
    pod = pod_from(raw(words, with_condition=with_condition))
    assert pod.exceeded == words.strip()
    assert (pod.sights, pod.disruption) == ((), "")
    assert end_reasons.of_pod(pod, "pytorch") is Meaning.USER
    assert end_reasons.cause_of(pod, "pytorch", job_uid="job-uid") is Cause.USER


@pytest.mark.parametrize("with_condition", [False, True])
def test_an_eviction_by_a_node_that_is_short_of_disk_stays_a_disruption(with_condition: bool) -> None:
    pod = pod_from(raw(PRESSURE, with_condition=with_condition))
    assert pod.exceeded == ""
    assert {sight.signal.name for sight in pod.sights} >= {"pod-evicted"}
    assert end_reasons.of_pod(pod, "pytorch") is Meaning.DISRUPTION


def test_a_pod_that_never_began_has_failed_too() -> None:
    """Its init container filled an emptyDir; to try the same again, uncharged, would never end."""
    unbegun = Pod("p", "uid", "worker", 0, phase=PodPhase.FAILED, reason="Evicted", message=WORDS[3])
    assert not end_reasons.is_refused(unbegun)
    assert end_reasons.of_pod(unbegun, "pytorch") is Meaning.USER


def evict(cluster: Cluster, name: str, words: str, *, phase: PodPhase = PodPhase.FAILED) -> None:
    own = Container(cluster.job.kind.container, exit_code=137, exit_reason="Error", ended_at=NOW)
    if phase is PodPhase.RUNNING:
        own = Container(cluster.job.kind.container, is_running=True)
    evicted = replace(cluster.pods[name], phase=phase, reason="Evicted", message=words, containers=(own,), node="node-1")
    cluster.pods[name] = with_sights(evicted)


def running(one: Job) -> Cluster:
    cluster = Cluster(one, settings=OURS)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    return cluster


def test_a_static_job_says_so_and_is_charged() -> None:
    cluster = running(job(Master=replica(1), Worker=replica(2), policy={"backoffLimit": 3}))
    evict(cluster, "train-worker-1", TOTAL)
    plans = cluster.settle()
    elastic = cluster.job.status.elastic
    assert elastic is not None
    assert (elastic.restarts, elastic.disruptions, elastic.last_loss) == ({"user": 1}, (), None)
    news = [event for planned in plans for event in planned.news]
    assert any(event.reason == "StorageLimitExceeded" and TOTAL.strip() in event.message for event in news)
    assert any(event.reason == "PyTorchJobRestarting" and TOTAL.strip(". ") in event.message for event in news)


def test_the_condition_restarting_quotes_the_kubelet() -> None:
    cluster = running(job(Worker=replica(1)))
    evict(cluster, "train-worker-0", TOTAL)
    cluster.settle()
    assert cluster.state() == "Restarting"
    assert cluster.job.status.conditions[-1].message.endswith(f"train-worker-0 was evicted: {TOTAL.strip('. ')}.")


def test_under_restart_policy_never_the_job_fails_at_once_with_the_kubelets_words() -> None:
    cluster = running(job(Master=replica(1, restart="Never"), Worker=replica(2, restart="Never")))
    evict(cluster, "train-worker-1", TOTAL)
    cluster.settle()
    assert cluster.state() == "Failed"
    assert cluster.job.status.conditions[-1].message.endswith(f"train-worker-1 failed with exit code 137 (Evicted): {TOTAL.strip()}")


def test_a_pods_own_limit_explains_no_end_of_its_peers() -> None:
    cluster = running(job(Master=replica(1, restart="Never"), Worker=replica(2, restart="OnFailure")))
    evict(cluster, "train-worker-1", TOTAL)
    own = Container("pytorch", exit_code=1, exit_reason="Error", ended_at=NOW)
    cluster.pods["train-master-0"] = replace(cluster.pods["train-master-0"], phase=PodPhase.FAILED, containers=(own,))
    cluster.now = NOW.replace(minute=NOW.minute + 1)
    cluster.settle()
    assert cluster.state() == "Failed"


def test_an_elastic_worker_that_exceeds_its_limit_gets_no_notice_and_is_charged() -> None:
    """The kubelet says Evicted while the worker still runs: it was asked to leave, its node was blamed, and nothing was ever charged."""
    cluster = running(elastic_job(3))
    members = frozenset(cluster.names())
    cluster.world = WorldSeen(generation=1, members=members, phase="running", size=3)
    cluster.settle()
    evict(cluster, "train-worker-1", TOTAL, phase=PodPhase.RUNNING)
    cluster.settle()
    elastic = cluster.job.status.elastic
    assert elastic is not None
    assert (elastic.leaving, elastic.disruptions) == ((), ())
    evict(cluster, "train-worker-1", TOTAL)
    cluster.told.clear()
    planned = cluster.round()
    (expected,) = (action for action in cluster.told if isinstance(action, SetExpectation))
    assert [(end.member, end.cause, end.is_last, end.own_limit) for end in expected.ended] == [("train-worker-1", Cause.USER, True, True)]
    assert expectation(expected, now=NOW).ended[0].own_limit
    assert any(TOTAL.strip() in event.message for event in planned.news if event.reason == "StorageLimitExceeded")
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.disruptions == ()
