"""Asks the API server which kinds it has, as garbage collection and the deletion of namespaces have to reach every one of them."""

from dataclasses import dataclass
from typing import Any

from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import Resource

NEVER_COLLECTED = {("", "events"), ("events.k8s.io", "events")}


@dataclass(frozen=True, slots=True)
class Kinds:
    """The collections whose objects can be listed, watched and deleted, in each group's preferred version."""

    resources: tuple[Resource, ...]
    by_kind: dict[tuple[str, str], Resource]
    """By group and kind: an owner reference names its owner so."""


async def discover(kube: Kube) -> Kinds:
    found: dict[tuple[str, str], Resource] = {}
    groups = (await kube.request("GET", "/apis")).get("groups") or ()
    versions = [("", "v1"), *((group["name"], group["preferredVersion"]["version"]) for group in groups)]
    for group, version in versions:
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        try:
            listing = await kube.request("GET", path)
        except KubeError as error:
            if error.code != 404:
                raise
            # Its last kind has gone since the groups were listed.
            continue
        for entry in listing.get("resources") or ():
            if _is_collected(group, entry):
                resource = Resource(group, version, entry["name"], namespaced=entry["namespaced"], kind=entry["kind"])
                found.setdefault((group, entry["kind"]), resource)
    return Kinds(tuple(found.values()), found)


def _is_collected(group: str, entry: dict[str, Any]) -> bool:
    return {"list", "watch", "delete"} <= set(entry.get("verbs") or ()) and (group, entry["name"]) not in NEVER_COLLECTED
