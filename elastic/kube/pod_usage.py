"""Read the CPU and memory that pods of jobs use, from the metrics API that `kubectl top` reads too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastic.api.names import JOB_NAME
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.quantity import parse
from elastic.kube.resources import Object, Resource

POD_METRICS = Resource("metrics.k8s.io", "v1beta1", "pods", kind="PodMetrics")
NOT_SERVED = (403, 404, 503)


@dataclass(frozen=True, slots=True)
class PodUsage:
    """The usage of one pod: CPU in cores, and memory in bytes."""

    cpu: float
    memory: float


async def pod_usage(kube: Kube, namespace: str | None, *, labels: str = JOB_NAME) -> Mapping[str, PodUsage] | None:
    """Return the usage of each measured pod by `namespace/name`; None if nobody measures it, or the caller may not read it."""
    try:
        listed = (await kube.list(POD_METRICS, namespace=namespace, labels=labels)).items
    except KubeError as error:
        if error.code in NOT_SERVED:
            return None
        raise
    measured = [(item, item["containers"]) for item in listed if item.get("containers")]
    return {place(item): PodUsage(_sum(containers, "cpu"), _sum(containers, "memory")) for item, containers in measured}


def place(item: Object) -> str:
    """Return the namespace and name of an object."""
    return f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"


def _sum(containers: Sequence[Object], resource: str) -> float:
    return float(sum(parse(str((container.get("usage") or {}).get(resource, "0"))) for container in containers))
