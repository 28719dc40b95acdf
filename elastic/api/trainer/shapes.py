"""Define the words of which the types of trainer.kubeflow.org are made: lists with keys, immutable fields, and parts of Kubernetes."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct

Schema = dict[str, Any]
Object: TypeAlias = dict[str, Any]


class Wire(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Read and write camelCase. An unknown field is an error, because nothing may be accepted and ignored."""


def rule(expression: str, message: str) -> dict[str, str]:
    """Return a CEL rule as a definition has it."""
    return {"message": message, "rule": expression}


def extra(**schema: Any) -> Meta:
    """Return what a schema says besides the type. Underscores stand for dashes; `rules` are CEL rules, and `keys` a list's keys."""
    made: Schema = {key.replace("_", "-"): value for key, value in schema.items() if key not in ("rules", "keys")}
    if "rules" in schema:
        made["x-kubernetes-validations"] = schema["rules"]
    if "keys" in schema:
        made |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(schema["keys"])}
    return Meta(extra_json_schema=made)


def part(name: str) -> Meta:
    """Return what makes a field an object of this definition of Kubernetes."""
    return extra(**{"$ref": name})


IMMUTABLE = [rule("self == oldSelf", "field is immutable")]
FIXED = [rule("self == oldSelf", "Value is immutable")]
ATOMIC = {"x_kubernetes_list_type": "atomic"}

Int32: TypeAlias = Annotated[int, Meta(extra_json_schema={"format": "int32"})]
Int64: TypeAlias = Annotated[int, Meta(extra_json_schema={"format": "int64"})]
Natural: TypeAlias = Annotated[int, Meta(ge=0, extra_json_schema={"format": "int32"})]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=253)]
Word: TypeAlias = Annotated[str, Meta(max_length=253)]
Time: TypeAlias = Annotated[str, extra(format="date-time")]
Env: TypeAlias = Annotated[
    tuple[Annotated[Object, part("EnvVar")], ...],
    Meta(max_length=128, extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
]
Reference: TypeAlias = Annotated[Object, part("LocalObjectReference")]
ObjectMeta: TypeAlias = Annotated[Object, part("ObjectMeta")]
Selector: TypeAlias = Annotated[Object, part("LabelSelector")]
