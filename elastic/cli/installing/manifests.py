"""List the objects of the control plane in a cluster.

They come from deploy/: scripts/manifests.py makes manifests.json from it. Pure, except that it reads that file.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from elastic.api.rights import SYSTEM
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
WITH, WITHOUT, VALUE = "$with", "$without", "$value"
"""Keys of a value that belongs to the manifest only with, or only without a component."""
IMAGE = "elastic-training:latest"
_MONITORING = [("ServiceMonitor", "servicemonitors"), ("PodMonitor", "podmonitors"), ("PrometheusRule", "prometheusrules")]
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
        *(Resource("monitoring.coreos.com", "v1", plural, kind=kind) for kind, plural in _MONITORING),
    )
}
"""Kinds in the order in which objects are made: others refer to the first ones."""
WORKLOADS = (DEPLOYMENTS.kind, STATEFUL_SETS.kind)


def objects(overlay: str, components: Sequence[str], *, namespace: str, image: str) -> list[Object]:
    """Return the objects apart from the kinds, in the order in which they are made."""

    def text(value: str) -> str:
        return image if value == IMAGE else value.replace(SYSTEM, namespace)

    chosen = set(components)
    return _ordered([_resolved(item, chosen.__contains__, text) for item in tree()[overlay] if _holds(item, chosen.__contains__)])


def every_object(overlay: str, *, namespace: str) -> list[Object]:
    """Return all objects of any choice of components, with only the fields that identify them."""
    found = [item.get(VALUE, item) for item in tree()[overlay]]
    named = [{key: item[key] for key in ("apiVersion", "kind")} | {"metadata": _identity(item)} for item in found]
    return _ordered([_resolved(item, lambda _: True, lambda value: value.replace(SYSTEM, namespace)) for item in named])


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


def _holds(node: Any, has: Callable[[str], bool]) -> bool:
    if not isinstance(node, dict) or VALUE not in node:
        return True
    return has(node[WITH]) if WITH in node else not has(node[WITHOUT])


def _resolved(node: Any, has: Callable[[str], bool], text: Callable[[str], str]) -> Any:
    if isinstance(node, str):
        return text(node)
    if isinstance(node, list):
        return [_resolved(item, has, text) for item in node if _holds(item, has)]
    if not isinstance(node, dict):
        return node
    if VALUE in node:
        return _resolved(node[VALUE], has, text)
    return {key: _resolved(value, has, text) for key, value in node.items() if _holds(value, has)}
