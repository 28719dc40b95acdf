"""Look up the types of the built-in kinds, which are data of a real server.

The document holds component schemas with list types, list keys and patch keys. References are followed on demand.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import orjson

from elastic.local.apiserver.errors import Json

PREFIX = "#/components/schemas/"
META = "io.k8s.apimachinery.pkg.apis.meta.v1."
OBJECT_META = META + "ObjectMeta"


@cache
def components() -> dict[str, Json]:
    """Return all component schemas. They are read once and never changed."""
    loaded: dict[str, Json] = orjson.loads(files(__package__).joinpath("schemas.json").read_bytes())
    return loaded


def reference(schema: Json) -> str:
    """Return the name of the component that a schema refers to, or an empty text."""
    ref = schema.get("$ref")
    if ref is None and len(schema.get("allOf", ())) == 1:
        ref = schema["allOf"][0].get("$ref")
    return ref.removeprefix(PREFIX) if isinstance(ref, str) else ""


def resolved(schema: Json) -> Json:
    """Return the schema itself, or the component that it refers to."""
    name = reference(schema)
    return components()[name] if name else schema


def component(name: str) -> Json:
    return components().get(name, {})


@cache
def schema_name(group: str, version: str, kind: str) -> str:
    """Return the name of the component that describes a kind, or an empty text if no component does."""
    wanted = {"group": group, "version": version, "kind": kind}
    for name, schema in components().items():
        if wanted in schema.get("x-kubernetes-group-version-kind", ()) and name.rpartition(".")[2] == kind:
            return name
    return ""
