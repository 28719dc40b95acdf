"""Write the discovery documents: the classic ones per group and version, and the aggregated one that kubectl asks for first."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from typing import Any

from elastic.local.apiserver.aggregation.apiservices import CRD_GROUP_PRIORITY, CRD_VERSION_PRIORITY
from elastic.local.apiserver.aggregation.remotes import Remote
from elastic.local.apiserver.errors import Json
from elastic.local.apiserver.resources import Registry, ResourceType, Subresource
from elastic.local.apiserver.usage import GROUP as USAGE_GROUP

LAST = 100
"""The priority that a metrics server's API service asks for."""

GROUP_ORDER = (
    "apiregistration.k8s.io",
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
)


def _group_versions(group: str, versions: Iterable[str]) -> Json:
    listed = [{"groupVersion": f"{group}/{v}", "version": v} for v in versions]
    return {"name": group, "versions": listed, "preferredVersion": listed[0]}


def ordered_groups(registry: Registry, remotes: Iterable[Remote]) -> list[tuple[str, list[str]]]:
    """Return our own groups in their order, then all others by the priority of their API services."""
    own = {g: v for g, v in registry.groups().items() if g}
    priorities: dict[str, dict[str, tuple[int, int]]] = {}
    for group, versions in own.items():
        if group not in GROUP_ORDER:
            at_least = LAST if group == USAGE_GROUP else CRD_GROUP_PRIORITY
            priorities[group] = dict.fromkeys(versions, (at_least, CRD_VERSION_PRIORITY))
    for r in remotes:
        priorities.setdefault(r.group, {})[r.version] = (r.group_priority, r.version_priority)
    others = sorted(priorities, key=lambda g: (-max(at_least for at_least, _ in priorities[g].values()), g))
    found = [(g, own[g]) for g in GROUP_ORDER if g in own]
    return found + [(g, sorted(priorities[g], key=lambda v: (-priorities[g][v][1], version_rank(v)))) for g in others]


def version_rank(version: str) -> tuple[int, int, int, str]:
    """Return a key that sorts v2 before v1 before v1beta1 before v1alpha1 before all other names."""
    import re

    m = re.fullmatch(r"v(\d+)(?:(alpha|beta)(\d+))?", version)
    if not m:
        return (3, 0, 0, version)
    return ({None: 0, "beta": 1, "alpha": 2}[m[2]], -int(m[1]), -int(m[3] or 0), "")


def groups(registry: Registry, remotes: Iterable[Remote]) -> Json:
    listed = [_group_versions(g, v) for g, v in ordered_groups(registry, remotes)]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}


def group(registry: Registry, remotes: Iterable[Remote], name: str) -> Json | None:
    versions = dict(ordered_groups(registry, remotes)).get(name)
    return {"kind": "APIGroup", "apiVersion": "v1", **_group_versions(name, versions)} if versions else None


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()[:8]).decode()


def resources(registry: Registry, group: str, version: str) -> Json | None:
    """Return the APIResourceList of a group version, or None if it is not served."""
    types = registry.of_version(group, version)
    if not types:
        return None
    listed: list[Json] = []
    for t in types:
        entry: Json = {"name": t.plural, "singularName": t.singular, "namespaced": t.namespaced, "kind": t.kind, "verbs": list(t.verbs)}
        if t.short_names:
            entry["shortNames"] = list(t.short_names)
        if t.categories:
            entry["categories"] = list(t.categories)
        if "list" in t.verbs:
            entry["storageVersionHash"] = _hash(f"{t.group}/{t.version}/{t.kind}")
        listed.append(entry)
        listed += [_sub(t, s) for s in t.subresources]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{group}/{version}" if group else version, "resources": listed}


def _sub(t: ResourceType, s: Subresource) -> Json:
    entry: Json = {"name": f"{t.plural}/{s.name}", "singularName": "", "namespaced": t.namespaced, "kind": s.kind, "verbs": list(s.verbs)}
    if s.group:
        entry |= {"group": s.group, "version": s.version}
    return entry


def aggregated(registry: Registry, remotes: Iterable[Remote], *, core: bool) -> Json:
    items = [("", ["v1"])] if core else ordered_groups(registry, remotes)
    elsewhere = {(r.group, r.version): r for r in remotes}
    out = []
    for name, versions in items:
        listed = [
            _served_elsewhere(elsewhere[name, v])
            if (name, v) in elsewhere
            else {"version": v, "resources": [_aggregate(t) for t in registry.of_version(name, v)], "freshness": "Current"}
            for v in versions
        ]
        out.append({"metadata": {"name": name} if name else {}, "versions": listed})
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": out}


def _served_elsewhere(remote: Remote) -> Json:
    """Return the resources that the server lists. While it gives no list, the result is empty and stale."""
    entries: dict[str, Json] = {}
    for r in remote.resources or ():
        kind = {"group": r.group or "", "version": r.version or "", "kind": r.kind or ""}
        scope = "Namespaced" if r.namespaced else "Cluster"
        none = {"group": "", "version": "", "kind": ""}
        entry = entries.setdefault(r.parent, {"resource": r.parent, "responseKind": none, "scope": scope, "singularResource": ""})
        if r.subresource:
            part = {"subresource": r.subresource, "responseKind": kind, "verbs": r.verbs}
            entry.setdefault("subresources", []).append(part)
        else:
            entry |= {"responseKind": kind, "singularResource": r.singular_name or "", "verbs": r.verbs}
            entry |= {key: given for key, given in (("shortNames", r.short_names), ("categories", r.categories)) if given}
    stale = remote.resources is None
    return {"version": remote.version, "resources": list(entries.values()), "freshness": "Stale" if stale else "Current"}


def _aggregate(t: ResourceType) -> Json:
    scope = "Namespaced" if t.namespaced else "Cluster"
    # A built-in kind is shown with an empty group and version; a custom resource has both.
    here = {"group": t.group, "version": t.version} if t.custom else {"group": "", "version": ""}
    entry: dict[str, Any] = {
        "resource": t.plural,
        "responseKind": {**here, "kind": t.kind},
        "scope": scope,
        "singularResource": t.singular,
        "verbs": list(t.verbs),
    }
    if t.short_names:
        entry["shortNames"] = list(t.short_names)
    if t.categories:
        entry["categories"] = list(t.categories)
    if t.subresources:
        entry["subresources"] = [
            {
                "subresource": s.name,
                "responseKind": {**(here if s.group is None else {"group": s.group, "version": s.version}), "kind": s.kind},
                "verbs": list(s.verbs),
            }
            for s in t.subresources
        ]
    return entry
