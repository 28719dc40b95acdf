"""When an elastic job has succeeded or failed: who is waited for, who is not, and what becomes of the pods."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from job_builders import NOW, OURS, PLAIN, Cluster, elastic_job

from elastic_training.controller.deciding.actions import Forget, SetExpectation
from elastic_training.controller.facts.snapshot import Container, PodPhase, WorldSeen

LATE = "train-worker-1"
DONE = ("train-worker-0", "train-worker-2")


def training(*, backend: str = "elastic", settings: Any = OURS, **changes: Any) -> Cluster:
    policy = {"rdzvBackend": backend} if backend != "elastic" else {}
    cluster = Cluster(elastic_job(3, elastic={**policy, **changes.pop("elastic", {})}, **changes), settings=settings)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    if backend == "elastic" and settings is OURS:
        cluster.world = WorldSeen(generation=1, members=frozenset(cluster.names()), phase="running")
        cluster.settle()
    return cluster


def end_well(cluster: Cluster, *names: str, after_s: float = 0) -> None:
    ended = Container("pytorch", exit_code=0, ended_at=NOW + timedelta(seconds=after_s))
    for name in names:
        cluster.pods[name] = replace(cluster.pods[name], phase=PodPhase.SUCCEEDED, is_ready=False, containers=(ended,))


def runs(cluster: Cluster, name: str, *, since_s: float, **container: Any) -> None:
    own = Container("pytorch", started_at=NOW + timedelta(seconds=since_s), **container)
    cluster.pods[name] = replace(cluster.pods[name], containers=(own,))


def finished(cluster: Cluster, phase: str, *members: str) -> None:
    cluster.world = WorldSeen(generation=1, members=frozenset(members), phase=phase)


def test_a_worker_that_is_let_go_after_the_end_ends_with_the_others() -> None:
    cluster = training()
    end_well(cluster, *DONE)
    finished(cluster, "finishing", *DONE)
    cluster.settle()
    assert cluster.state() == "Running", "it is about to end by itself"
    end_well(cluster, LATE)
    cluster.settle()
    assert cluster.state() == "Succeeded"
    assert cluster.names() == sorted((*DONE, LATE))
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.restarts == {}


def test_a_worker_that_does_not_come_to_hear_of_the_end_is_not_waited_for() -> None:
    cluster = training()
    end_well(cluster, *DONE)
    finished(cluster, "finished", *DONE)
    cluster.settle()
    assert cluster.state() == "Succeeded"
    assert cluster.names() == sorted(DONE), "it would wait for ever, and nobody is there whom it could join"


def test_a_member_that_has_finished_may_take_its_time_to_end() -> None:
    cluster = training()
    end_well(cluster, *DONE)
    finished(cluster, "finished", *DONE, LATE)
    cluster.settle()
    assert cluster.state() == "Running"
    cluster.pods[LATE] = replace(cluster.pods[LATE], containers=(Container("pytorch", waiting="CrashLoopBackOff"),))
    cluster.settle()
    assert cluster.state() == "Succeeded", "but what is started again after it had finished does not count"


def test_the_work_stays_done_if_no_pod_shows_it_any_more() -> None:
    cluster = training()
    cluster.pods.clear()
    finished(cluster, "finished", *DONE, LATE)
    cluster.settle()
    assert cluster.state() == "Succeeded"


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_worker_that_ended_in_the_middle_is_no_completion_if_its_peers_are_evicted(*, is_heard: bool) -> None:
    """Its pod shows status 0, and the rendezvous went on without it. The job succeeded once no other pod ran."""
    cluster = training()
    end_well(cluster, LATE)
    cluster.world = WorldSeen(generation=2, members=frozenset(DONE), phase="running") if is_heard else None
    cluster.settle()
    for name in DONE:
        cluster.set(name, PodPhase.FAILED, reason="Evicted")
    cluster.settle()
    assert cluster.state() != "Succeeded"
    assert (len(cluster.names()), LATE in cluster.names()) == (3, True), "they are replaced"


@pytest.mark.parametrize("phase", ["", "empty"])
def test_a_job_that_ended_at_a_smaller_size_is_complete_if_its_records_are_gone(phase: str) -> None:
    """Records in an etcd outlive the last agent by five minutes. A controller that came later waited for the third worker for ever."""
    cluster = training()
    cluster.world = WorldSeen(generation=2, members=frozenset(DONE), size=2, phase="running")
    cluster.delete(LATE)
    cluster.settle()
    end_well(cluster, *DONE)
    cluster.world = WorldSeen(generation=0, members=frozenset(), phase=phase) if phase else None
    cluster.settle()
    assert cluster.state() == "Succeeded"


def test_a_job_whose_workers_all_ended_well_needs_no_word_of_its_server() -> None:
    cluster = training()
    end_well(cluster, *DONE, LATE)
    cluster.world = None
    cluster.settle()
    assert cluster.state() == "Succeeded"


def test_a_scale_in_while_some_have_finished_asks_no_finished_worker_to_leave() -> None:
    cluster = training()
    end_well(cluster, *DONE)
    cluster.job = elastic_job(1, status=cluster.job.status)
    cluster.settle()
    assert sorted(cluster.pods) == sorted((*DONE, LATE))


def test_a_job_that_is_always_restarted_is_never_done() -> None:
    cluster = training(restart="Always")
    cluster.pods.clear()
    finished(cluster, "finished", *DONE, LATE)
    cluster.settle()
    assert cluster.state() != "Succeeded"


def test_the_server_is_told_who_has_finished() -> None:
    """A server that has just started cannot know, and would begin a world of workers that come too late."""
    cluster = training()
    end_well(cluster, *DONE)
    (word,) = [action for action in cluster.round().actions if isinstance(action, SetExpectation)]
    assert word.finished == DONE


@pytest.mark.parametrize("settings", [OURS, PLAIN], ids=["store", "upstream's"])
def test_if_torch_has_closed_its_rendezvous_no_job_waits_for_a_worker_that_began_later(settings: Any) -> None:
    cluster = training(backend="c10d", settings=settings)
    for name in cluster.names():
        runs(cluster, name, since_s=0)
    end_well(cluster, *DONE, after_s=100)
    cluster.settle()
    assert cluster.state() == "Running", "it may work on for minutes"
    runs(cluster, LATE, since_s=110, last_exit_code=137)
    cluster.settle()
    assert cluster.state() == "Succeeded"


def test_if_torch_has_closed_its_rendezvous_an_agent_that_fails_again_and_again_is_not_waited_for() -> None:
    cluster = training(backend="c10d")
    end_well(cluster, *DONE, after_s=100)
    cluster.pods[LATE] = replace(cluster.pods[LATE], containers=(Container("pytorch", waiting="CrashLoopBackOff", last_exit_code=1),))
    cluster.settle()
    assert cluster.state() == "Succeeded"
    assert cluster.names() == sorted(DONE)


@pytest.mark.parametrize(("sidecars", "is_kept"), [((), True), ((Container("logs", is_running=True),), False)])
def test_a_worker_whose_pod_ends_after_its_containers_keeps_its_log(sidecars: tuple[Container, ...], is_kept: bool) -> None:
    cluster = training()
    end_well(cluster, *DONE, LATE)
    last = cluster.pods[LATE]
    cluster.pods[LATE] = replace(last, phase=PodPhase.RUNNING, containers=(*last.containers, *sidecars))
    finished(cluster, "finished")
    cluster.settle()
    assert cluster.state() == "Succeeded"
    assert (LATE in cluster.pods) is is_kept


def test_workers_that_train_each_for_itself_are_all_waited_for() -> None:
    cluster = training(backend="c10d", settings=PLAIN, elastic={"standalone": True})
    end_well(cluster, *DONE, after_s=100)
    runs(cluster, LATE, since_s=200)
    cluster.settle()
    assert cluster.state() == "Running"


@pytest.mark.parametrize(
    ("policy", "kept"), [(None, ["train-worker-0", "train-worker-1", "train-worker-2"]), ("Running", ["train-worker-2"]), ("All", [])]
)
def test_a_failed_elastic_job_keeps_the_pods_that_its_policy_says_and_none_of_them_runs_on(policy: str | None, kept: list[str]) -> None:
    cluster = training(policy={"cleanPodPolicy": policy} if policy else {})
    cluster.pods["train-worker-2"] = replace(cluster.pods["train-worker-2"], phase=PodPhase.FAILED)
    cluster.world = WorldSeen(generation=2, members=frozenset(), phase="closed", closed="all 0 restarts are used up")
    cluster.settle()
    assert cluster.state() == "Failed"
    assert cluster.names() == kept
    assert {pod.phase for pod in cluster.pods.values()} <= {PodPhase.FAILED}


@pytest.mark.parametrize(("before", "last", "kept"), [(None, 70, 70), (40, 70, 70), (40, None, 40), (None, None, None)])
def test_the_status_of_a_job_that_ends_keeps_its_last_step(before: int | None, last: int | None, kept: int | None) -> None:
    """It kept the step of the last restart, and nobody else remembers a finished job."""
    for ends in ("Succeeded", "Failed"):
        cluster = training(restart="Never")
        cluster.world = WorldSeen(generation=1, members=frozenset(cluster.names()), phase="running", fruitless=0, step=before)
        cluster.settle()
        if ends == "Succeeded":
            cluster.world = WorldSeen(
                generation=1, members=frozenset(cluster.names()), phase="finished", fruitless=0, step=before, highest=last
            )
            end_well(cluster, *cluster.names())
        else:
            cluster.world = WorldSeen(generation=1, members=frozenset(), phase="re-forming", fruitless=0, step=before, highest=last)
            cluster.set(LATE, PodPhase.FAILED, code=1)
        cluster.settle()
        assert cluster.state() == ends
        assert cluster.job.status.elastic is not None
        assert cluster.job.status.elastic.step == kept


@pytest.mark.parametrize(("before", "last", "kept"), [(None, 70, 70), (40, 70, 70), (40, None, 40), (None, None, None)])
@pytest.mark.parametrize("policy", [{"activeDeadlineSeconds": 60}, {"backoffLimit": 0}])
def test_the_last_step_of_a_world_that_works_up_to_the_end_is_written_once_the_rendezvous_has_forgotten_the_job(
    policy: dict[str, int], before: int | None, last: int | None, kept: int | None
) -> None:
    """Its last step was never told: no step is a message by itself."""
    cluster = training(policy=policy)
    cluster.world = WorldSeen(generation=1, members=frozenset(cluster.names()), phase="running", fruitless=0, step=before)
    cluster.settle()
    if "backoffLimit" in policy:
        runs(cluster, LATE, since_s=0, last_exit_code=1, restarts=1)
    else:
        cluster.now += timedelta(seconds=61)
    cluster.settle()
    assert cluster.state() == "Failed"
    assert cluster.names() == []
    assert any(isinstance(action, Forget) for action in cluster.told)
    cluster.world, cluster.last_step = None, last
    plans = cluster.settle()
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.step == kept
    assert [planned.status for planned in plans].count(None) == len(plans) - (kept != before), "it is written once"
