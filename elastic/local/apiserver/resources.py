"""Keep the table of resource types: what is served under which path, and the strategy with the behaviour of each kind.

This module and kinds.py make the entries of built-in kinds. A custom resource definition adds entries of the same form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from elastic.local.apiserver import names, schemas, tables
from elastic.local.apiserver.errors import Cause, Json

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


class Strategy:
    """The special rules of a kind. This class is for kinds without any."""

    generation = False
    """metadata.generation is kept, and grows with the spec"""
    has_status = False
    needs_version = False
    """a replacement must name the resourceVersion it replaces"""
    creates_on_update = False
    graceful = False
    """deletion takes time, so that even what goes at once was marked first"""
    answers_deleted = False
    """a delete is answered with the object instead of a Status"""
    typed = True
    """decoded by a built-in schema"""

    def default(self, obj: Json, /) -> None:
        """Set defaults, for built-in kinds on every write."""

    def prepare_create(self, obj: Json, /) -> None:
        if self.has_status:
            obj.pop("status", None)

    def prepare_update(self, new: Json, old: Json, /) -> None:
        if self.has_status:
            _keep(new, old, "status")

    def prepare_status(self, new: Json, old: Json, /) -> Json:
        """Return the object that a write to the status subresource makes: the old object with the new status."""
        out = {k: v for k, v in old.items() if k != "status"}
        out["metadata"] = {
            **old["metadata"],
            **{k: v for k, v in new["metadata"].items() if k in ("managedFields", "labels", "annotations")},
        }
        for key in ("labels", "annotations"):
            if key not in new["metadata"]:
                out["metadata"].pop(key, None)
        if "status" in new:
            out["status"] = new["status"]
        return out

    def prepare_delete(self, obj: Json, /) -> None:
        """Add to the object at the first request to delete it."""

    def validate(self, obj: Json, /) -> list[Cause]:
        return []

    def validate_update(self, new: Json, old: Json, /) -> list[Cause]:
        """Everything wrong with a replacement, be it in itself or as a change."""
        return self.validate(new) + self.change_causes(new, old)

    def change_causes(self, new: Json, old: Json, /) -> list[Cause]:
        """Return the fields that may not be changed."""
        return []

    def validate_status(self, new: Json, old: Json, /) -> list[Cause]:
        return []

    def fields(self, obj: Json, /) -> dict[str, str]:
        """Return the selectable fields other than metadata.name and metadata.namespace."""
        return {}

    def selectable(self) -> tuple[str, ...]:
        return ()

    def held(self, obj: Json, /) -> bool:
        """Return whether anything besides metadata.finalizers holds an object that is marked for deletion."""
        return False

    def grace(self, obj: Json, asked: int | None, /) -> int:
        """Seconds between the deletion mark and the end; only pods have any."""
        return 0

    def name_causes(self, name: str, path: str) -> list[Cause]:
        return names.subdomain_causes(name, path)

    def to_storage(self, obj: Json, /) -> Json:
        """Convert an object of this version into the stored form."""
        return obj

    def from_storage(self, obj: Json, /) -> Json:
        return obj

    def same_form(self, revision: int, /) -> bool:
        """Return whether objects that were stored at a revision have this version's form, so that their bytes can be sent unchanged."""
        return True

    def columns(self) -> list[Json]:
        return [tables.column("Name", format="name"), tables.column("Age")]

    def cells(self, obj: Json, /) -> list[Any]:
        return [obj["metadata"]["name"], tables.age(obj["metadata"].get("creationTimestamp"))]


def _keep(new: Json, old: Json, key: str) -> None:
    if key in old:
        new[key] = old[key]
    else:
        new.pop(key, None)


@dataclass(frozen=True, slots=True)
class Subresource:
    name: str
    kind: str
    verbs: tuple[str, ...]
    group: str | None = None
    version: str | None = None


STATUS = ("get", "patch", "update")


@dataclass(frozen=True, slots=True)
class ResourceType:
    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    strategy: Strategy = field(default_factory=Strategy)
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = VERBS
    subresources: tuple[Subresource, ...] = ()
    storage: str = ""
    """where objects lie in the store; shared by versions and groups that show the same objects"""
    custom: bool = False
    list_kind: str = ""
    remark: str = ""
    """the warning that a client gets when it creates such an object"""
    refusal: str = ""
    """the reason why no such object may be created"""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def stored_in(self) -> str:
        return self.storage or (f"{self.plural}.{self.group}" if self.group else self.plural)

    @property
    def schema(self) -> Json:
        return schemas.component(self.schema_name)

    @property
    def schema_name(self) -> str:
        return "" if self.custom else schemas.schema_name(self.group, self.version, self.kind)

    @property
    def list_of(self) -> str:
        return self.list_kind or f"{self.kind}List"

    def prefix(self) -> bytes:
        """Return the start of an object's JSON in this version, to which the stored bytes are joined."""
        return f'{{"kind":"{self.kind}","apiVersion":"{self.api_version}",'.encode()

    def sub(self, name: str) -> Subresource | None:
        return next((s for s in self.subresources if s.name == name), None)


class Registry:
    """All resource types by group, version and plural, in the order in which discovery shows them."""

    def __init__(self) -> None:
        self._types: dict[tuple[str, str, str], ResourceType] = {}
        self._stored: dict[str, ResourceType] = {}

    def add(self, *types: ResourceType) -> None:
        for t in types:
            self._types[t.group, t.version, t.plural] = t
        self._stored = {}
        for t in self._types.values():
            self._stored.setdefault(t.stored_in, t)

    def replace_custom(self, group: str, plural: str, types: list[ResourceType]) -> None:
        """Replace the served versions of one custom resource; none if its definition is gone."""
        self._types = {k: t for k, t in self._types.items() if not (t.custom and t.group == group and t.plural == plural)}
        self.add(*types)

    def find(self, group: str, version: str, plural: str) -> ResourceType | None:
        return self._types.get((group, version, plural))

    def __iter__(self) -> Iterator[ResourceType]:
        return iter(self._types.values())

    def of_version(self, group: str, version: str) -> list[ResourceType]:
        return [t for t in self if (t.group, t.version) == (group, version)]

    def groups(self) -> Mapping[str, list[str]]:
        """Versions by group, the preferred one first."""
        found: dict[str, list[str]] = {}
        for t in self:
            versions = found.setdefault(t.group, [])
            if t.version not in versions:
                versions.append(t.version)
        return found

    def by_storage(self, storage: str) -> ResourceType | None:
        """Return the type in whose form objects are stored: the first one registered."""
        return self._stored.get(storage)

    def by_kind(self, group: str, version: str, kind: str) -> ResourceType | None:
        return next((t for t in self if (t.group, t.version, t.kind) == (group, version, kind)), None)
