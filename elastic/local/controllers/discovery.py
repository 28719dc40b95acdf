"""Asks the API server which kinds it has, as garbage collection and the deletion of namespaces have to reach every one of them.

A group version that says nothing, or what makes no sense, costs no other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from elastic.kube.client import Kube
from elastic.kube.errors import MALFORMED, KubeError
from elastic.kube.resources import Object, Resource, is_segment

NEVER_COLLECTED = {("", "events"), ("events.k8s.io", "events")}
COLLECTED = {"list", "watch", "delete"}
DOCUMENT = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


@dataclass(frozen=True, slots=True)
class Kinds:
    """The collections whose objects can be listed, watched and deleted, in each group's preferred version."""

    resources: tuple[Resource, ...]
    by_kind: dict[tuple[str, str], Resource]
    """By group and kind: an owner reference names its owner so."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Group versions of which it is not known what they serve, and why."""
    every: Mapping[tuple[str, str], Resource] = field(default_factory=dict)
    """All resources by group and kind, those of which nothing is collected too."""
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of each group, the preferred one first."""


class _Named(msgspec.Struct):
    name: str = ""


class _Group(msgspec.Struct):
    metadata: _Named
    versions: list[dict[str, Any]]


class _Answer(msgspec.Struct):
    kind: str


class _Entry(msgspec.Struct, rename="camel"):
    resource: str
    scope: str
    response_kind: _Answer
    verbs: list[str] | None = None

    def is_collected_in(self, group: str) -> bool:
        return set(self.verbs or ()) >= COLLECTED and (group, self.resource) not in NEVER_COLLECTED


class _Version(msgspec.Struct):
    version: str
    freshness: str = "Current"
    resources: list[_Entry] | None = None


async def discover(kube: Kube) -> Kinds:
    return read([await kube.request("GET", path, accept=DOCUMENT) for path in ("/api", "/apis")])


def read(documents: list[Object]) -> Kinds:
    """Raises KubeError for what is no such document at all."""
    found: dict[tuple[str, str], Resource] = {}
    every: dict[tuple[str, str], Resource] = {}
    versions: dict[str, tuple[str, ...]] = {}
    failed: dict[str, str] = {}
    for document in documents:
        for number, item in enumerate(_items(document)):
            try:
                group = msgspec.convert(item, _Group)
            except msgspec.ValidationError as error:
                failed[f"the API's group {number}"] = str(error)
                continue
            name = group.metadata.name
            versions[name] = tuple(version for each in group.versions if isinstance(version := each.get("version"), str))
            for each in group.versions:
                try:
                    version = _version(each)
                except ValueError as error:
                    failed[_written(name, str(each.get("version", "")))] = str(error)
                    continue
                if version.freshness == "Stale":
                    where = _written(name, version.version)
                    failed[where] = f"stale GroupVersion discovery: {where}"
                for entry in version.resources or ():
                    namespaced, kind = entry.scope == "Namespaced", entry.response_kind.kind
                    resource = Resource(name, version.version, entry.resource, namespaced=namespaced, kind=kind)
                    every.setdefault((name, kind), resource)
                    if entry.is_collected_in(name):
                        found.setdefault((name, kind), resource)
    return Kinds(tuple(found.values()), found, failed, every, versions)


def _items(document: Object) -> list[Any]:
    items = document.get("items")
    if not isinstance(items, list):
        raise KubeError(code=0, reason=MALFORMED, message=f"expected an APIGroupDiscoveryList, found {str(document)[:200]}")
    return items


def _version(each: Object) -> _Version:
    version = msgspec.convert(each, _Version)
    wrong = next((entry.resource for entry in version.resources or () if not is_segment(entry.resource)), None)
    if wrong is not None:
        raise ValueError(f"resource {wrong[:100]!r} is no part of a path")
    return version


def _written(group: str, version: str) -> str:
    return f"{group}/{version}" if group else version
