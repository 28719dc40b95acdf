"""Find where the workers of an elastic job should meet by its spec alone. The controller knows what the installation offers."""

import re
from collections.abc import Mapping
from typing import Any

from elastic.api.job import Job
from elastic.api.kinds import WORKER
from elastic.api.template import default_container
from elastic.api.words import RdzvBackend, WorkerLibrary

ETCDS = (RdzvBackend.ETCD, RdzvBackend.ETCD_V2)
_RENDEZVOUS_FLAG = re.compile(r"^--rdzv[-_](backend|endpoint|id|conf)(=|$)|^--standalone$|^--(master|node)[-_](addr|port|rank)(=|$)")


def wanted_backend(job: Job) -> RdzvBackend | None:
    """Return ELASTIC (the rendezvous server), ETCD (by our library) or C10D (a store pod of the job).

    Return None if the user chose how workers meet, or they need not meet.
    """
    policy = job.elastic
    if policy is None or [*job.replicas] != [WORKER] or policy.standalone or is_chosen_by_command(job):
        return None
    if policy.rdzv_backend in ETCDS:
        return None if obstacle_to_library(job) else RdzvBackend.ETCD
    if policy.rdzv_host:
        return None
    return RdzvBackend.C10D if policy.rdzv_backend is RdzvBackend.C10D or obstacle_to_library(job) else RdzvBackend.ELASTIC


def needs_own_etcd(job: Job) -> bool:
    """Tell whether the workers meet in the installation's etcd, because the spec asks for an etcd and names none."""
    return wanted_backend(job) is RdzvBackend.ETCD and job.elastic is not None and not members_of(job)


def members_of(job: Job) -> list[str]:
    """Return the members of the etcd that rdzvHost names."""
    host = job.elastic.rdzv_host if job.elastic is not None else None
    return [member.strip() for member in (host or "").split(",") if member.strip()]


def is_chosen_by_command(job: Job) -> bool:
    """Tell whether flags in the container's own command choose the rendezvous. They win over any environment."""
    return bool(rendezvous_flags(default_container(job.replicas[WORKER].template, job.kind)))


def obstacle_to_library(job: Job) -> str:
    """Say why our library cannot be in the workers; empty if it can."""
    assert job.elastic is not None
    if job.elastic.worker_library is WorkerLibrary.NONE:
        return "elasticPolicy.workerLibrary is None"
    return obstacle(job.replicas[WORKER].template, container=job.kind.container)


def obstacle(pod: Mapping[str, Any], *, container: str = "pytorch") -> str:
    """Say why the library cannot get into this pod from the start; empty if it can. Works on a pod or a pod template."""
    found = container_named(pod, container)
    if found is None:
        return f"the pod has no container named {container}"
    if not found.get("command"):
        return f"container {container} has no command, and the image's own is not known here"
    flags = rendezvous_flags(found)
    if flags:
        return f"container {container} chooses its rendezvous itself ({', '.join(flags)})"
    return ""


def rendezvous_flags(container: Mapping[str, Any]) -> list[str]:
    """Return the flags in a container's own command by which it chooses its rendezvous."""
    words = [str(word) for key in ("command", "args") for word in container.get(key) or ()]
    return [word.partition("=")[0] for text in words for word in text.split() if _RENDEZVOUS_FLAG.match(word)]


def container_named(pod: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    containers = (pod.get("spec") or {}).get("containers") or []
    return next((container for container in containers if container.get("name") == name), None)
