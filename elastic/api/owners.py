"""Read the owners of an object.

An owner is known by its apiVersion, kind, namespace and uid. Its name is not enough, because another object may have got the name since.
Its uid is not enough either, because the server of an API service may write any uid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Owner:
    """An owner reference, and the namespace of the object that has it."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    is_controller: bool = False
    blocks: bool = False
    """If the owner is deleted in the foreground, it waits until this object is gone."""

    @property
    def group(self) -> str:
        """Return the API group without the version."""
        return self.api_version.rpartition("/")[0]


def owners_of(metadata: object) -> tuple[Owner, ...]:
    """Return all owners that this metadata names. Malformed references count as none, because a user may write anything there."""
    if not isinstance(metadata, Mapping) or not isinstance(references := metadata.get("ownerReferences"), list):
        return ()
    namespace = str(metadata.get("namespace") or "")
    return tuple(_owner(reference, namespace) for reference in references if isinstance(reference, Mapping))


def _owner(reference: Mapping[Any, Any], namespace: str) -> Owner:
    api_version, kind, name, uid = (str(reference.get(key) or "") for key in ("apiVersion", "kind", "name", "uid"))
    return Owner(
        api_version,
        kind,
        namespace,
        name,
        uid,
        is_controller=reference.get("controller") is True,
        blocks=bool(reference.get("blockOwnerDeletion")),
    )


def controller_of(metadata: object) -> Owner | None:
    """Return the one owner that manages the object, or None."""
    return next((owner for owner in owners_of(metadata) if owner.is_controller), None)


def controller_uid(metadata: object) -> str:
    """Return the uid of the owner that manages the object, or an empty string."""
    owner = controller_of(metadata)
    return owner.uid if owner is not None else ""


def is_owned_by(metadata: object, uid: str) -> bool:
    """Return whether an owner of the object has this uid."""
    return any(owner.uid == uid for owner in owners_of(metadata))
