"""Make the custom resource definitions from the model in elastic.api.job.

Types and bounds come from its fields, descriptions from its docstrings, the pod template from elastic.api.pod_schema, and rules that no
type can express from elastic.api.crd_rules.

`python -m elastic.api.crd --write` writes them into deploy/crds. `--check` tells whether these files are current.
"""

from __future__ import annotations

import ast
import functools
import inspect as source
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from elastic.api.crd_rules import elastic_rules, job_rules, queue_rules, replica_rules, spec_rules
from elastic.api.generated import keep
from elastic.api.job import MOST_CONTAINERS, ElasticPolicy, JobStatus, KindOptions, ReplicaSpec, RunPolicy, SchedulingPolicy
from elastic.api.kinds import GROUP, KINDS, VERSION, WORKER, Kind
from elastic.api.pod_schema import INT_OR_STRING, definitions, structural

Schema = dict[str, Any]

MOST_KEYS = 8
"""Most entries in a map from replica type to spec; the API server estimates the cost of rules from it."""
_COLUMNS = {
    "State": {"name": "State", "type": "string", "jsonPath": ".status.conditions[-1:].type"},
    "Age": {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
}
_MORE_COLUMNS = [
    {"name": "Workers", "type": "integer", "jsonPath": f".status.replicaStatuses.{WORKER}.active", "description": "Workers that run."},
    {
        "name": "Wanted",
        "type": "integer",
        "jsonPath": ".spec.{replica_key}.Worker.replicas",
        "description": "Workers that the spec asks for.",
    },
    {"name": "World", "type": "integer", "jsonPath": ".status.elastic.worldSize", "description": "Workers that train together."},
    {
        "name": "Restarts",
        "type": "integer",
        "jsonPath": ".status.elastic.restartCount",
        "description": "Restarts that nobody asked for; .status.elastic.restarts counts the ends of workers by cause.",
    },
    {"name": "Rescaled", "type": "date", "jsonPath": ".status.elastic.lastRescale.at", "description": "The last change of the world."},
    {
        "name": "Waits For",
        "type": "string",
        "jsonPath": ".status.elastic.waitsFor",
        "description": "Why fewer workers run than are wanted.",
    },
]
"""Columns that upstream lacks; they follow its own."""


def crd(kind: Kind) -> Schema:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.crd_name},
        "spec": {
            "group": GROUP,
            "names": {"kind": kind.name, "listKind": f"{kind.name}List", "plural": kind.plural, "singular": kind.singular},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": _columns(kind),
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": f".spec.{kind.replica_key}.{WORKER}.replicas",
                            "statusReplicasPath": f".status.replicaStatuses.{WORKER}.active",
                            "labelSelectorPath": f".status.replicaStatuses.{WORKER}.selector",
                        },
                    },
                    "schema": {"openAPIV3Schema": _job_schema(kind)},
                }
            ],
        },
    }


def _columns(kind: Kind) -> list[Schema]:
    more = [column | {"jsonPath": column["jsonPath"].replace("{replica_key}", kind.replica_key)} for column in _MORE_COLUMNS]
    return [*(_COLUMNS[name] for name in kind.columns), *more]


def _job_schema(kind: Kind) -> Schema:
    return {
        "type": "object",
        "description": f"Distributed training as {kind.a_job}.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}"},
            "kind": {"type": "string", "description": kind.name},
            "metadata": {"type": "object"},
            "spec": _spec_schema(kind),
            "status": schema_of(JobStatus),
        },
        "x-kubernetes-validations": job_rules(kind),
    }


def _spec_schema(kind: Kind) -> Schema:
    replica = schema_of(ReplicaSpec) | {"x-kubernetes-validations": replica_rules(kind)}
    replica["properties"]["template"]["properties"]["spec"]["properties"]["containers"]["maxItems"] = MOST_CONTAINERS
    elastic = schema_of(ElasticPolicy) | {"x-kubernetes-validations": elastic_rules()}
    types = ", ".join(kind.types)
    replicas = {
        "type": "object",
        "description": f"The replicas by type: {types}.",
        "maxProperties": MOST_KEYS,
        "additionalProperties": replica,
    }
    options = schema_of(KindOptions)["properties"]
    wire = {field.name: field.encode_name for field in msgspec.structs.fields(KindOptions)}
    run_policy = schema_of(RunPolicy)
    scheduling = run_policy["properties"][_wire_name(RunPolicy, "scheduling_policy")]
    scheduling["properties"][_wire_name(SchedulingPolicy, "queue")]["x-kubernetes-validations"] = queue_rules()
    return {
        "type": "object",
        "description": "What is to be run.",
        "required": [kind.replica_key],
        "properties": {
            "runPolicy": run_policy,
            "elasticPolicy": elastic,
            kind.replica_key: replicas,
            **{wire[name]: options[wire[name]] for name in kind.options},
        },
        "x-kubernetes-validations": spec_rules(kind),
    }


def _wire_name(cls: type[msgspec.Struct], name: str) -> str:
    return next(field.encode_name for field in msgspec.structs.fields(cls) if field.name == name)


def schema_of(cls: type[msgspec.Struct]) -> Schema:
    """Return the schema of the objects that this type reads."""
    return _schema(inspect.type_info(cls))


def _schema(node: inspect.Type) -> Schema:
    match node:
        case inspect.Metadata():
            extra = node.extra_json_schema or {}
            if "$ref" in extra:
                return structural(extra["$ref"]) | {key: value for key, value in extra.items() if key != "$ref"}
            return _schema(node.type) | extra
        case inspect.UnionType():
            kinds = [kind for kind in node.types if not isinstance(kind, inspect.NoneType)]
            return _schema(kinds[0]) if len(kinds) == 1 else _quantity()
        case inspect.StructType():
            return _object_schema(node)
        case inspect.DictType():
            return _present({"type": "object", "additionalProperties": _schema(node.value_type), "maxProperties": node.max_length})
        case inspect.VarTupleType():
            bounds = {"minItems": node.min_length or None, "maxItems": node.max_length}
            return _present({"type": "array", "items": _schema(node.item_type), **bounds})
        case inspect.EnumType():
            return {"type": "string", "enum": [member.value for member in node.cls]}
        case inspect.StrType():
            pattern = node.pattern and node.pattern.replace(r"\A", "^").replace(r"\Z", "$")  # a server's expressions lack Python's anchors
            return _present({"type": "string", "minLength": node.min_length, "maxLength": node.max_length, "pattern": pattern})
        case inspect.IntType():
            return _present({"type": "integer", "minimum": node.ge, "maximum": node.le})
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.DateTimeType():
            return {"type": "string", "format": "date-time"}
        case _:
            raise TypeError(f"the model uses {node}, for which there is no schema")


def _object_schema(node: inspect.StructType) -> Schema:
    texts = field_texts(node.cls)
    properties = {}
    for field in node.fields:
        text = texts.get(field.name)
        properties[field.encode_name] = _schema(field.type) | ({"description": text} if text else {})
    required = [field.encode_name for field in node.fields if field.required]
    return _present(
        {"type": "object", "description": _one_line(node.cls.__doc__ or ""), "properties": properties, "required": required or None}
    )


def _present(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if value is not None}


def _quantity() -> Schema:
    limits: Schema = definitions()["ResourceRequirements"]["properties"]["limits"]["additionalProperties"]
    return INT_OR_STRING | limits


@functools.cache
def field_texts(cls: type) -> dict[str, str]:
    """Return the docstring below each field of the model, by field."""
    (tree,) = ast.parse(textwrap.dedent(source.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            texts[field.target.id] = _one_line(ast.literal_eval(text.value))
    return texts


def _one_line(text: str) -> str:
    return " ".join(text.split())


def as_yaml(kind: Kind) -> str:
    """Return the file in deploy/crds."""
    import yaml  # only here: reading jobs needs no YAML

    text: str = yaml.dump(crd(kind), Dumper=_plain_dumper(), sort_keys=False, width=140, allow_unicode=True)
    return f"# Generated by `python -m elastic.api.crd --write` from the model in elastic/api/job.py.\n{text}"


def _plain_dumper() -> Any:
    import yaml

    class PlainDumper(yaml.SafeDumper):
        """Write no anchors, because they save little and make a diff unreadable."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    return PlainDumper


def files(folder: Path) -> Iterator[tuple[Path, str]]:
    for kind in KINDS.values():
        yield folder / f"{kind.crd_name}.yaml", as_yaml(kind)


if __name__ == "__main__":
    sys.exit(keep("elastic.api.crd", files(Path(__file__).parent.parent.parent / "deploy" / "crds"), sys.argv[1:]))
