"""Whether a custom resource definition makes sense: names, versions, structural schemas, defaults, paths of subresources."""

from __future__ import annotations

import re
from typing import Any

from elastic.local.apiserver import names as naming
from elastic.local.apiserver import rules, structural
from elastic.local.apiserver.errors import Cause, Json, bad, forbidden_field, required, unsupported

APPROVED = "api-approved.kubernetes.io"
_TYPES = ("object", "array", "string", "integer", "number", "boolean")


def causes(obj: Json) -> list[Cause]:
    spec, meta = obj.get("spec") or {}, obj["metadata"]
    given, group = spec.get("names") or {}, spec.get("group", "")
    out: list[Cause] = []
    if meta.get("name") != f"{given.get('plural', '')}.{group}":
        out.append(bad("metadata.name", meta.get("name"), 'must be spec.names.plural+"."+spec.group'))
    if not group:
        out.append(required("spec.group"))
    elif "." not in group:
        out.append(bad("spec.group", group, "should be a domain with at least one dot"))
    if group.endswith((".k8s.io", ".kubernetes.io")) and APPROVED not in (meta.get("annotations") or {}):
        why = f'protected groups must have approval annotation "{APPROVED}", see https://github.com/kubernetes/enhancements/pull/1111'
        out.append(required(f"metadata.annotations[{APPROVED}]", why))
    if spec.get("scope") not in ("Cluster", "Namespaced"):
        out.append(unsupported("spec.scope", spec.get("scope", ""), ("Cluster", "Namespaced")))
    for key in ("plural", "kind"):
        if not given.get(key):
            out.append(required(f"spec.names.{key}"))
    if given.get("plural"):
        out += [bad("spec.names.plural", given["plural"], e) for e in naming.dns1035_errors(given["plural"])]
    return out + _versions(spec, obj.get("status") or {})


def _versions(spec: Json, status: Json) -> list[Cause]:
    out: list[Cause] = []
    versions = spec.get("versions") or []
    stored = [v.get("name", "") for v in versions if v.get("storage")]
    if len(stored) != 1:
        out.append(bad("spec.versions", versions, "must have exactly one version marked as storage version"))
        if not stored:
            out.append(bad("status.storedVersions", None, "must have at least one stored version"))
        else:
            out.append(bad("status.storedVersions", stored[:1], f"must have the storage version {stored[-1]}"))
    single = len(versions) == 1
    for i, version in enumerate(versions):
        path = f"spec.versions[{i}]"
        out += [bad(f"{path}.name", version.get("name", ""), e) for e in naming.dns1035_errors(version.get("name", ""))]
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if schema is None:
            out.append(required(f"{path}.schema.openAPIV3Schema"))
            continue
        # A single version's schema is shown under the older name of the field.
        where = "spec.validation.openAPIV3Schema" if single else f"{path}.schema.openAPIV3Schema"
        out += _schema(schema, where, root=True)
        out += _subresources(version.get("subresources") or {}, "spec.subresources" if single else f"{path}.subresources")
    return out


def _subresources(subs: Json, path: str) -> list[Cause]:
    scale = subs.get("scale")
    if scale is None:
        return []
    out = []
    for key, under in (("specReplicasPath", "spec"), ("statusReplicasPath", "status")):
        value = scale.get(key, "")
        if not value.startswith(f".{under}."):
            out.append(bad(f"{path}.scale.{key}", value, f"should be a json path under .{under}"))
    selector = scale.get("labelSelectorPath")
    if selector and not selector.startswith((".spec.", ".status.")):
        out.append(bad(f"{path}.scale.labelSelectorPath", selector, "should be a json path under either .spec or .status"))
    return out


def _schema(schema: Json, path: str, *, root: bool = False) -> list[Cause]:
    """Return the problems of a schema: it must have a type everywhere, and may not both list properties and allow others."""
    out: list[Cause] = []
    kind = schema.get("type")
    free = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-int-or-string")
    if not kind and not free:
        out.append(required(f"{path}.type", "must not be empty at the root" if root else "must not be empty for specified object fields"))
    elif root and kind != "object":
        out.append(bad(f"{path}.type", kind, "must be object at the root"))
    elif kind and kind not in _TYPES:
        out.append(unsupported(f"{path}.type", kind, _TYPES))
    if schema.get("properties") and schema.get("additionalProperties"):
        out.append(forbidden_field(f"{path}.additionalProperties", "additionalProperties and properties are mutual exclusive"))
    if kind == "array" and "items" not in schema:
        out.append(required(f"{path}.items", "must be specified"))
    if schema.get("x-kubernetes-list-type") == "map" and not schema.get("x-kubernetes-list-map-keys"):
        out.append(required(f"{path}.x-kubernetes-list-map-keys", "must not be empty if x-kubernetes-list-type is map"))
    if "pattern" in schema and not _compiles(schema["pattern"]):
        out.append(bad(f"{path}.pattern", schema["pattern"], "must be a valid regular expression"))
    if "default" in schema:
        out += _default(schema, path)
    out += _rules(schema, path)
    for name, field in (schema.get("properties") or {}).items():
        out += _schema(field, f"{path}.properties[{name}]")
    if isinstance(schema.get("items"), dict):
        out += _schema(schema["items"], f"{path}.items")
    if isinstance(schema.get("additionalProperties"), dict):
        out += _schema(schema["additionalProperties"], f"{path}.additionalProperties")
    return out


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _default(schema: Json, path: str) -> list[Cause]:
    value: Any = schema["default"]
    found = structural.causes(structural.validator({k: v for k, v in schema.items() if k != "default"}), value)
    where = f"{path}.default"
    return [Cause(where if c.field in ("<nil>", "") else f"{where}.{c.field}", c.reason, c.message) for c in found]


def _rules(schema: Json, path: str) -> list[Cause]:
    out = []
    for i, rule in enumerate(schema.get("x-kubernetes-validations") or ()):
        where = f"{path}.x-kubernetes-validations[{i}]"
        if not rule.get("rule"):
            out.append(required(f"{where}.rule"))
            continue
        problem = rules.problem(rule["rule"]) or _undeclared(rule["rule"], schema)
        if problem:
            out.append(bad(f"{where}.rule", rule, problem))
        elif _nesting(rule["rule"]) > 1 and _unbounded(schema):
            why = "estimated rule cost exceeds budget: loops over a list without maxItems are nested"
            out.append(forbidden_field(f"{where}.rule", why))
    return out


def _undeclared(text: str, schema: Json) -> str:
    """Return a first step from self that the schema does not declare."""
    if schema.get("type") != "object" or schema.get("additionalProperties") or schema.get("x-kubernetes-preserve-unknown-fields"):
        return ""
    known = {*schema.get("properties", ()), "apiVersion", "kind", "metadata"}
    plain = re.sub(r"'[^']*'|\"[^\"]*\"", "", text)
    for name in re.findall(r"\bself\.(\w+)(?!\w*\()", plain):
        if name not in known and not name.startswith("__"):
            return f"compilation failed: ERROR: undefined field '{name}'"
    return ""


def _nesting(text: str) -> int:
    """Return how deep loops over collections are nested in a rule."""
    depth = deepest = 0
    opened: list[bool] = []
    for m in re.finditer(r"\.(?:all|exists|exists_one|map|filter)\(|\(|\)", text):
        if m[0] == ")":
            depth -= opened.pop() if opened else 0
        else:
            opened.append(m[0] != "(")
            depth += opened[-1]
            deepest = max(deepest, depth)
    return deepest


def _unbounded(schema: Json) -> bool:
    """Return whether a direct field of the schema is a list without a declared limit."""
    fields = (schema.get("properties") or {}).values()
    return any(f.get("type") == "array" and "maxItems" not in f for f in fields)


def update_causes(new: Json, old: Json) -> list[Cause]:
    out = []
    for key in ("group", "scope"):
        if new["spec"].get(key) != old["spec"].get(key):
            out.append(bad(f"spec.{key}", new["spec"].get(key), naming.IMMUTABLE))
    for key in ("plural", "kind"):
        if new["spec"]["names"].get(key) != old["spec"]["names"].get(key) and key == "plural":
            out.append(bad(f"spec.names.{key}", new["spec"]["names"].get(key), naming.IMMUTABLE))
    return out
