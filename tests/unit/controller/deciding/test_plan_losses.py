"""A replica that is lost again and again soon after it was made waits: when, for how long, and what that leaves alone."""

from dataclasses import replace
from datetime import timedelta

import pytest
from job_builders import NOW, OURS, Cluster, created, elastic_job, job, replica
from msgspec import structs

from elastic.api.job import ElasticStatus, Job
from elastic.kube.resources import PODS
from elastic_training.controller.deciding.actions import Create
from elastic_training.controller.deciding.replicas.loss_backoff import without_unmade
from elastic_training.controller.facts.snapshot import PodPhase


def running(restart: str = "ExitCode", **types: int) -> Cluster:
    cluster = Cluster(job(**{type: replica(count, restart=restart) for type, count in (types or {"Worker": 3}).items()}))
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    return cluster


def elastic(cluster: Cluster) -> ElasticStatus:
    assert cluster.job.status.elastic is not None
    return cluster.job.status.elastic


def lose(cluster: Cluster, name: str = "train-worker-1", how: str = "fails") -> None:
    if how == "fails":
        cluster.set(name, PodPhase.FAILED, code=137)
    elif how == "vanishes":
        del cluster.pods[name]
    else:
        cluster.pods[name] = replace(cluster.pods[name], is_deleting=True)
        cluster.settle()
        del cluster.pods[name]
    cluster.settle()


def pauses(cluster: Cluster, how: str, *, losses: int) -> list[int]:
    """Return the seconds for which the place stays empty after each loss."""
    found = []
    for _ in range(losses):
        lose(cluster, how=how)
        waited = 0
        while "train-worker-1" not in cluster.pods:
            assert waited < 400
            cluster.now += timedelta(seconds=1)
            waited += 1
            cluster.settle()
        cluster.run_all()
        cluster.settle()
        found.append(waited)
    return found


@pytest.mark.parametrize("how", ["fails", "vanishes", "is deleted"])
def test_the_first_losses_in_a_row_are_made_up_for_at_once_and_later_ones_ever_more_slowly(how: str) -> None:
    assert pauses(running(), how, losses=13) == [0, 0, 0, 0, 2, 4, 8, 16, 32, 64, 128, 256, 300]


def test_the_condition_says_what_happened_how_often_and_when_the_next_try_is() -> None:
    cluster = running()
    pauses(cluster, "fails", losses=4)
    cluster.set("train-worker-1", PodPhase.FAILED, code=137)
    plans = cluster.settle()
    assert plans[-1].look_again_at == NOW + timedelta(seconds=2)
    assert cluster.job.status.conditions[-1].message.endswith(
        " It waits 2 s, until 12:00:02 UTC, to create pods again: 4 pods (Worker) in a row were lost soon after they were created, "
        "the last one: train-worker-1 failed: Error, exit code 137."
    )
    cluster.now += timedelta(seconds=2)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    assert "It waits" not in cluster.job.status.conditions[-1].message


def test_a_running_job_keeps_no_words_about_a_pause_in_a_former_condition() -> None:
    """The pods of the next try may run before a reconcile sees them made: the condition that named the pause is not the newest by then."""
    cluster = running()
    cluster.settle()
    paused = structs.replace(
        cluster.job.status.conditions[0], message="It is created. It waits 2 s, until 12:00:02 UTC, to create pods again."
    )
    status = structs.replace(cluster.job.status, conditions=(paused,))
    cluster.job = structs.replace(cluster.job, status=status)
    cluster.settle()
    assert [(c.type, c.message) for c in cluster.job.status.conditions] == [
        ("Created", "It is created."),
        ("Running", "PyTorchJob team/train is running."),
    ]


def test_a_pod_that_was_lost_once_does_not_wait_for_a_pod_that_is_lost_again_and_again() -> None:
    cluster = running(Master=1, Worker=3)
    pauses(cluster, "fails", losses=9)
    lose(cluster)
    lose(cluster, "train-worker-2")
    lose(cluster, "train-master-0")
    assert cluster.names() == ["train-master-0", "train-worker-0", "train-worker-2"]


def test_any_number_of_pods_that_are_lost_together_are_one_try() -> None:
    """All workers of a job with a bad image end at nearly the same time, and none of them has been lost twice."""
    cluster = running(Worker=40)
    for _ in range(4):
        for name in cluster.names():
            cluster.set(name, PodPhase.FAILED, code=137)
        cluster.settle()
        assert len(cluster.pods) == 40
        cluster.run_all()
        cluster.settle()
    assert elastic(cluster).replaced[0].tries == 3


def test_a_pod_that_has_run_for_minutes_ends_the_row() -> None:
    cluster = running()
    pauses(cluster, "fails", losses=7)
    cluster.now += timedelta(seconds=301)
    assert pauses(cluster, "fails", losses=4) == [0, 0, 0, 0]


def test_losses_far_apart_never_wait() -> None:
    cluster = running()
    for _ in range(12):
        assert pauses(cluster, "vanishes", losses=1) == [0]
        cluster.now += timedelta(seconds=301)


def test_a_pod_that_the_job_itself_removes_is_no_loss() -> None:
    cluster = running(restart="OnFailure")
    for _ in range(12):
        cluster.job = replaced_workers(cluster, 2)
        cluster.settle()
        cluster.job = replaced_workers(cluster, 3)
        cluster.settle()
        assert len(cluster.pods) == 3
        cluster.run_all()


def replaced_workers(cluster: Cluster, count: int) -> Job:
    types = dict(cluster.job.replicas)
    types["Worker"] = structs.replace(types["Worker"], replicas=count)
    return structs.replace(cluster.job, replicas=types)


def test_if_only_the_count_matters_another_number_is_no_way_around_the_pause() -> None:
    cluster = Cluster(elastic_job(3, elastic={"rdzvBackend": "etcd"}))
    cluster.settle()
    cluster.run_all()
    pauses(cluster, "vanishes", losses=6)
    del cluster.pods["train-worker-1"]
    assert all(created(plan) == [] for plan in cluster.settle())


def test_a_clock_that_has_stepped_back_keeps_nobody_waiting() -> None:
    cluster = running()
    pauses(cluster, "fails", losses=9)
    lose(cluster)
    assert "train-worker-1" not in cluster.pods
    cluster.now -= timedelta(hours=1)
    cluster.settle()
    assert "train-worker-1" in cluster.pods


def test_a_pause_that_a_clock_which_stepped_back_ended_does_not_begin_again() -> None:
    """A minute later the clock showed the time at which the pause had begun: the job waited, and said so, once more."""
    cluster = running()
    pauses(cluster, "fails", losses=9)
    lose(cluster)
    began = cluster.now
    cluster.now -= timedelta(seconds=60)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    cluster.job = replaced_workers(cluster, 1)
    cluster.settle()
    cluster.now = began + timedelta(seconds=1)
    cluster.job = replaced_workers(cluster, 3)
    cluster.settle()
    assert cluster.names() == ["train-worker-0", "train-worker-1", "train-worker-2"]


def test_a_job_that_lacks_no_pod_does_not_say_that_it_waits() -> None:
    """The place that was lost again and again was one that the job had no longer."""
    cluster = running()
    pauses(cluster, "fails", losses=9)
    lose(cluster, "train-worker-1")
    assert "It waits" in cluster.job.status.conditions[-1].message
    cluster.job = replaced_workers(cluster, 1)
    cluster.settle()
    assert cluster.job.status.conditions[-1].message == "PyTorchJob team/train is running."


@pytest.mark.parametrize("end", ["succeeds", "fails", "is suspended"])
def test_a_finished_or_suspended_job_does_not_say_that_it_waits(end: str) -> None:
    cluster = Cluster(elastic_job(2, least=2))
    cluster.settle()
    cluster.run_all()
    pauses(cluster, "vanishes", losses=9)
    lose(cluster, how="vanishes")
    assert any("It waits" in condition.message for condition in cluster.job.status.conditions)
    if end == "is suspended":
        cluster.job = elastic_job(2, least=2, policy={"suspend": True}, status=cluster.job.status)
    else:
        phase, code = (PodPhase.SUCCEEDED, 0) if end == "succeeds" else (PodPhase.FAILED, 1)
        cluster.set("train-worker-0", phase, code=code)
        cluster.job = elastic_job(2, least=2, policy={"backoffLimit": 0}, status=cluster.job.status)
    cluster.settle()
    assert cluster.state() == {"succeeds": "Succeeded", "fails": "Failed", "is suspended": "Suspended"}[end]
    assert not [condition for condition in cluster.job.status.conditions if "It waits" in condition.message]


def test_a_pod_that_could_not_be_created_is_not_lost() -> None:
    """Its name was taken by another job's pod, and the condition said that pods had vanished."""
    cluster = running()
    del cluster.pods["train-worker-1"]
    planned = cluster.round()
    assert planned.status is not None
    pods = [action.object for action in planned.actions if isinstance(action, Create) and action.resource == PODS]
    assert [pod["metadata"]["name"] for pod in pods] == ["train-worker-1"]
    assert planned.status.elastic is not None
    assert [made.index for made in planned.status.elastic.replaced[0].made] == [1]
    left = without_unmade(planned.status, pods)
    assert left.elastic is not None
    assert left.elastic.replaced == ()


def store_pauses(cluster: Cluster, *, losses: int) -> list[int]:
    """Return the seconds for which the store pod stays away after each loss."""
    found, name = [], ("Pod", "train-rdzv")
    for _ in range(losses):
        del cluster.owned[name]
        cluster.settle()
        waited = 0
        while name not in cluster.owned:
            assert waited < 400
            cluster.now += timedelta(seconds=1)
            waited += 1
            cluster.settle()
        cluster.settle()
        found.append(waited)
    return found


def test_a_store_pod_that_is_deleted_again_and_again_waits_and_the_condition_says_so() -> None:
    cluster = Cluster(elastic_job(2, elastic={"rdzvBackend": "c10d"}), settings=OURS)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    assert "store" not in {entry.type for entry in elastic(cluster).replaced}, "the first one replaces none"
    found = store_pauses(cluster, losses=7)
    assert found[:3] == [0, 0, 0]
    assert found[3:] == sorted(found[3:])
    assert found[-1] >= 8
    del cluster.owned["Pod", "train-rdzv"]
    cluster.settle()
    message = cluster.job.status.conditions[-1].message
    assert "to create pods again" in message
    assert "(store) in a row were lost soon after they were created, the last one: the store pod vanished." in message


def test_a_pod_dated_ahead_by_a_clock_that_stepped_since_is_not_counted_as_lost_once_that_time_has_come() -> None:
    """Nothing had to be made in its place; minutes later, at rest, the status named it as lost."""
    cluster = Cluster(elastic_job(3), settings=OURS)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    cluster.now += timedelta(minutes=5)
    del cluster.pods["train-worker-2"]
    cluster.settle()
    cluster.run_all()
    cluster.now -= timedelta(minutes=3)
    del cluster.pods["train-worker-2"]
    cluster.job = elastic_job(2, status=cluster.job.status)
    cluster.settle()
    known = elastic(cluster).replaced
    cluster.now += timedelta(minutes=4)
    cluster.settle()
    assert elastic(cluster).replaced == known
