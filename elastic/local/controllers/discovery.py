"""Asks the API server which kinds it has, as garbage collection and the deletion of namespaces have to reach every one of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elastic.kube.client import Kube
from elastic.kube.resources import Resource

NEVER_COLLECTED = {("", "events"), ("events.k8s.io", "events")}


DOCUMENT = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


@dataclass(frozen=True, slots=True)
class Kinds:
    """The collections whose objects can be listed, watched and deleted, in each group's preferred version."""

    resources: tuple[Resource, ...]
    by_kind: dict[tuple[str, str], Resource]
    """By group and kind: an owner reference names its owner so."""
    failed: tuple[str, ...] = ()
    """Group versions whose server does not say what it serves."""
    every: Mapping[tuple[str, str], Resource] = field(default_factory=dict)
    """All resources by group and kind, those of which nothing is collected too."""
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of each group, the preferred one first."""


async def discover(kube: Kube) -> Kinds:
    found: dict[tuple[str, str], Resource] = {}
    every: dict[tuple[str, str], Resource] = {}
    versions: dict[str, tuple[str, ...]] = {}
    failed = []
    for path in ("/api", "/apis"):
        for group in (await kube.request("GET", path, accept=DOCUMENT)).get("items") or ():
            name = group["metadata"].get("name", "")
            versions[name] = tuple(version["version"] for version in group["versions"])
            for version in group["versions"]:
                if version.get("freshness") == "Stale":
                    failed.append(f"{name}/{version['version']}")
                for entry in version.get("resources") or ():
                    resource = _resource(name, version["version"], entry)
                    every.setdefault((name, resource.kind), resource)
                    if _is_collected(name, entry):
                        found.setdefault((name, resource.kind), resource)
    return Kinds(tuple(found.values()), found, tuple(failed), every, versions)


def _resource(group: str, version: str, entry: dict[str, Any]) -> Resource:
    return Resource(group, version, entry["resource"], namespaced=entry["scope"] == "Namespaced", kind=entry["responseKind"]["kind"])


def _is_collected(group: str, entry: dict[str, Any]) -> bool:
    return {"list", "watch", "delete"} <= set(entry.get("verbs") or ()) and (group, entry["resource"]) not in NEVER_COLLECTED
