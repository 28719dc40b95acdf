"""Compare the job's other objects with those that it should have, and plan only the differences.

Only fields that we write are compared. A field that an API server fills in is no difference.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from elastic.api.job import Object
from elastic.kube.resources import Resource
from elastic_training.controller.deciding.actions import Action, Create, Delete, Update
from elastic_training.controller.facts.owned import OWNED_LABEL, RESOURCES, UNMARKED
from elastic_training.controller.facts.snapshot import Snapshot


def resource_of(item: Mapping[str, Any]) -> Resource:
    return RESOURCES[item["apiVersion"], item["kind"]]


def reconciled(snapshot: Snapshot, wanted: Sequence[Object], *, managed: Iterable[str]) -> Iterator[Action]:
    """Yield what creates the missing objects, changes those that differ, and deletes those of the `managed` kinds that are not wanted."""
    for item in wanted:
        metadata = item["metadata"]
        there = snapshot.find(item["kind"], metadata["name"])
        if there is None:
            yield Create(resource_of(item), item if resource_of(item) in UNMARKED else _marked(item))
        elif item["kind"] != "Pod" and differs(item, there.raw):
            # A pod cannot be changed.
            yield Update(resource_of(item), metadata["name"], _change(item))
    names = {(item["kind"], item["metadata"]["name"]) for item in wanted}
    kinds = frozenset(managed)
    for owned in snapshot.owned:
        if owned.kind in kinds and (owned.kind, owned.name) not in names and not owned.raw["metadata"].get("deletionTimestamp"):
            yield Delete(resource_of(owned.raw), owned.name, owned.uid)


def differs(wanted: Any, there: Any) -> bool:
    """Return whether a field that we write differs. Lists must be equally long; other fields belong to others."""
    if isinstance(wanted, Mapping):
        return not isinstance(there, Mapping) or any(key not in there or differs(value, there[key]) for key, value in wanted.items())
    if isinstance(wanted, list):
        return not isinstance(there, list) or len(wanted) != len(there) or any(map(differs, wanted, there))
    return bool(wanted != there)


def _marked(item: Object) -> Object:
    metadata = item["metadata"]
    owner = metadata["ownerReferences"][0]["name"]
    return {**item, "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), OWNED_LABEL: owner}}}


def _change(item: Object) -> Object:
    """Return the merge patch of everything but the object's identity."""
    change = {key: value for key, value in item.items() if key not in ("apiVersion", "kind", "metadata", "type", "roleRef")}
    described = {key: item["metadata"][key] for key in ("labels", "annotations") if item["metadata"].get(key)}
    return change | ({"metadata": described} if described else {})


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON merge patch that makes old into new."""
    change: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        if key not in old or not isinstance(value, Mapping) or not isinstance(old[key], Mapping):
            if key not in old or old[key] != value:
                change[key] = value
        elif value != old[key]:
            change[key] = merge_patch(old[key], value)
    return change
