"""An API server that refuses, hangs up, answers late and forgets what was watched: jobs of several kinds reach their end all the same.

And a pod that it cannot let go, because somebody holds it: its place waits, and nothing else does.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from laptop import NAMESPACE, get, gone, phase, until

from elastic.api.kinds import KINDS
from elastic.api.names import JOB_NAME, pod_name
from elastic.kube import connect
from elastic.kube.client import Kube
from elastic.kube.resources import PODS, SERVICES
from elastic.local import LocalCluster
from elastic_training.controller.facts.keys import JOBS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
WITHIN_S = 200.0
OURS = "^elastic-controller/"
WRITES = "POST|PUT|PATCH|DELETE"
MANY = 100_000
RULES: list[dict[str, Any]] = [
    {"method": WRITES, "probability": 0.05, "status": 409},
    {"method": WRITES, "probability": 0.05, "status": 429, "retry_after_s": 1},
    {"method": WRITES, "probability": 0.05, "status": 500},
    {"method": WRITES, "probability": 0.05, "drop": True},
    {"probability": 0.5, "latency_s": 0.1},
    {"method": "GET", "probability": 0.2, "end_watch_after_s": 1.0},
    {"method": "GET", "probability": 0.05, "gone": True},
    {"method": "GET", "probability": 0.05, "stale_by": 3},
    {"method": "GET", "probability": 0.05, "drop": True},
]
ENDS, WAITS = "sleep 1", "sleep 1000"
HELD = "example.com/held"
TYPES = {
    "PyTorchJob": {"Master": (1, ENDS), "Worker": (2, ENDS)},
    "TFJob": {"Chief": (1, ENDS), "PS": (1, WAITS), "Worker": (1, ENDS)},
    "XGBoostJob": {"Master": (1, ENDS), "Worker": (1, ENDS)},
    "MPIJob": {"Launcher": (1, ENDS), "Worker": (1, WAITS)},
    "JAXJob": {"Worker": (2, ENDS)},
}


def job_of(kind: str, types: dict[str, tuple[int, str]] | None = None) -> dict[str, Any]:
    def replica(count: int, command: str) -> dict[str, Any]:
        container = {"name": KINDS[kind].container, "image": "any", "command": ["sh", "-c", command]}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 1}
        return {"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": spec}}

    specs = {type: replica(*asked) for type, asked in (types or TYPES[kind]).items()}
    spec = {KINDS[kind].replica_key: specs, "runPolicy": {"cleanPodPolicy": "None"}}
    return {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": {"name": kind.lower()}, "spec": spec}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(faults=1) as cluster:
        yield cluster


async def misbehave(cluster: LocalCluster, rules: list[dict[str, Any]]) -> int:
    """Tell the API server how to treat the controller from now on. Return the number of requests that met a fault until now."""
    context = ssl.create_default_context(cafile=cluster.data_dir / "ca.crt")
    headers = {"Authorization": f"Bearer {Path(cluster.data_dir / 'admin.token').read_text()}"}
    given = [{"agent": OURS, "times": MANY, **rule} for rule in rules]
    async with aiohttp.ClientSession(cluster.state.server, headers=headers) as session:
        async with session.get("/faults", ssl=context) as answer:
            met = sum(MANY - rule["times"] for rule in await answer.json())
        async with session.put("/faults", ssl=context, json=given) as answer:
            assert answer.status == 200, await answer.text()
    return met


async def is_over(kube: Kube, kind: str) -> bool:
    status = (await kube.get(JOBS[kind], kind.lower(), namespace=NAMESPACE)).get("status") or {}
    ends = [c["type"] for c in status.get("conditions", ()) if c["status"] == "True" and c["type"] in ("Succeeded", "Failed")]
    assert "Failed" not in ends, status
    return ends == ["Succeeded"]


async def of_job(kube: Kube, kind: str) -> dict[str, int]:
    """Return the number of container restarts of each pod of a job."""
    pods = (await kube.list(PODS, namespace=NAMESPACE, labels=f"{JOB_NAME}={kind.lower()}")).items
    return {p["metadata"]["name"]: sum(c["restartCount"] for c in p["status"].get("containerStatuses") or ()) for p in pods}


async def test_jobs_of_several_kinds_succeed_although_the_api_server_misbehaves_all_the_time(cluster: LocalCluster) -> None:
    async with connect(cluster.kubeconfig) as kube:
        await misbehave(cluster, RULES)
        for kind in TYPES:
            await kube.create(JOBS[kind], job_of(kind), namespace=NAMESPACE)
        await asyncio.gather(*(until(lambda kind=kind: is_over(kube, kind), f"{kind} has succeeded", within_s=WITHIN_S) for kind in TYPES))
        for kind, types in TYPES.items():
            pods = await of_job(kube, kind)
            # The deciding pod may reach its end before a worker whose pod was refused is made.
            places = {pod_name(KINDS[kind], kind.lower(), type, index) for type, (count, _) in types.items() for index in range(count)}
            assert pods.keys() <= places
            assert set(pods.values()) == {0}, "nothing was started a second time"
        for kind in TYPES:
            await kube.delete(JOBS[kind], kind.lower(), namespace=NAMESPACE)
        met = await misbehave(cluster, [])
        assert met > len(TYPES), "the controller met faults"

        async def is_empty() -> bool:
            pods = [pod for kind in TYPES for pod in await of_job(kube, kind)]
            services = (await kube.list(SERVICES, namespace=NAMESPACE, labels=JOB_NAME)).items
            return not pods and not services

        await until(is_empty, "nothing is left of them", within_s=WITHIN_S)


async def test_the_place_of_a_pod_that_is_stuck_in_its_deletion_waits_and_the_rest_of_its_job_goes_on(cluster: LocalCluster) -> None:
    job = job_of("PyTorchJob", {"Master": (1, WAITS), "Worker": (1, WAITS)})
    job["metadata"]["name"] = "stuck"
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["metadata"] = {"finalizers": [HELD]}
    async with connect(cluster.kubeconfig) as kube:
        await misbehave(cluster, [])
        await kube.create(JOBS["PyTorchJob"], job, namespace=NAMESPACE)
        master, worker = [(await phase(kube, f"stuck-{type}-0", "Running"))["metadata"]["uid"] for type in ("master", "worker")]
        await kube.delete(PODS, "stuck-worker-0", namespace=NAMESPACE)
        await phase(kube, "stuck-worker-0", "Failed", "Succeeded")

        await kube.delete(PODS, "stuck-master-0", namespace=NAMESPACE)
        await until(lambda: _runs_anew(kube, "stuck-master-0", master), "the master is replaced", within_s=WITHIN_S)
        held = (await kube.get(PODS, "stuck-worker-0", namespace=NAMESPACE))["metadata"]
        assert (held["uid"], held["finalizers"]) == (worker, [HELD])
        await until(lambda: _just_runs(kube, "stuck"), "the job runs, and nothing was charged", within_s=WITHIN_S)

        await _let_go(kube, "stuck-worker-0")
        await until(lambda: _runs_anew(kube, "stuck-worker-0", worker), "the worker is replaced", within_s=WITHIN_S)
        await kube.delete(JOBS["PyTorchJob"], "stuck", namespace=NAMESPACE)
        await _let_go(kube, "stuck-worker-0")
        await gone(kube, "stuck-worker-0", within_s=WITHIN_S)


async def _runs_anew(kube: Kube, name: str, before: str) -> bool:
    pod = await get(kube, name)
    return pod is not None and pod["metadata"]["uid"] != before and pod["status"]["phase"] == "Running"


async def _just_runs(kube: Kube, name: str) -> bool:
    status = (await kube.get(JOBS["PyTorchJob"], name, namespace=NAMESPACE)).get("status") or {}
    true = [c["type"] for c in status.get("conditions", ()) if c["status"] == "True"]
    return true == ["Created", "Running"] and not (status.get("elastic") or {}).get("restarts")


async def _let_go(kube: Kube, name: str) -> None:
    await kube.patch(PODS, name, {"metadata": {"finalizers": None}}, namespace=NAMESPACE)
