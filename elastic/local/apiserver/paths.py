"""Find the resource, object and subresource that a path names. Pure; other modules know whether the resource is served."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    group: str
    version: str
    namespace: str
    plural: str
    name: str
    subresource: str
    watching: bool = False
    """Whether the path has the old form with /watch/ in it."""


_PROXIED = re.compile(r"(/api/v1/namespaces/[^/]+/(?:pods|services)/[^/]+/proxy)(/.*)?")


def parse(path: str) -> Target | None:
    """Parse a path. Return None if it names no object and no collection."""
    proxied = _PROXIED.fullmatch(path)
    path = proxied[1] if proxied else path
    parts = path.strip("/").split("/")
    if not all(parts):
        return None
    if len(parts) >= 3 and parts[0] == "api":
        group, version, parts = "", parts[1], parts[2:]
    elif len(parts) >= 4 and parts[0] == "apis":
        group, version, parts = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace, watching = "", parts[0] == "watch" and len(parts) > 1
    parts = parts[1:] if watching else parts
    if parts[0] == "namespaces" and len(parts) >= 3 and not (not group and len(parts) == 3 and parts[2] in ("status", "finalize")):
        namespace, parts = parts[1], parts[2:]
    name = parts[1] if len(parts) > 1 else ""
    sub = "/".join(parts[2:])
    return Target(group, version, namespace, parts[0], name, sub, watching)


def beyond_proxy(path: str) -> str:
    """Return the path after /proxy, to which the request is passed on."""
    proxied = _PROXIED.fullmatch(path)
    return (proxied[2] if proxied else "") or "/"


def verb_of(method: str, *, named: bool, watching: bool) -> str:
    if method == "GET":
        return "watch" if watching else "get" if named else "list"
    if method == "DELETE":
        return "delete" if named else "deletecollection"
    return {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(method, "")
