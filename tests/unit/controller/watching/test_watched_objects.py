"""Check that any JSON in one object leaves the view of all others intact, and that the object is seen or reported."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from arbitrary_json import places, planted

from elastic.api.names import JOB_NAME, OPERATOR_NAME, REPLICA_INDEX, REPLICA_TYPE
from elastic.kube.answers import WatchEvent, WatchType
from elastic.kube.paging import Listing
from elastic.kube.resources import Object
from elastic_training.controller.watching import observe
from elastic_training.controller.watching.observe import Observer

ODD: tuple[Any, ...] = (None, True, -1, 1.5, 10**60, "", "0000-01-01T00:00:00Z", [[]], {"a": 1}, [{}])
DATE = "2026-01-01T00:00:00Z"
OWNERS = [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "train", "uid": "job-uid", "controller": True}]
METADATA = {
    "name": "train-worker-0",
    "namespace": "team",
    "uid": "u",
    "resourceVersion": "7",
    "deletionTimestamp": DATE,
    "deletionGracePeriodSeconds": 30,
    "labels": {OPERATOR_NAME: "pytorchjob-controller", JOB_NAME: "train", REPLICA_TYPE: "worker", REPLICA_INDEX: "0"},
    "ownerReferences": OWNERS,
}
ENDED = {"exitCode": 1, "reason": "Error", "message": "m", "finishedAt": DATE}
CONTAINER = {"name": "pytorch", "restartCount": 1, "state": {"terminated": ENDED}, "lastState": {"terminated": ENDED}}
RUNNING = {"name": "side", "restartCount": 0, "state": {"running": {"startedAt": DATE}}}
CONDITIONS = [
    {"type": type, "status": "True", "reason": "r", "message": "m"} for type in ("DisruptionTarget", "Ready", "elastic-training/in-world")
]
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": METADATA,
    "spec": {"nodeName": "n", "activeDeadlineSeconds": 5, "readinessGates": [{"conditionType": "elastic-training/in-world"}]},
    "status": {"phase": "Running", "conditions": CONDITIONS, "containerStatuses": [CONTAINER, RUNNING], "initContainerStatuses": [RUNNING]},
}
SERVICE = {"apiVersion": "v1", "kind": "Service", "metadata": METADATA}
CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": METADATA, "data": {"hosts": "a"}}
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n", "uid": "node-uid", "resourceVersion": "7"},
    "spec": {"unschedulable": True, "taints": [{"key": "k", "effect": "NoExecute"}]},
}


def observer() -> Observer:
    return Observer(None, kinds=["PyTorchJob"], resources=observe.resources_of(["PyTorchJob", "MPIJob"], gang_scheduler=""))  # type: ignore[arg-type]


def spoilt(good: Object) -> Iterator[tuple[tuple[Any, ...], Any, Object]]:
    for at in places(good):
        for value in ODD:
            yield at, value, planted(good, at, value)


@pytest.mark.parametrize("good", [POD, SERVICE, CONFIG_MAP, NODE], ids=lambda good: good["kind"])
def test_an_object_with_any_value_anywhere_leaves_the_view_of_others_as_it_is(good: Object) -> None:
    view = observer()
    cache = next(cache for cache in view._all if cache.resource.kind == good["kind"])
    changed: list[Any] = []
    for each in view._mine:
        each.subscribe(lambda change: observe._tell(change, changed.append))
    for number, (at, value, bad) in enumerate(spoilt(good)):
        other = planted(good, ("metadata", "name"), f"other-{number}")
        for type, item in (("ADDED", good), ("MODIFIED", bad), ("ADDED", bad), ("DELETED", bad), ("ADDED", other), ("DELETED", good)):
            cache._take(WatchEvent(WatchType(type), copy.deepcopy(item)))
        assert (good["metadata"].get("namespace", ""), f"other-{number}") in set(cache.keys()), (at, value)


def test_a_job_with_any_value_anywhere_leaves_the_view_of_others_as_it_is() -> None:
    good = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": METADATA, "spec": {"a": 1}}
    other = planted(planted(good, ("metadata", "name"), "other"), ("metadata", "uid"), "v")
    for at, value, bad in spoilt(good):
        jobs = observer().jobs["PyTorchJob"]
        jobs.take("ADDED", copy.deepcopy(good))
        jobs.take(None, copy.deepcopy(bad))
        jobs._merge(Listing([copy.deepcopy(bad), copy.deepcopy(good), copy.deepcopy(other)], "8"))
        jobs.take("DELETED", copy.deepcopy(bad))
        assert ("team", "other") in set(jobs.keys()), (at, value)
