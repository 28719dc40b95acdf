"""Give a cluster through its API what jobs need: the definitions of their kinds, runtimes of TrainJobs, and the controller's door."""

from __future__ import annotations

import asyncio

from elastic.api import webhook
from elastic.api.crd import crd
from elastic.api.kinds import KINDS
from elastic.api.rights import AUTOSCALER, MANAGED_BY, METRICS_API, SYSTEM
from elastic.api.trainer import shipped
from elastic.api.trainer.crd import definitions
from elastic.kube.client import Kube, Patch
from elastic.kube.resources import (
    API_SERVICES,
    CLUSTER_TRAINING_RUNTIMES,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    ENDPOINT_SLICES,
    NAMESPACES,
    ROLE_BINDINGS,
    ROLES,
    SERVICES,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Object,
    Resource,
)

MANAGER = "elastic-up"
SHIPPED = {each.kind: each for each in (CONFIG_MAPS, ROLES, ROLE_BINDINGS, CLUSTER_TRAINING_RUNTIMES)}
"""Kinds of the objects that serve TrainJobs."""
DOOR_S = 10
"""Seconds that the API server waits for the controller's answer about a job."""


async def apply_definitions(kube: Kube, *, train_jobs: bool) -> None:
    """Create or update the definitions of all kinds, and if wanted the runtimes of TrainJobs."""
    bodies = [*map(crd, KINDS.values()), *(definitions() if train_jobs else ())]
    await asyncio.gather(*(_apply(kube, CUSTOM_RESOURCE_DEFINITIONS, body) for body in bodies))
    if train_jobs:
        namespace, *others = shipped.objects()
        await _apply(kube, NAMESPACES, namespace)
        await asyncio.gather(*(_apply(kube, SHIPPED[item["kind"]], item) for item in others))


async def _apply(kube: Kube, resource: Resource, body: Object) -> None:
    metadata = body["metadata"]
    await kube.patch(
        resource, metadata["name"], body, namespace=metadata.get("namespace"), kind=Patch.APPLY, field_manager=MANAGER, force=True
    )


async def open_door(kube: Kube, server: str) -> None:
    """Let the API server ask a controller about jobs, TrainJobs and runtimes."""
    client = {"url": f"{server}{webhook.PATH}"}
    for made in (webhook.configuration, webhook.train_job_configuration):
        await _apply(kube, VALIDATING_WEBHOOK_CONFIGURATIONS, made(client, timeout_s=DOOR_S))


async def offer_metrics(kube: Kube, host: str, port: int) -> None:
    """Create a service that leads to the autoscaler, which runs next to the cluster."""
    metadata = {"name": METRICS_API, "namespace": SYSTEM}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"name": "https", "port": 443}]}}
    await kube.patch(SERVICES, METRICS_API, service, namespace=SYSTEM, kind=Patch.APPLY, field_manager=MANAGER, force=True)
    piece = {
        "apiVersion": ENDPOINT_SLICES.api_version,
        "kind": "EndpointSlice",
        "metadata": {**metadata, "labels": {"kubernetes.io/service-name": METRICS_API}},
        "addressType": "IPv4",
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [host]}],
    }
    await kube.patch(ENDPOINT_SLICES, METRICS_API, piece, namespace=SYSTEM, kind=Patch.APPLY, field_manager=MANAGER, force=True)


async def withdraw_metrics(kube: Kube) -> None:
    """Remove the metrics groups. Without an autoscaler behind them, they would hold up the deletion of every namespace."""
    for found in (await kube.list(API_SERVICES, labels=f"{MANAGED_BY}={AUTOSCALER}")).items:
        await kube.delete(API_SERVICES, found["metadata"]["name"])
