"""The API server of the simulation: objects with versions, uids and preconditions, a log for watches, garbage collection by owner.

It answers at once and never fails by itself; delays and faults are added by the client of each process.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import orjson
from sim_time import now, stamp

from elastic.api.kinds import KINDS, WORKER
from elastic.kube.client import Patch
from elastic.kube.errors import KubeError
from elastic.kube.resources import NODES, PODS, Object, Resource

Key = tuple[Resource, str]
DEFAULT_GRACE_S = 30


@dataclass(frozen=True, slots=True)
class Logged:
    """One change, as watches tell it."""

    version: int
    type: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class Write:
    """A change of an object: who made it, and what it was before and after; None where it was not there."""

    actor: str
    verb: str
    resource: Resource
    name: str
    before: Object | None
    after: Object | None


class Api:
    """All objects are in one namespace, or in none."""

    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        self._of_resource: dict[Resource, dict[str, Object]] = {}
        self.version = self._collected_at = 0
        self.compacted = 0
        self.logs: dict[Resource, list[Logged]] = {}
        self.watchers: list[Callable[[Resource], None]] = []
        self.observers: list[Callable[[Write], None]] = []
        self.uids = 0
        self.quota: int | None = None
        """How many pods there may be."""

    def get(self, resource: Resource, name: str) -> Object:
        return copied(self._find(resource, name))

    def find(self, resource: Resource, name: str) -> Object | None:
        """Return the object itself: to look at, not to change."""
        return self.objects.get((resource, name))

    def all(self, resource: Resource) -> list[Object]:
        """Return the objects themselves, by name: to look at, not to change."""
        return [item for _, item in sorted(self._of_resource.get(resource, {}).items())]

    def create(self, resource: Resource, body: Object, *, actor: str) -> Object:
        item = copied(body)
        metadata = item["metadata"]
        if (resource, metadata["name"]) in self.objects:
            raise KubeError(code=409, reason="AlreadyExists", message=f"{resource.plural} {metadata['name']} already exists")
        if resource == PODS and self.quota is not None and len(self.all(PODS)) >= self.quota:
            used = f"pods={self.quota}"
            message = f'pods "{metadata["name"]}" is forbidden: exceeded quota: q, requested: pods=1, used: {used}, limited: {used}'
            raise KubeError(code=403, reason="Forbidden", message=message)
        self.uids += 1
        metadata |= {"uid": f"{self.uids:08d}-uid", "creationTimestamp": stamp(now()), "generation": 1}
        item |= {"apiVersion": resource.api_version, "kind": resource.kind}
        if resource != NODES:
            item.pop("status", None)
        if resource == PODS:
            item["status"] = {"phase": "Pending"}
        self._store(resource, None, item, actor=actor, verb="create")
        return copied(item)

    def patch(
        self, resource: Resource, name: str, body: Object, *, kind: Patch = Patch.MERGE, subresource: str | None, actor: str
    ) -> Object:
        old = self._find(resource, name)
        if (uid := (body.get("metadata") or {}).get("uid")) is not None and uid != old["metadata"]["uid"]:
            raise KubeError(code=409, reason="Conflict", message="the precondition of the uid failed")
        if kind is Patch.STRATEGIC:
            body = with_conditions_of(old, body)
        wanted = (body.get("metadata") or {}).get("resourceVersion")
        if wanted is not None and wanted != old["metadata"]["resourceVersion"]:
            raise KubeError(code=409, reason="Conflict", message="the object has been modified")
        new = copied(old)
        if subresource == "status":
            # As a real API server does, the status of a pod takes annotations too.
            annotations = (body.get("metadata") or {}).get("annotations") if resource == PODS else None
            merge(new, {"status": body.get("status") or {}} | ({"metadata": {"annotations": annotations}} if annotations else {}))
        elif subresource == "scale":
            set_workers(new, body["spec"]["replicas"], manager=actor)
            new["metadata"]["generation"] += new["spec"] != old["spec"]
        else:
            merge(new, {key: value for key, value in body.items() if key != "status"})
            for fixed in ("uid", "name", "creationTimestamp", "resourceVersion", "generation"):
                new["metadata"][fixed] = old["metadata"][fixed]
            if new.get("spec") != old.get("spec"):
                new["metadata"]["generation"] += 1
        if new != old:
            self._store(resource, old, new, actor=actor, verb="patch")
        return copied(new)

    def replace(self, resource: Resource, name: str, body: Object, *, actor: str) -> Object:
        old = self._find(resource, name)
        wanted = body["metadata"].get("resourceVersion")
        if wanted is not None and wanted != old["metadata"]["resourceVersion"]:
            raise KubeError(code=409, reason="Conflict", message="the object has been modified")
        new = copied(body)
        new["metadata"] = {**old["metadata"], **{k: v for k, v in new["metadata"].items() if k in ("labels", "annotations")}}
        self._store(resource, old, new, actor=actor, verb="replace")
        return copied(new)

    def change(self, resource: Resource, name: str, change: Callable[[Object], object], *, actor: str = "cluster") -> None:
        """Write without conditions. Do nothing if the object does not exist."""
        old = self.find(resource, name)
        if old is not None:
            new = copied(old)
            change(new)
            if new.get("spec") != old.get("spec"):
                new["metadata"]["generation"] += 1
            if new != old:
                self._store(resource, old, new, actor=actor, verb="patch")

    def delete(self, resource: Resource, name: str, *, uid: str | None = None, grace_s: int | None = None, actor: str) -> Object:
        old = self._find(resource, name)
        if uid is not None and uid != old["metadata"]["uid"]:
            raise KubeError(code=409, reason="Conflict", message="the precondition of the uid failed")
        grace = old["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_S) if grace_s is None and resource == PODS else grace_s
        if resource != PODS or not grace or not old["spec"].get("nodeName") or old["status"]["phase"] in ("Succeeded", "Failed"):
            self._store(resource, old, None, actor=actor, verb="delete")
            return copied(old)
        if "deletionTimestamp" in old["metadata"]:
            return copied(old)
        new = copied(old)
        new["metadata"] |= {"deletionTimestamp": stamp(now() + timedelta(seconds=grace)), "deletionGracePeriodSeconds": grace}
        self._store(resource, old, new, actor=actor, verb="delete")
        return copied(new)

    def remove(self, resource: Resource, name: str, *, actor: str = "cluster") -> None:
        """Remove the object at once, as when its node's kubelet confirms or somebody forces it."""
        old = self.find(resource, name)
        if old is not None:
            self._store(resource, old, None, actor=actor, verb="delete")

    def collect(self) -> None:
        """Delete the objects of an owner that is gone."""
        if self._collected_at == self.version:
            return
        self._collected_at = self.version
        uids = {item["metadata"]["uid"] for item in self.objects.values()}
        for (resource, name), item in sorted(self.objects.items(), key=lambda pair: (pair[0][0].plural, pair[0][1])):
            owners = item["metadata"].get("ownerReferences") or ()
            if owners and all(owner["uid"] not in uids for owner in owners) and "deletionTimestamp" not in item["metadata"]:
                self.delete(resource, name, actor="garbage collector")

    def compact(self) -> None:
        """Forget old versions. A watch that starts from one of them must list again."""
        self.compacted = self.version
        self.logs.clear()

    def since(self, resource: Resource, version: int) -> Iterator[Logged]:
        if version < self.compacted:
            raise KubeError(code=410, reason="Expired", message="too old resource version")
        return (entry for entry in self.logs.get(resource, ()) if entry.version > version)

    def _find(self, resource: Resource, name: str) -> Object:
        item = self.objects.get((resource, name))
        if item is None:
            raise KubeError(code=404, reason="NotFound", message=f"{resource.plural} {name} not found")
        return item

    def _store(self, resource: Resource, old: Object | None, new: Object | None, *, actor: str, verb: str) -> None:
        self.version += 1
        item = new if new is not None else copied(old)
        name = item["metadata"]["name"]
        item["metadata"]["resourceVersion"] = str(self.version)
        if new is None:
            del self.objects[resource, name], self._of_resource[resource][name]
        else:
            self.objects[resource, name] = self._of_resource.setdefault(resource, {})[name] = new
        type = "DELETED" if new is None else "ADDED" if old is None else "MODIFIED"
        self.logs.setdefault(resource, []).append(Logged(self.version, type, orjson.dumps(item)))
        for observer in self.observers:
            observer(Write(actor, verb, resource, name, old, new))
        for watcher in list(self.watchers):
            watcher(resource)


def copied(item: Object | None) -> Object:
    """Return a copy by way of the wire: an object that cannot be sent fails here."""
    copy: Object = orjson.loads(orjson.dumps(item))
    return copy


def set_workers(job: Object, count: int, *, manager: str) -> None:
    """Set the number of workers as the subresource scale does. The API server keeps the manager."""
    key = KINDS[job["kind"]].replica_key
    job["spec"][key][WORKER]["replicas"] = count
    fields = {"f:spec": {f"f:{key}": {f"f:{WORKER}": {"f:replicas": {}}}}}
    entry = {"manager": manager, "operation": "Update", "subresource": "scale", "time": stamp(now()), "fieldsV1": fields}
    job["metadata"]["managedFields"] = [entry]


def with_conditions_of(old: Object, body: Object) -> Object:
    """Return the JSON merge patch that does the same as a strategic merge patch of conditions, which belong together by their type."""
    merged = {condition["type"]: condition for condition in (old.get("status") or {}).get("conditions") or ()}
    for condition in body["status"]["conditions"]:
        merged[condition["type"]] = {**merged.get(condition["type"], {}), **condition}
    return {**body, "status": {**body["status"], "conditions": list(merged.values())}}


def merge(target: Object, patch: Object) -> None:
    """Apply a JSON merge patch."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            if not isinstance(target.get(key), dict):
                target[key] = {}
            merge(target[key], value)
        else:
            target[key] = value


def matches(raw: Object, labels: str | None) -> bool:
    """Return whether a selector of the form `key` or `key=value` takes this object."""
    if not labels:
        return True
    there = raw["metadata"].get("labels") or {}
    key, has_value, value = labels.partition("=")
    return key in there and (not has_value or there[key] == value)


def is_namespaced(resource: Resource) -> bool:
    return resource != NODES
