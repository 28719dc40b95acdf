"""Copy what a job's schema needs from an API server's OpenAPI, and write elastic/api/kubernetes.json.

The input is one or several files with component schemas: what `kubectl get --raw` gives for /openapi/v3/api/v1 and
/openapi/v3/apis/autoscaling/v2, or a plain object from name to schema. Descriptions, patch strategies and defaults are left out, except
defaults that a list key needs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOTS = {"io.k8s.api.core.v1.PodTemplateSpec", "io.k8s.api.autoscaling.v2.MetricSpec"}
OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
METADATA_FIELDS = ("annotations", "creationTimestamp", "finalizers", "labels", "name", "namespace")
"""Metadata of a template that reaches a pod, and creationTimestamp, which tools write as null."""
QUANTITY = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
INT_OR_STRING = {"x-kubernetes-int-or-string": True}
SPECIAL = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": INT_OR_STRING | {"pattern": QUANTITY},
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": INT_OR_STRING,
}
KEPT = ("type", "format", "enum", "required", "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type")
LIST_KEY_DEFAULTS = {"ContainerPort": {"protocol": "TCP"}, "LocalObjectReference": {"name": ""}}
"""The API server wants each key of a list to be required or to have a default; these are the ones it does not require."""
OUTPUT = Path(__file__).parent.parent / "elastic" / "api" / "kubernetes.json"


def main(files: list[str]) -> None:
    schemas: dict[str, Any] = {}
    for file in files:
        found = json.loads(Path(file).read_text())
        schemas.update(found.get("components", {}).get("schemas", found))
    trimmed: dict[str, Any] = {}
    waiting = sorted(ROOTS)
    while waiting:
        name = waiting.pop()
        if short(name) not in trimmed:
            trimmed[short(name)] = trim(schemas[name], is_metadata=name == OBJECT_META, waiting=waiting)
    for name, defaults in LIST_KEY_DEFAULTS.items():
        for field, default in defaults.items():
            trimmed[name]["properties"][field]["default"] = default
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(trimmed[name], sort_keys=True)}" for name in sorted(trimmed))
    OUTPUT.write_text("{\n" + lines + "\n}\n")
    print(f"{OUTPUT}: {len(trimmed)} definitions, {OUTPUT.stat().st_size} bytes")


def short(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def trim(node: dict[str, Any], *, waiting: list[str], is_metadata: bool = False) -> dict[str, Any]:
    if "allOf" in node:
        (node,) = node["allOf"]
    if "$ref" in node:
        name = node["$ref"].rsplit("/", 1)[-1]
        if name in SPECIAL:
            return dict(SPECIAL[name])
        waiting.append(name)
        return {"$ref": short(name)}
    kept = {key: node[key] for key in KEPT if key in node}
    if "properties" in node:
        names = METADATA_FIELDS if is_metadata else sorted(node["properties"])
        kept["properties"] = {name: trim(node["properties"][name], waiting=waiting) for name in names}
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            kept[key] = trim(node[key], waiting=waiting)
    return kept


if __name__ == "__main__":
    main(sys.argv[1:])
