"""What a cluster gets through its API before jobs can come: their kinds' definitions and the controller's door."""

from __future__ import annotations

import asyncio

from elastic.api import webhook
from elastic.api.crd import crd
from elastic.api.kinds import KINDS
from elastic.api.rights import AUTOSCALER, MANAGED_BY, METRICS_API, SYSTEM
from elastic.kube.client import Kube, Patch
from elastic.kube.resources import (
    API_SERVICES,
    CUSTOM_RESOURCE_DEFINITIONS,
    ENDPOINT_SLICES,
    SERVICES,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Object,
)

MANAGER = "elastic-up"
DOOR_S = 10
"""For the controller's answer about a job, before the API server goes on without."""


async def apply_definitions(kube: Kube) -> None:
    bodies = {kind.crd_name: crd(kind) for kind in KINDS.values()}
    applied = (_apply(kube, name, body) for name, body in bodies.items())
    await asyncio.gather(*applied)


async def _apply(kube: Kube, name: str, body: Object) -> None:
    await kube.patch(CUSTOM_RESOURCE_DEFINITIONS, name, body, kind=Patch.APPLY, field_manager=MANAGER, force=True)


async def open_door(kube: Kube, server: str) -> None:
    """Lets the API server ask a controller about jobs."""
    body = webhook.configuration({"url": f"{server}{webhook.PATH}"}, timeout_s=DOOR_S)
    await kube.patch(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook.NAME, body, kind=Patch.APPLY, field_manager=MANAGER, force=True)


async def offer_metrics(kube: Kube, host: str, port: int) -> None:
    """A service that leads to the autoscaler, which runs beside the cluster."""
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
    """Without an autoscaler behind them, these groups would hold up the deletion of every namespace."""
    for found in (await kube.list(API_SERVICES, labels=f"{MANAGED_BY}={AUTOSCALER}")).items:
        await kube.delete(API_SERVICES, found["metadata"]["name"])
