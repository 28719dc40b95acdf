"""How a job is scheduled as a gang: how many pods must fit at once, in which queue, and that its pod group goes when it has ended."""

from dataclasses import replace
from typing import Any

import pytest
from job_builders import PLAIN, Cluster, elastic_job, job, reasons, replica

from elastic_training.controller.deciding.actions import Update
from elastic_training.controller.facts.snapshot import Owned, PodPhase

VOLCANO = replace(PLAIN, gang_scheduler="volcano")
PLUGINS = replace(PLAIN, gang_scheduler="scheduler-plugins-scheduler")


def group(cluster: Cluster) -> dict[str, Any]:
    return dict(cluster.owned["PodGroup", "train"].raw["spec"])


def changed(cluster: Cluster, **parts: Any) -> None:
    """Change the group as Volcano does, or somebody with kubectl."""
    owned = cluster.owned["PodGroup", "train"]
    raw = {**owned.raw, **{key: {**owned.raw.get(key, {}), **value} for key, value in parts.items()}}
    cluster.owned["PodGroup", "train"] = Owned(kind=owned.kind, name=owned.name, uid=owned.uid, raw=raw)


def admitted(cluster: Cluster) -> Cluster:
    cluster.settle()
    changed(cluster, status={"phase": "Inqueue"})
    cluster.settle()
    return cluster


@pytest.mark.parametrize("settings", [VOLCANO, PLUGINS], ids=["volcano", "plugins"])
def test_an_elastic_job_needs_room_for_its_least_workers_however_many_it_has(settings: Any) -> None:
    for workers in (2, 4):
        cluster = Cluster(elastic_job(workers, least=2, most=6), settings=settings)
        cluster.settle()
        assert group(cluster)["minMember"] == 2


def test_masters_and_launchers_count_in_addition_to_the_least_workers() -> None:
    workers = {"Launcher": replica(1, kind="MPIJob"), "Worker": replica(3, kind="MPIJob")}
    cluster = Cluster(job("MPIJob", elasticPolicy={"minReplicas": 2, "maxReplicas": 4}, **workers), settings=PLUGINS)
    cluster.settle()
    assert group(cluster)["minMember"] == 3


def test_the_users_own_settings_stand() -> None:
    policy = {"schedulingPolicy": {"minAvailable": 1, "queue": "gold", "priorityClass": "high", "minResources": {"cpu": "3"}}}
    cluster = Cluster(job(Worker=replica(3), policy=policy), settings=VOLCANO)
    cluster.settle()
    assert group(cluster) == {"minMember": 1, "queue": "gold", "priorityClassName": "high", "minResources": {"cpu": "3"}}


def test_pods_wait_until_volcano_has_admitted_the_group() -> None:
    cluster = Cluster(job(Worker=replica(2)), settings=VOLCANO)
    cluster.settle()
    assert cluster.names() == []
    assert cluster.job.status.start_time is None
    admitted(cluster)
    assert cluster.names() == ["train-worker-0", "train-worker-1"]


def test_a_job_says_that_it_waits_for_volcano_and_why_as_long_as_it_does() -> None:
    """Its status said no more than that it was created, however long its queue was full."""
    cluster = Cluster(job(Worker=replica(2)), settings=VOLCANO)
    cluster.settle()
    words = "PyTorchJob train is created."
    assert cluster.job.status.conditions[-1].message == f"{words} It waits for Volcano to admit its PodGroup train to queue default."
    full = {"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources", "message": "queue resource quota insufficient"}
    changed(cluster, status={"phase": "Pending", "conditions": [full]})
    cluster.settle()
    assert cluster.job.status.conditions[-1].message.endswith("to queue default: queue resource quota insufficient.")
    admitted(cluster)
    assert cluster.job.status.conditions[-1].message == words
    cluster.run_all()
    cluster.settle()
    assert [c.type for c in cluster.job.status.conditions if "waits" in c.message] == []


def test_a_group_that_somebody_moved_to_another_queue_stays_there() -> None:
    cluster = admitted(Cluster(job(Worker=replica(2), policy={"schedulingPolicy": {"queue": "gold"}}), settings=VOLCANO))
    changed(cluster, spec={"queue": "silver"})
    planned = cluster.round()
    assert not [action for action in planned.actions if isinstance(action, Update)]
    changed(cluster, spec={"minMember": 9})
    (update,) = [action for action in cluster.round().actions if isinstance(action, Update)]
    assert update.change["spec"]["minMember"] == 2
    assert update.change["spec"]["queue"] == "silver"


def test_the_group_goes_when_the_job_is_finished_or_suspended_and_comes_back_when_it_is_resumed() -> None:
    cluster = admitted(Cluster(job(Worker=replica(1)), settings=VOLCANO))
    running = cluster.job.status
    cluster.job = job(Worker=replica(1), policy={"suspend": True}, status=running)
    cluster.settle()
    assert ("PodGroup", "train") not in cluster.owned
    cluster.job = job(Worker=replica(1), status=cluster.job.status)
    admitted(cluster)
    cluster.set("train-worker-0", PodPhase.SUCCEEDED, code=0)
    plans = cluster.settle()
    assert ("PodGroup", "train") not in cluster.owned
    assert "PyTorchJobSucceeded" in reasons(plans)


def test_a_scheduler_that_the_user_chose_stays_and_is_told_of() -> None:
    cluster = Cluster(job(Worker=replica(1, schedulerName="mine")), settings=PLUGINS)
    assert "SetPodTemplateSchedulerName" in reasons(cluster.settle())
