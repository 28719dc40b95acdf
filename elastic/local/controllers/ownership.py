"""Decide what the garbage collector does with one object, from its owners and its dependents.

This is pure: the caller says which owners exist.
"""

import enum
from dataclasses import dataclass
from typing import Any

import msgspec

from elastic.api.owners import Owner
from elastic.kube.resources import Resource

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


Key = tuple[Resource, str, str]
"""The resource, namespace and name of an object. A uid is no key, because a server may write the uid of another server's object."""


@dataclass(frozen=True, slots=True)
class Item:
    """The part of an object that ownership needs."""

    resource: Resource
    namespace: str
    name: str
    uid: str
    owners: tuple[Owner, ...]
    deleting: bool
    finalizers: tuple[str, ...]

    @property
    def key(self) -> Key:
        return self.resource, self.namespace, self.name

    def owns(self, other: "Item") -> bool:
        return any(self._is(owner, other.namespace) for owner in other.owners)

    def waits_for(self, other: "Item") -> bool:
        return any(owner.blocks and self._is(owner, other.namespace) for owner in other.owners)

    def _is(self, owner: Owner, namespace: str) -> bool:
        """Return whether the reference of an object in that namespace means this object."""
        named = (owner.uid, owner.group, owner.kind, owner.name)
        is_in_reach = self.namespace == namespace or not self.resource.namespaced
        return is_in_reach and named == (self.uid, self.resource.group, self.resource.kind, self.name)


class State(enum.Enum):
    PRESENT = "present"
    WAITING = "waiting for its dependents"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the object, because it has no owner any more."""

    propagation: str


@dataclass(frozen=True, slots=True)
class Disown:
    """Some owners have gone and others have not. Remove only the references to the owners that have gone."""

    uids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """The finalizer kept the object until its dependents were dealt with, and can now go."""

    finalizer: str


@dataclass(frozen=True, slots=True)
class DeleteDependents:
    """Delete the dependents, for which the object waits."""


@dataclass(frozen=True, slots=True)
class OrphanDependents:
    """Remove the dependents' references, because the object goes and they stay."""


Action = Delete | Disown | Release | DeleteDependents | OrphanDependents


def item(resource: Resource, found: dict[str, Any]) -> Item:
    """Return the part of an object that ownership needs. Raise ValidationError if its metadata does not fit the resource.

    Servers of API services may send anything.
    """
    metadata = msgspec.convert(found.get("metadata"), _Metadata)
    if bool(metadata.namespace) != resource.namespaced:
        raise msgspec.ValidationError(f"an object {'without' if resource.namespaced else 'with'} a namespace")
    return Item(
        resource=resource,
        namespace=metadata.namespace or "",
        name=metadata.name,
        uid=metadata.uid,
        owners=tuple(_owner(reference, metadata.namespace or "") for reference in metadata.owner_references or ()),
        deleting="deletionTimestamp" in found["metadata"],
        finalizers=tuple(metadata.finalizers or ()),
    )


class _Reference(msgspec.Struct, rename="camel"):
    uid: str
    api_version: str
    kind: str
    name: str
    block_owner_deletion: bool | None = None


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    uid: str
    namespace: str | None = None
    owner_references: list[_Reference] | None = None
    finalizers: list[str] | None = None


def _owner(reference: _Reference, namespace: str) -> Owner:
    blocks = bool(reference.block_owner_deletion)
    return Owner(reference.api_version, reference.kind, namespace, reference.name, reference.uid, blocks=blocks)


def judge(subject: Item, states: dict[Owner, State], dependents: tuple[Item, ...]) -> Action | None:
    """Decide what to do with the subject. `states` has all its owners, and `dependents` all objects that it owns."""
    if subject.deleting:
        return _finish(subject, dependents)
    if not subject.owners:
        return None
    absent = [owner.uid for owner in subject.owners if states[owner] is State.ABSENT]
    waiting = [owner.uid for owner in subject.owners if states[owner] is State.WAITING]
    present = [owner.uid for owner in subject.owners if states[owner] is State.PRESENT]
    if present:
        gone = (*absent, *waiting)
        return Disown(gone) if gone else None
    if waiting and dependents:
        return Delete("Foreground")
    return Delete("Background")


def _finish(subject: Item, dependents: tuple[Item, ...]) -> Action | None:
    if ORPHAN in subject.finalizers:
        return OrphanDependents() if dependents else Release(ORPHAN)
    if FOREGROUND in subject.finalizers:
        return DeleteDependents() if any(subject.waits_for(other) for other in dependents) else Release(FOREGROUND)
    return None
