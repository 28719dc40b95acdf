"""Ask the API server for its kinds, because garbage collection and the deletion of namespaces must reach all of them.

A group version with an invalid or missing answer does not affect the others.
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
    """Resources by group and kind, as owner references name them."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Group versions whose resources are not known, each with the reason."""
    every: Mapping[tuple[str, str], Resource] = field(default_factory=dict)
    """All resources by group and kind, including those whose objects are not collected."""
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Versions of each group, the preferred one first."""


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
    """Read discovery documents. Raise KubeError if a document has another form."""
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
        raise ValueError(f"resource {wrong[:100]!r} cannot be a part of a path")
    return version


def _written(group: str, version: str) -> str:
    return f"{group}/{version}" if group else version
