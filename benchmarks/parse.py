"""Measure the time to read and check one realistic PyTorchJob, and compare it with pydantic on the same shape.

Both start from the decoded object and check every type, bound, word and unknown field down to the last container. `parse` also applies
defaults and the rules between fields. pydantic's models are made from the same facts and check only types.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
import pydantic
import yaml
from msgspec import inspect

from elastic.api import KINDS, parse
from elastic.api.job import ElasticPolicy, ReplicaSpec, RunPolicy
from elastic.api.pod_schema import POD_TEMPLATE, definitions, fast_type

ROUNDS = 60
JOBS = 200
STRICT = pydantic.ConfigDict(strict=True, extra="forbid")
SIMPLE: dict[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool}
MODEL, MAP, LIST = (cast(Any, made) for made in (pydantic.create_model, dict, list))
"""Functions that make types at run time, which no type checker follows."""


def main() -> None:
    text = (Path(__file__).parent / "pytorchjob.yaml").read_text()
    job = yaml.safe_load(text)
    model = pydantic_model()
    size = f"{len(text.splitlines())} lines, {len(msgspec.json.encode(job))} bytes of JSON"
    print(f"one PyTorchJob of {size}; CPU per job, median of {ROUNDS} x {JOBS}, turn by turn")
    rounds = turn_by_turn(lambda: parse(job), lambda: shape(job["spec"]), lambda: model.model_validate(job))
    all_of_it, types_only, theirs = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(f"elastic.api.parse      {all_of_it:7.1f} us   types, unknown fields, list keys, defaults, rules between fields")
    print(f"  its types alone      {types_only:7.1f} us   types, unknown fields")
    print(f"pydantic {pydantic.VERSION:<13} {theirs:7.1f} us   types, unknown fields")
    for name, column in (("parse", 0), ("its types alone", 1)):
        print(f"pydantic takes {statistics.median(r[2] / r[column] for r in rounds):.2f} times as long as {name}")


def shape(spec: dict[str, Any]) -> None:
    """Convert each part to its type, as `parse` does first."""
    msgspec.convert(spec["runPolicy"], RunPolicy)
    msgspec.convert(spec["elasticPolicy"], ElasticPolicy)
    for replica in spec["pytorchReplicaSpecs"].values():
        msgspec.convert(replica, ReplicaSpec)
        msgspec.convert(replica["template"], fast_type(POD_TEMPLATE))


def turn_by_turn(*works: Callable[[], object]) -> list[list[float]]:
    """Return the microseconds per job by round. The works take turns, so that other load on the machine slows all alike."""
    for work in works:
        microseconds(work)
    return [[microseconds(work) for work in works] for _ in range(ROUNDS)]


def microseconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    for _ in range(JOBS):
        work()
    return (time.process_time() - start) / JOBS * 1e6


def pydantic_model() -> Any:
    replica = from_struct(inspect.type_info(ReplicaSpec))
    spec = MODEL(
        "Spec",
        __config__=STRICT,
        nprocPerNode=(str | None, None),
        runPolicy=(from_struct(inspect.type_info(RunPolicy)) | None, None),
        elasticPolicy=(from_struct(inspect.type_info(ElasticPolicy)) | None, None),
        pytorchReplicaSpecs=(MAP[Literal[KINDS["PyTorchJob"].types], replica], ...),
    )
    return MODEL(
        "PyTorchJob",
        __config__=STRICT,
        apiVersion=(Literal["kubeflow.org/v1"], ...),
        kind=(Literal["PyTorchJob"], ...),
        metadata=(dict[str, Any], ...),
        spec=(spec, ...),
    )


def from_struct(node: Any) -> Any:
    """Return the pydantic type with the fields, bounds and words of our model."""
    match node:
        case inspect.Metadata():
            name = (node.extra_json_schema or {}).get("$ref")
            return from_definition(name) if name else from_struct(node.type)
        case inspect.UnionType():
            types = [from_struct(kind) for kind in node.types if not isinstance(kind, inspect.NoneType)]
            return functools.reduce(lambda a, b: a | b, types) | None
        case inspect.StructType():
            fields = {f.encode_name: (from_struct(f.type), ...) if f.required else (from_struct(f.type) | None, None) for f in node.fields}
            return MODEL(node.cls.__name__, __config__=STRICT, **fields)
        case inspect.DictType():
            return MAP[str, from_struct(node.value_type)]
        case inspect.VarTupleType():
            return LIST[from_struct(node.item_type)]
        case inspect.EnumType():
            return Literal[tuple(member.value for member in node.cls)]
        case inspect.IntType():
            return Annotated[int, pydantic.Field(ge=node.ge, le=node.le)]
        case inspect.StrType():
            return Annotated[str, pydantic.Field(min_length=node.min_length, max_length=node.max_length)]
        case inspect.BoolType():
            return bool
        case inspect.DateTimeType():
            return pydantic.AwareDatetime
    raise TypeError(node)


@functools.cache
def from_definition(name: str) -> Any:
    return from_schema(definitions()[name], name)


def from_schema(node: dict[str, Any], name: str) -> Any:
    """Return the pydantic type for a part of Kubernetes' pod template."""
    if "$ref" in node:
        return from_definition(node["$ref"])
    if "x-kubernetes-int-or-string" in node:
        return int | (Annotated[str, pydantic.Field(pattern=node["pattern"])] if "pattern" in node else str)
    if "enum" in node:
        return Literal[tuple(node["enum"])]
    if "properties" in node:
        fields: dict[str, Any] = {}
        for i, (wire, child) in enumerate(node["properties"].items()):
            kind = from_schema(child, f"{name}_{wire}")
            needed = wire in node.get("required", ())
            fields[f"field_{i}"] = (kind, pydantic.Field(alias=wire)) if needed else (kind | None, pydantic.Field(None, alias=wire))
        return MODEL(name, __config__=STRICT, **fields)
    if node["type"] == "array":
        return LIST[from_schema(node["items"], name)]
    if node["type"] == "object":
        values = from_schema(node["additionalProperties"], name) if "additionalProperties" in node else Any
        return MAP[str, values]
    return SIMPLE[node["type"]]


if __name__ == "__main__":
    main()
