"""Check a job's Events about its pods, which have upstream's reasons."""

from dataclasses import replace
from typing import Any

import pytest
from job_builders import OURS, PLAIN, Cluster, elastic_job, job, reasons, replica, snapshot

from elastic.api.kinds import KINDS
from elastic_training.controller.deciding.plan import plan
from elastic_training.controller.facts.snapshot import Container, PodPhase, WorldSeen, pod_from

Object = dict[str, Any]


def as_the_kubelet_tells(*, phase: str = "Pending", containers: tuple[Object, ...] = (), inits: tuple[Object, ...] = ()) -> Object:
    labels = {"training.kubeflow.org/replica-type": "worker", "training.kubeflow.org/replica-index": "0"}
    status = {"phase": phase, "containerStatuses": list(containers), "initContainerStatuses": list(inits)}
    return {"metadata": {"name": "train-worker-0", "uid": "u", "labels": labels}, "status": status}


def said(raw: Object) -> list[tuple[str, str, str]]:
    planned = plan(job(Worker=replica(1)), snapshot(pod_from(raw)))
    return [(news.type, news.reason, news.message) for news in planned.news]


WAITS = {"name": "pytorch", "state": {"waiting": {"reason": "PodInitializing"}}}


def test_an_init_container_whose_image_cannot_be_pulled_is_told_of() -> None:
    stuck = {"name": "elastic-worker", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}}
    words = "Error pod train-worker-0 container elastic-worker waiting message: Back-off pulling image"
    assert said(as_the_kubelet_tells(containers=(WAITS,), inits=(stuck,))) == [("Warning", "ImagePullBackOff", words)]


def test_the_end_of_an_init_container_says_why_its_pod_has_failed() -> None:
    ended = {"name": "elastic-library", "state": {"terminated": {"exitCode": 1, "reason": "Error", "message": "No module named x"}}}
    raw = as_the_kubelet_tells(phase="Failed", containers=(WAITS,), inits=(ended,))
    words = "Error pod train-worker-0 container elastic-library exitCode: 1 terminated message: No module named x"
    assert ("Warning", "Error", words) in said(raw)


def test_init_containers_that_do_their_work_are_no_news() -> None:
    done = {"name": "first", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}, "restartCount": 1}
    waits = {"name": "second", "state": {"waiting": {"reason": "PodInitializing"}}}
    raw = as_the_kubelet_tells(containers=(WAITS,), inits=(done, waits))
    assert said(raw) == []
    assert pod_from(raw).restarts == 1


def test_a_container_that_ended_next_to_others_is_told_with_its_last_words() -> None:
    ended = {"name": "log", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "full"}}}
    runs = {"name": "pytorch", "state": {"running": {}}}
    words = "Error pod train-worker-0 container log exitCode: 137 terminated message: full"
    assert ("Warning", "OOMKilled", words) in said(as_the_kubelet_tells(phase="Running", containers=(ended, runs)))


def test_the_exit_code_of_an_ended_pod_is_enough() -> None:
    one = job(Worker=replica(1))
    cluster = Cluster(one)
    cluster.settle()
    cluster.set("train-worker-0", PodPhase.FAILED, code=1)
    assert reasons([cluster.round()]) == ["ExitedWithCode", "PyTorchJobRestarting"]


@pytest.mark.parametrize(("kind", "word"), [("PyTorchJob", "Set"), ("MPIJob", "Setted")])
def test_fields_of_the_template_that_do_not_count_are_told_in_upstreams_words(kind: str, word: str) -> None:
    head = "Master" if kind == "PyTorchJob" else "Launcher"
    one = job(kind, **{head: replica(1, kind=kind, restartPolicy="Always", schedulerName="mine")})
    found = reasons([Cluster(one, settings=replace(PLAIN, gang_scheduler="scheduler-plugins-scheduler")).round()])
    assert {f"{word}PodTemplateRestartPolicy", f"{word}PodTemplateSchedulerName"} <= set(found)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("TFJob", "TFJob team/train has failed because 1 Worker replica(s) failed."),
        ("JAXJob", "JAXJob train is failed because 1 Worker replica(s) failed."),
    ],
)
def test_the_failure_of_a_job_is_told_in_upstreams_words(kind: str, words: str) -> None:
    cluster = Cluster(job(kind, Worker=replica(1, kind=kind, restart="Never")), settings=PLAIN)
    cluster.settle()
    failed = (Container(name=cluster.job.kind.container, exit_code=1),)
    cluster.pods["train-worker-0"] = replace(cluster.pods["train-worker-0"], phase=PodPhase.FAILED, containers=failed)
    cluster.settle()
    assert cluster.job.status.conditions[-1].message == f"{words} First of all train-worker-0 failed with exit code 1."


def test_below_its_minimum_a_job_says_that_it_waits_once_and_in_its_state() -> None:
    cluster = Cluster(elastic_job(3, least=2, most=3), settings=OURS)
    cluster.settle()
    assert "BelowMinimum" not in reasons(cluster.settle()), "it has not begun yet"
    cluster.run_all()
    cluster.world = WorldSeen(generation=1, members=frozenset(cluster.pods), phase="running")
    assert "BelowMinimum" not in reasons(cluster.settle())
    assert cluster.job.status.conditions[-1].message == "PyTorchJob team/train is running."
    for name in ("train-worker-1", "train-worker-2"):
        del cluster.pods[name]
    cluster.world = WorldSeen(generation=1, members=frozenset(), phase="re-forming")
    (said,) = [news.message for news in cluster.round().news if news.reason == "BelowMinimum"]
    assert said == "PyTorchJob train waits until 2 workers run"
    waiting = cluster.job.status.condition("Running")
    assert waiting is not None
    assert (waiting.status, waiting.message) == ("False", "Waiting for workers: 1 of at least 2 running.")
    assert cluster.state() == "Created", "kubectl get shows the type of the last condition, whatever its status"
    cluster.run_all()
    cluster.world = WorldSeen(generation=2, members=frozenset(cluster.pods), phase="running")
    assert "BelowMinimum" not in reasons(cluster.settle())
    assert cluster.job.status.conditions[-1].message == "PyTorchJob team/train is running."


def test_without_any_worker_an_elastic_job_does_not_run() -> None:
    cluster = Cluster(elastic_job(2), settings=OURS)
    cluster.settle()
    assert cluster.job.status.condition("Running") is None, "a job that has not begun is as new"
    cluster.run_all()
    cluster.settle()
    assert cluster.state() == "Running"
    for name in cluster.names():
        cluster.pods[name] = replace(cluster.pods[name], phase=PodPhase.PENDING)
    cluster.settle()
    waiting = cluster.job.status.condition("Running")
    assert waiting is not None
    assert (waiting.status, waiting.message) == ("False", "Waiting for workers: 0 of at least 1 running.")
    cluster.run_all()
    cluster.settle()
    assert cluster.state() == "Running"
    assert [c.type for c in cluster.job.status.conditions] == ["Created", "Running"]


@pytest.mark.parametrize("kind", ["JAXJob", "TFJob", "XGBoostJob", "PaddleJob"])
def test_an_elastic_job_that_restarts_as_a_whole_does_not_run_without_its_workers_either(kind: str) -> None:
    """All its pods were deleted between two looks: no end of a pod told that the group restarts."""
    types = {type: replica(1, kind=kind) for type in KINDS[kind].required} | {"Worker": replica(3, kind=kind)}
    cluster = Cluster(job(kind, elasticPolicy={"minReplicas": 2, "maxReplicas": 4}, **types), settings=OURS)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    assert cluster.state() == "Running"
    cluster.pods.clear()
    cluster.settle()
    waiting = cluster.job.status.condition("Running")
    assert waiting is not None
    assert (waiting.status, waiting.message) == ("False", "Waiting for workers: 0 of at least 2 running.")
    cluster.run_all()
    cluster.settle()
    assert cluster.state() == "Running"


def test_a_suspended_job_does_not_say_that_it_waits_for_workers() -> None:
    cluster = Cluster(elastic_job(2), settings=OURS)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    for name in cluster.names():
        cluster.pods[name] = replace(cluster.pods[name], phase=PodPhase.PENDING)
    cluster.settle()
    cluster.job = elastic_job(2, policy={"suspend": True}, status=cluster.job.status)
    cluster.settle()
    assert cluster.state() == "Suspended"
    assert "Waiting" not in str(cluster.job.status.conditions)


def test_workers_that_have_finished_are_not_missing() -> None:
    cluster = Cluster(elastic_job(2, least=2, most=3), settings=OURS)
    cluster.settle()
    cluster.run_all()
    cluster.world = WorldSeen(generation=1, members=frozenset(cluster.pods), phase="running")
    cluster.settle()
    cluster.set("train-worker-0", PodPhase.SUCCEEDED, code=0)
    assert "BelowMinimum" not in reasons(cluster.settle())


def test_workers_that_come_one_by_one_are_no_shortage() -> None:
    cluster = Cluster(elastic_job(3, least=2, most=3, elastic={"rdzvBackend": "c10d"}), settings=OURS)
    plans = cluster.settle()
    for index in range(3):
        cluster.set(f"train-worker-{index}", PodPhase.RUNNING)
        plans += cluster.settle()
    assert "BelowMinimum" not in reasons(plans)
    assert cluster.state() == "Running"
    for index in range(2):
        cluster.pods[f"train-worker-{index}"] = replace(cluster.pods[f"train-worker-{index}"], is_deleting=True)
    assert reasons(cluster.settle()).count("BelowMinimum") == 1


def test_a_world_that_cannot_be_read_is_told_of_and_the_job_goes_on() -> None:
    cluster = Cluster(elastic_job())
    cluster.settle()
    cluster.world = WorldSeen(1, frozenset(), phase="running", trouble="the line is too long")
    planned = cluster.round()
    assert ("WorldUnreadable", "The members of the job's world are unknown: the line is too long") in [
        (n.reason, n.message) for n in planned.news
    ]


def test_a_fault_of_the_rendezvous_server_is_told_until_it_heals() -> None:
    cluster = Cluster(elastic_job())
    cluster.settle()
    for index in range(3):
        cluster.set(f"train-worker-{index}", PodPhase.RUNNING)
    cluster.settle()
    cluster.world = WorldSeen(1, frozenset(), phase="running", fault="the rendezvous server cannot decide")
    planned = cluster.round()
    assert ("RendezvousFault", "the rendezvous server cannot decide") in [(n.reason, n.message) for n in planned.news]
    cluster.settle()
    assert "RendezvousFault: the rendezvous server cannot decide." in conditions(cluster)
    cluster.world = WorldSeen(1, frozenset(), phase="running")
    plans = cluster.settle()
    assert "RendezvousFault" not in conditions(cluster)
    assert "RendezvousFault" not in reasons(plans)


def conditions(cluster: Cluster) -> str:
    return " ".join(condition.message for condition in cluster.job.status.conditions if condition.status == "True")
