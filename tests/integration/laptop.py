"""Help tests on a running laptop cluster with short manifests, and with waits for what a test expects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elastic.kube.client import Kube
from elastic.kube.resources import CONFIG_MAPS, POD_DISRUPTION_BUDGETS, PODS, SECRETS, SERVICES, Resource
from elastic.local import LocalCluster

PATIENCE_S = 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 0.25
"""Seconds between two looks of a wait. A look is a request to the API server, and takes time from the awaited work."""
NAMESPACE = "default"
Object = dict[str, Any]


def container(*command: str, name: str = "main", **fields: Any) -> Object:
    return {"name": name, "image": "any", "command": list(command), **fields}


def shell(script: str, **fields: Any) -> Object:
    return container("sh", "-c", script, **fields)


def pod(name: str, *containers: Object, labels: dict[str, str] | None = None, metadata: Object | None = None, **spec: Any) -> Object:
    given = {"restartPolicy": "Never", "containers": list(containers), "terminationGracePeriodSeconds": 2, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels or {}, **(metadata or {})}, "spec": given}


def service(name: str, selector: dict[str, str], port: int) -> Object:
    spec = {"clusterIP": "None", "selector": selector, "ports": [{"port": port}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


async def until(found: Callable[[], Any], what: str, *, within_s: float = PATIENCE_S) -> Any:
    """Ask again and again until the answer, or its awaited result, is true. Fail with the last answer."""
    end, pause_s = time.monotonic() + within_s, FIRST_PAUSE_S
    while True:
        answer = found()
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer:
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"not within {within_s:.0f} s: {what}; last: {answer!r}")
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.3, LONGEST_PAUSE_S)


async def make(kube: Kube, *objects: Object) -> None:
    kinds = {"Pod": PODS, "Service": SERVICES, "Secret": SECRETS, "ConfigMap": CONFIG_MAPS, "PodDisruptionBudget": POD_DISRUPTION_BUDGETS}
    for body in objects:
        await kube.create(kinds[body["kind"]], body, namespace=NAMESPACE)


async def get(kube: Kube, name: str, *, resource: Resource = PODS, namespace: str | None = NAMESPACE) -> Object | None:
    return await kube.find(resource, name, namespace=namespace)


async def phase(kube: Kube, name: str, *wanted: str) -> Object:
    """Return the pod once it is in one of these phases."""
    end, pause_s = time.monotonic() + PATIENCE_S, FIRST_PAUSE_S
    while True:
        found = await get(kube, name)
        if found and found["status"].get("phase") in wanted:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"pod {name} is not {' or '.join(wanted)}: {found and found['status']}")
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.3, LONGEST_PAUSE_S)


async def log_of(kube: Kube, name: str, **options: Any) -> str:
    return b"".join([chunk async for chunk in kube.logs(name, namespace=NAMESPACE, **options)]).decode()


async def gone(kube: Kube, name: str, *, within_s: float = PATIENCE_S, **where: Any) -> None:
    async def absent() -> bool:
        return await get(kube, name, **where) is None

    await until(absent, f"{name} is gone", within_s=within_s)


async def kill(cluster: LocalCluster, name: str) -> None:
    """Kill a process of the cluster, and return when another has taken its place."""
    before = cluster.processes()[name]
    cluster.kill(name)
    await until(lambda: cluster.processes()[name] != before, f"{name} runs again")


def alive(pids: list[int]) -> list[int]:
    """Return the processes that still run. A zombie counts as dead."""
    return [pid for pid in pids if Path(f"/proc/{pid}/stat").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text()]
