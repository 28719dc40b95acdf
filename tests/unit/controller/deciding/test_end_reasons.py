"""The words of a node, a kubelet or a runtime about the end of a pod decide who pays for it."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from job_builders import OURS, Cluster, elastic_job, job, pod, reasons, replica, with_sights

from elastic.api.words import Cause
from elastic_training.controller.deciding.actions import SetExpectation
from elastic_training.controller.deciding.lifecycle import end_reasons
from elastic_training.controller.deciding.lifecycle.end_reasons import TABLE, Meaning, ReasonField
from elastic_training.controller.facts.snapshot import Container, PodPhase, pod_from

FAULTS = Path(__file__).parents[4] / "docs/faults.md"
REBOOTED = Container(name="pytorch", exit_code=255, exit_reason="Unknown")
STARTED_AGAIN = Container(name="pytorch", restarts=1, last_exit_code=255, last_exit_reason="Unknown")


def static(restart: str, **policy: int) -> Cluster:
    cluster = Cluster(job(Master=replica(restart=restart), Worker=replica(2, restart=restart), policy=policy))
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    return cluster


def counts(cluster: Cluster) -> dict[str, int]:
    assert cluster.job.status.elastic is not None
    return cluster.job.status.elastic.restarts


def test_docs_faults_shows_the_table() -> None:
    shown = []
    for line in FAULTS.read_text().splitlines():
        cells = line.split(" | ")
        shown += [(cells[0].removeprefix("| "), cells[1], word) for word in re.findall(r"`(\w+)`", cells[-1]) if len(cells) == 3]
    wanted = [(row.meaning.value, row.place.value, row.word) for row in TABLE]
    assert [row for row in shown if row[1] in {place.value for place in ReasonField}] == wanted


@pytest.mark.parametrize("row", [row for row in TABLE if row.place is not ReasonField.CONTAINER], ids=lambda row: row.word)
def test_every_reason_of_a_pod_means_what_the_table_says(row: end_reasons.EndReason) -> None:
    said = {"disruption" if row.place is ReasonField.CONDITION else "reason": row.word + "cpu" * (row.word == "OutOf")}
    never_began = with_sights(pod(phase=PodPhase.FAILED, **said))
    assert end_reasons.of_pod(never_began, "pytorch") is row.meaning
    ran = replace(never_began, containers=(Container(name="pytorch", exit_code=137, exit_reason="Error"),))
    after = Meaning.DISRUPTION if row.meaning is Meaning.REFUSED else row.meaning
    assert end_reasons.of_pod(ran, "pytorch") is after, "a kubelet that starts again judges anew the pods that it has"


@pytest.mark.parametrize("row", [row for row in TABLE if row.place is ReasonField.CONTAINER], ids=lambda row: row.word)
def test_every_reason_of_a_container_means_what_the_table_says(row: end_reasons.EndReason) -> None:
    assert end_reasons.of_container(row.word) is row.meaning


def test_an_unknown_reason_means_refused_if_nothing_has_begun() -> None:
    unknown = pod(phase=PodPhase.FAILED, reason="FromTomorrow", containers=(Container(name="pytorch", waiting="ContainerCreating"),))
    assert end_reasons.of_pod(unknown, "pytorch") is Meaning.REFUSED
    ran = replace(unknown, containers=(Container(name="pytorch", exit_code=1, exit_reason="Error"),))
    assert end_reasons.of_pod(ran, "pytorch") is Meaning.USER


def test_a_node_that_restarts_while_init_containers_run_is_not_the_users_fault() -> None:
    status = {
        "phase": "Failed",
        "initContainerStatuses": [{"name": "init", "state": {"terminated": {"exitCode": 255, "reason": "Unknown"}}}],
        "containerStatuses": [{"name": "pytorch", "state": {"waiting": {"reason": "PodInitializing"}}}],
    }
    made = pod_from({"metadata": {"name": "p"}, "status": status})
    assert end_reasons.cause_of(made, "pytorch", job_uid="job-uid") is Cause.DISRUPTION


def test_the_training_containers_own_failure_counts_next_to_a_neighbour_that_the_node_ended() -> None:
    failed = pod(
        phase=PodPhase.FAILED, containers=(Container(name="log", exit_code=255, exit_reason="Unknown"), Container("pytorch", exit_code=1))
    )
    assert end_reasons.cause_of(failed, "pytorch", job_uid="job-uid") is Cause.USER


@pytest.mark.parametrize("restart", ["Never", "ExitCode", "OnFailure"])
def test_a_static_job_survives_the_restart_of_a_node(restart: str) -> None:
    cluster = static(restart)
    uid = cluster.pods["train-worker-1"].uid
    cluster.set("train-worker-1", PodPhase.FAILED)
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], containers=(REBOOTED,))
    plans = cluster.settle()
    assert cluster.pods["train-worker-1"].uid != uid
    assert "PyTorchJobFailed" not in reasons(plans)
    assert counts(cluster) == {"disruption": 1}


def test_restarts_in_place_by_a_node_that_was_restarted_never_use_up_the_backoff_limit() -> None:
    """The newest end alone can be seen: that an earlier one was no fault of the program's must be written down."""
    cluster = static("OnFailure", backoffLimit=2)
    name = "train-worker-1"
    cluster.pods[name] = replace(cluster.pods[name], containers=(STARTED_AGAIN,))
    cluster.settle()
    assert counts(cluster) == {"disruption": 1}
    failed = Container(name="pytorch", restarts=2, last_exit_code=1, last_exit_reason="Error")
    cluster.pods[name] = replace(cluster.pods[name], containers=(failed,))
    cluster.settle()
    assert cluster.state() == "Running", "one failure of two"
    cluster.pods[name] = replace(cluster.pods[name], containers=(replace(failed, restarts=3),))
    cluster.settle()
    assert cluster.state() == "Failed"


def test_init_containers_that_are_run_once_more_because_the_sandbox_was_lost_use_up_nothing() -> None:
    cluster = static("OnFailure", backoffLimit=1)
    name = "train-worker-1"
    again = Container(name="init-pytorch", restarts=1, exit_code=0, last_exit_code=0, last_exit_reason="Completed")
    cluster.pods[name] = replace(cluster.pods[name], containers=(STARTED_AGAIN,), inits=(again,))
    cluster.settle()
    assert cluster.state() == "Running"
    failing = replace(again, exit_code=None, last_exit_code=1, last_exit_reason="Error")
    cluster.pods[name] = replace(cluster.pods[name], inits=(failing,))
    cluster.settle()
    assert cluster.state() == "Failed"


@pytest.mark.parametrize(
    "container", [REBOOTED, STARTED_AGAIN, replace(STARTED_AGAIN, last_exit_code=137, last_exit_reason="ContainerStatusUnknown")]
)
def test_the_rendezvous_server_is_not_told_of_the_restart_of_a_node_as_the_programs_failure(container: Container) -> None:
    """It has seen the connection break and counted a disruption: the controller's word would have overwritten that."""
    cluster = Cluster(elastic_job(2), settings=OURS)
    cluster.settle()
    cluster.run_all()
    phase = PodPhase.FAILED if container is REBOOTED else PodPhase.RUNNING
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], phase=phase, containers=(container,))
    cluster.settle()
    told = [action for action in cluster.told if isinstance(action, SetExpectation)]
    assert told
    assert all(end.cause is Cause.DISRUPTION for word in told for end in word.ended)
    assert cluster.state() == "Running"
