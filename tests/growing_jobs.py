"""Build jobs in which one list, map or object has any size. The model tells which ones a job may hold."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from elastic.api.crd import crd
from elastic.api.job import Metadata
from elastic.api.kinds import KINDS, WORKER

KIND = KINDS["PyTorchJob"]
Schema = dict[str, Any]
Place = tuple[str | int, ...]
Entry = Callable[[Schema, int], Any]


@functools.cache
def schema_of_a_job() -> Schema:
    schema: Schema = crd(KIND)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    metadata = msgspec.json.schema(Metadata)["$defs"]["Metadata"]
    return schema | {"properties": schema["properties"] | {"metadata": metadata}}


def holders(schema: Schema, at: Place = ()) -> Iterator[tuple[Place, Schema]]:
    """Yield every list, map and object with its place. A list's first entry, or a map's worker, stands for all entries."""
    if schema.get("type") not in ("array", "object"):
        return
    yield at, schema
    for key, part in schema.get("properties", {}).items():
        yield from holders(part, (*at, key))
    if "items" in schema:
        yield from holders(schema["items"], (*at, 0))
    if isinstance(schema.get("additionalProperties"), dict):
        yield from holders(schema["additionalProperties"], (*at, WORKER))


def sound(schema: Schema, i: int) -> Any:
    """Return a value of that form, a different one for each i."""
    match schema.get("type"):
        case "object":
            return {key: sound(schema["properties"][key], i) for key in schema.get("required", ())}
        case "array":
            return [sound(schema["items"], i)]
        case "integer":
            return i + 1
        case "boolean":
            return True
        case "string":
            return schema["enum"][0] if "enum" in schema else f"v{i}"
    return i + 1


def alike(schema: Schema, i: int) -> Any:
    return sound(schema, 0)


def outside(schema: Schema, i: int) -> Any:
    """Return a value of the right form with numbers that are too large, words that Kubernetes refuses, and an unknown field."""
    made = sound(schema, i)
    if isinstance(made, dict):
        return {key: outside(schema["properties"][key], i) for key in made} | {f"unknwon{i}": i}
    return made + 70_000 if isinstance(made, int) and not isinstance(made, bool) else f"-{made}-" if isinstance(made, str) else made


def misshapen(schema: Schema, i: int) -> Any:
    """Return a value of another type, None, or an empty object."""
    return (1 if schema.get("type") in ("object", "array", "string") else {}, None, {})[i % 3]


ENTRIES: tuple[Entry, ...] = (sound, alike, outside, misshapen)


def grown(schema: Schema, size: int, entry: Entry) -> Any:
    """Return a list, map or object with this number of entries. The entries of an object are unknown fields."""
    if schema["type"] == "array":
        return [entry(schema["items"], i) for i in range(size)]
    values = schema.get("additionalProperties")
    of = values if isinstance(values, dict) else {"type": "string"}
    stem = "-odd-key-" if entry is outside else "key"
    return sound(schema, 0) | {f"{stem}{i}": entry(of, i) for i in range(size)}


def job_with(at: Place, value: Any) -> Any:
    """Return a minimal job with that value in that place. The mistake in its template makes the parser read it word by word."""
    template = {"spec": {"containers": [{"name": KIND.container, "image": "x"}]}, "unknwon": True}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": KIND.name,
        "metadata": {"name": "train"},
        "spec": {"elasticPolicy": {}, KIND.replica_key: {WORKER: {"template": template}}},
    }
    return _planted(job, schema_of_a_job(), at, value)


def _planted(holder: Any, schema: Schema, at: Place, value: Any) -> Any:
    if not at:
        return holder | value if isinstance(holder, dict) and isinstance(value, dict) else value
    key = at[0]
    made = copy.copy(holder)
    if isinstance(key, int):
        made = made or [sound(schema["items"], 0)]
        made[0] = _planted(made[0], schema["items"], at[1:], value)
        return made
    part = schema.get("properties", {}).get(key) or schema["additionalProperties"]
    there = made.get(key)
    made[key] = _planted(({} if part["type"] == "object" else []) if there is None else there, part, at[1:], value)
    if part["type"] == "object":
        made[key] = sound(part, 0) | made[key]
    return made
