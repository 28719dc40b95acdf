"""Read what no cache holds, for one job and with the caller's own rights: its object, and the usage of its pods."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

import aiohttp
import yaml
from aiohttp import web

from elastic.api.names import JOB_NAME
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.pod_usage import pod_usage
from elastic.kube.resources import TRAIN_JOBS, Object
from elastic_training.autoscale.jobs import JOBS
from elastic_training.dashboard.serving.changes import refused
from elastic_training.dashboard.serving.shown import DefinitionPage, RoleShown, UsagePage, UsageShown, encode
from elastic_training.dashboard.watching.seen import JobSeen

MOST_YAML = 256 * 1024
MOST_WORDS, LONGEST_WORD, MOST_ROLES = 64, 4096, 16
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
T = TypeVar("T")


async def definition(kube: Kube, job: JobSeen) -> web.Response:
    """Answer with the job as its user wrote it. A job that belongs to a TrainJob answers with the TrainJob."""
    key, kind = job.key, job.summary.kind
    found = await _read(kube.get(JOBS[key.kind], key.name, namespace=key.namespace))
    if isinstance(found, web.Response):
        return found
    whole = await _read(kube.get(TRAIN_JOBS, key.name, namespace=key.namespace)) if kind.role else found
    text = "" if isinstance(whole, web.Response) else await _yaml(whole)
    roles = tuple(
        _role(type, _dict(spec)) for type, spec in list(_dict(_dict(found.get("spec")).get(kind.replica_key)).items())[:MOST_ROLES]
    )
    return _json(DefinitionPage(roles=roles, yaml=text[:MOST_YAML], is_cut=len(text) > MOST_YAML))


async def usage(kube: Kube, job: JobSeen) -> web.Response:
    """Answer with the CPU and memory that each pod of the job uses now."""
    key = job.key
    found = await _read(pod_usage(kube, key.namespace, labels=f"{JOB_NAME}={key.name}"))
    if isinstance(found, web.Response):
        return found
    used = {place.partition("/")[2]: UsageShown(cpus=one.cpu, memory=one.memory) for place, one in (found or {}).items()}
    return _json(UsagePage(is_measured=found is not None, pods=used))


async def _read(call: Awaitable[T]) -> T | web.Response:
    """Return the API server's answer, or ours about its refusal."""
    try:
        return await call
    except (KubeError, aiohttp.ClientError, TimeoutError) as error:
        return refused(error)


async def _yaml(found: Object) -> str:
    """Return the object without the parts that nobody wrote. A large object takes a second, so a thread writes it."""
    metadata = {name: value for name, value in found["metadata"].items() if name != "managedFields"}
    if APPLIED in (annotations := _dict(metadata.get("annotations"))):
        metadata["annotations"] = {name: value for name, value in annotations.items() if name != APPLIED}
    return await asyncio.to_thread(yaml.safe_dump, {**found, "metadata": metadata}, sort_keys=False, allow_unicode=True)


def _role(type: str, spec: Mapping[str, Any]) -> RoleShown:
    pod = _dict(_dict(spec.get("template")).get("spec"))
    containers = [one for one in pod.get("containers") or () if isinstance(one, dict)]
    first = containers[0] if containers else {}
    resources = _dict(first.get("resources"))
    return RoleShown(
        type=type[:64],
        replicas=spec["replicas"] if isinstance(spec.get("replicas"), int) else None,
        image=_word(first.get("image")),
        command=_words(first.get("command")),
        args=_words(first.get("args")),
        working_dir=_word(first.get("workingDir")),
        resources={
            str(name)[:64]: _word(amount) for name, amount in {**_dict(resources.get("requests")), **_dict(resources.get("limits"))}.items()
        },
    )


def _words(value: object) -> tuple[str, ...]:
    return tuple(_word(word) for word in value[:MOST_WORDS]) if isinstance(value, list) else ()


def _word(value: object) -> str:
    return "" if value is None else str(value)[:LONGEST_WORD]


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _json(page: object) -> web.Response:
    return web.Response(body=encode(page), content_type="application/json", charset="utf-8")
