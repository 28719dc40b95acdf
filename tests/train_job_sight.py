"""Wait for what a TrainJob shows at an API server, within a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from elastic.api.job import Object
from elastic.kube.client import Kube
from elastic.kube.resources import PODS, TRAIN_JOBS

WITHIN_S = 180
COUNTS = ("ready", "succeeded", "failed", "active", "suspended")


async def until(look: Callable[[], Awaitable[Any]], holds: Callable[[Any], object], what: str) -> Any:
    """Return what is seen, once it is as wanted."""
    seen = None
    try:
        async with asyncio.timeout(WITHIN_S):
            while not holds(seen := await look()):  # noqa: ASYNC110 - some of these facts wake nobody
                await asyncio.sleep(0.2)
    except TimeoutError:
        pytest.fail(f"never {what}: {seen}")
    return seen


async def until_job(kube: Kube, name: str, holds: Callable[[Any], object], what: str, *, namespace: str = "default") -> Object:
    """Return the TrainJob, once it is as wanted."""
    found: Object = await until(lambda: kube.get(TRAIN_JOBS, name, namespace=namespace), holds, what)
    return found


def conditions(job: Object) -> list[tuple[str, str, str]]:
    """Return type, status and reason of each condition."""
    return [(one["type"], one["status"], one["reason"]) for one in (job.get("status") or {}).get("conditions", ())]


def counts(job: Object, role: str) -> dict[str, int]:
    """Return the state of the nodes or another role, or zeros if it is not known yet."""
    found = ((one["name"], one) for one in (job.get("status") or {}).get("jobsStatus", ()))
    state = dict(found).get(role, {})
    return {key: state.get(key, 0) for key in COUNTS}


async def pods_of(kube: Kube, name: str, *, namespace: str = "default") -> list[Object]:
    """Return the pods that a TrainJob has now."""
    return list((await kube.list(PODS, namespace=namespace, labels=f"jobset.sigs.k8s.io/jobset-name={name}")).items)
