"""The examples for Kueue and Volcano, which do not run here: what each of them does to the job is done to it in their place."""

from __future__ import annotations

import copy
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml
from job_builders import OURS, Cluster, with_status

from elastic.api import parse
from elastic.api.job import Job, JobStatus, Object
from elastic.kube.resources import PODS
from elastic_training.controller.deciding.actions import Create, Plan

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
GI = Decimal(2**30)


def documents(file: str) -> dict[str, Any]:
    return {document["kind"]: document for document in yaml.safe_load_all((EXAMPLES / file).read_text())}


def read(example: str) -> Object:
    raw: Object = documents(f"{example}/job.yaml")["PyTorchJob"]
    raw["metadata"] |= {"namespace": "team", "uid": "job-uid", "resourceVersion": "1"}
    return raw


def job(raw: Object, status: JobStatus | None = None) -> Job:
    parsed, problems = parse(raw)
    assert problems == []
    return with_status(parsed, status) if status is not None else parsed


def as_kueue_leaves_it(raw: Object, *, suspended: bool, selector: dict[str, str] | None = None) -> Object:
    """Return the job as Kueue leaves it: suspended, or admitted with the flavor's labels and tolerations in the template."""
    found = copy.deepcopy(raw)
    found["spec"]["runPolicy"] = {"suspend": suspended}
    if selector:
        pod = found["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        pod |= {"nodeSelector": selector, "tolerations": [{"key": "spot", "operator": "Exists"}]}
    return found


def pods_made(plans: list[Plan]) -> list[Object]:
    return [action.object for planned in plans for action in planned.actions if isinstance(action, Create) and action.resource == PODS]


def test_a_job_of_kueues_has_pods_only_while_admitted_and_on_the_nodes_that_kueue_says() -> None:
    raw = read("kueue")
    cluster = Cluster(job(as_kueue_leaves_it(raw, suspended=True)), settings=OURS, lingering=True)
    assert pods_made(cluster.settle()) == []
    for flavor in ({"pool": "reserved"}, {"pool": "spot"}):
        cluster.job = job(as_kueue_leaves_it(raw, suspended=False, selector=flavor), cluster.job.status)
        made = pods_made(cluster.settle())
        assert [pod["spec"]["nodeSelector"] for pod in made] == [flavor] * 3
        assert all({"key": "spot", "operator": "Exists"} in pod["spec"]["tolerations"] for pod in made)
        cluster.run_all()
        cluster.settle()
        assert cluster.state() == "Running", "by which Kueue knows that the pods are ready"
        cluster.job = job(as_kueue_leaves_it(raw, suspended=True), cluster.job.status)
        cluster.round()
        cluster.round()
        assert cluster.job.status.replica_statuses["Worker"].active == 3, "the quota is in use until the pods are gone"
        cluster.pods.clear()
        cluster.settle()
        assert cluster.job.status.replica_statuses["Worker"].active == 0


def test_the_queue_of_kueues_example_takes_its_job() -> None:
    raw, queues = read("kueue"), documents("kueue/queue.yaml")
    assert raw["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == queues["LocalQueue"]["metadata"]["name"]
    assert queues["LocalQueue"]["spec"]["clusterQueue"] == queues["ClusterQueue"]["metadata"]["name"]
    (group,) = queues["ClusterQueue"]["spec"]["resourceGroups"]
    (flavor,) = group["flavors"]
    assert flavor["name"] == queues["ResourceFlavor"]["metadata"]["name"]
    quota = {entry["name"]: amount(entry["nominalQuota"]) for entry in flavor["resources"]}
    assert list(quota) == group["coveredResources"]
    assert fits(raw, quota)


def test_a_job_of_volcanos_is_a_gang_of_its_least_workers_in_its_queue() -> None:
    raw, queue = read("volcano"), documents("volcano/queue.yaml")["Queue"]
    cluster = Cluster(job(raw), settings=replace(OURS, gang_scheduler="volcano"))
    assert pods_made(cluster.settle()) == [], "Volcano has not admitted the group yet"
    group = cluster.owned["PodGroup", "volcano"]
    assert group.raw["spec"] == {"minMember": 2, "queue": queue["metadata"]["name"], "minResources": {"cpu": "4", "memory": "8Gi"}}
    cluster.owned["PodGroup", "volcano"] = replace(group, raw={**group.raw, "status": {"phase": "Inqueue"}})
    made = pods_made(cluster.settle())
    assert len(made) == 4
    for pod in made:
        assert pod["spec"]["schedulerName"] == "volcano"
        assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "volcano"
    assert fits(raw, {name: amount(value) for name, value in queue["spec"]["capability"].items()})


def amount(value: str | int) -> Decimal:
    text = str(value)
    return Decimal(text.removesuffix("Gi")) * (GI if text.endswith("Gi") else 1)


def fits(raw: Object, room: dict[str, Decimal]) -> bool:
    worker = raw["spec"]["pytorchReplicaSpecs"]["Worker"]
    (container,) = worker["template"]["spec"]["containers"]
    return all(amount(value) * worker["replicas"] <= room[name] for name, value in container["resources"]["requests"].items())
