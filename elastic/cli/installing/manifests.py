"""List the objects of the control plane in a cluster.

They come from deploy/: scripts/manifests.py makes manifests.json from it. Pure, except that it reads that file.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from elastic.api.rights import SYSTEM
from elastic.cli.installing.components import STANDALONE
from elastic.cli.installing.values.nodes import ABSENT, resolved
from elastic.cli.installing.values.places import certificate_objects, condition_of, with_places
from elastic.kube.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CLUSTER_TRAINING_RUNTIMES,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    NAMESPACES,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    PRIORITY_CLASSES,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFUL_SETS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Object,
    Resource,
)

FILE = Path(__file__).with_name("manifests.json")
_MONITORING = [("ServiceMonitor", "servicemonitors"), ("PodMonitor", "podmonitors"), ("PrometheusRule", "prometheusrules")]
_CERT_MANAGER = [("Issuer", "issuers"), ("Certificate", "certificates")]
RESOURCES = {
    one.kind: one
    for one in (
        CUSTOM_RESOURCE_DEFINITIONS,
        NAMESPACES,
        PRIORITY_CLASSES,
        SERVICE_ACCOUNTS,
        CLUSTER_ROLES,
        CLUSTER_ROLE_BINDINGS,
        ROLES,
        ROLE_BINDINGS,
        SECRETS,
        CONFIG_MAPS,
        SERVICES,
        NETWORK_POLICIES,
        POD_DISRUPTION_BUDGETS,
        DEPLOYMENTS,
        STATEFUL_SETS,
        VALIDATING_WEBHOOK_CONFIGURATIONS,
        CLUSTER_TRAINING_RUNTIMES,
        *(Resource("cert-manager.io", "v1", plural, kind=kind) for kind, plural in _CERT_MANAGER),
        *(Resource("monitoring.coreos.com", "v1", plural, kind=kind) for kind, plural in _MONITORING),
    )
}
"""Kinds in the order in which objects are made: others refer to the first ones."""
WORKLOADS = (DEPLOYMENTS.kind, STATEFUL_SETS.kind)


def objects(overlay: str, values: Mapping[str, Any], *, namespace: str) -> list[Object]:
    """Return the objects apart from the kinds, in the order in which they are made. `values` has every value."""

    def text(value: str) -> str:
        return value.replace(SYSTEM, namespace)

    found = (resolved(item, values, text) for item in placed(overlay))
    return _ordered([item for item in found if item is not ABSENT])


def every_object(overlay: str, *, namespace: str) -> list[Object]:
    """Return all objects of any choice of values, with only the fields that identify them."""
    found = [condition_of(item)[1] for item in placed(overlay)]
    named = [{key: item[key] for key in ("apiVersion", "kind")} | {"metadata": _identity(item)} for item in found]
    return _ordered([resolved(item, {}, lambda value: value.replace(SYSTEM, namespace)) for item in named])


@functools.cache
def placed(overlay: str) -> list[Any]:
    """Return the objects of an overlay with places for the values."""
    return with_places(tree()[overlay]) + (certificate_objects(SYSTEM) if overlay == STANDALONE else [])


@functools.cache
def tree() -> dict[str, list[Any]]:
    """Return the objects by overlay."""
    made: dict[str, list[Any]] = json.loads(FILE.read_bytes())
    return made


def resource(item: Object) -> Resource:
    return RESOURCES[item["kind"]]


def name(item: Object) -> str:
    """Return the name by which people call an object."""
    metadata = item["metadata"]
    where = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{item['kind']} {where}{metadata['name']}"


def _identity(item: Object) -> Object:
    return {key: item["metadata"][key] for key in ("name", "namespace") if key in item["metadata"]}


def _ordered(found: Iterable[Object]) -> list[Object]:
    places = {kind: at for at, kind in enumerate(RESOURCES)}
    return sorted(found, key=lambda item: places[item["kind"]])
