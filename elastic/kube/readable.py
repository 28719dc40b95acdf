"""List objects that the caller may not be allowed to see, or whose kind the cluster may not know."""

from __future__ import annotations

from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import Object, Resource


async def listed(kube: Kube, resource: Resource, *, namespace: str | None = None, labels: str | None = None) -> list[Object]:
    """Return the objects; none if the caller may not list them, or the cluster does not know their kind."""
    try:
        return (await kube.list(resource, namespace=namespace, labels=labels)).items
    except KubeError as error:
        if error.code in (403, 404):
            return []
        raise
