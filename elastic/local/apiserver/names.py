"""Check the form of names, labels, annotations, finalizers and owner references."""

from __future__ import annotations

import re

from elastic.local.apiserver.errors import Cause, Json, bad, forbidden_field, required

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_QUALIFIED = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"

SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric "
    "character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
DNS1035_RULE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an "
    "alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)
NAME_PART_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    "(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def subdomain_errors(name: str) -> list[str]:
    out = ["must be no more than 253 bytes"] if len(name) > 253 else []
    return out if re.fullmatch(_SUBDOMAIN, name) else [*out, SUBDOMAIN_RULE]


def label_errors(name: str) -> list[str]:
    out = ["must be no more than 63 bytes"] if len(name) > 63 else []
    return out if re.fullmatch(_LABEL, name) else [*out, LABEL_RULE]


def dns1035_errors(name: str) -> list[str]:
    out = ["must be no more than 63 bytes"] if len(name) > 63 else []
    return out if re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) else [*out, DNS1035_RULE]


def path_errors(name: str) -> list[str]:
    """Check names such as those of roles, which only have to fit into a path."""
    if name in (".", ".."):
        return [f"may not be '{name}'"]
    return [f"may not contain '{c}'" for c in "/%" if c in name]


def subdomain_causes(name: str, path: str) -> list[Cause]:
    return [bad(path, name, e) for e in subdomain_errors(name)]


def label_causes(name: str, path: str) -> list[Cause]:
    return [bad(path, name, e) for e in label_errors(name)]


def qualified_errors(name: str) -> list[str]:
    """Check a label key, annotation key or finalizer: an optional prefix that is a subdomain, and a name part."""
    prefix, slash, part = name.rpartition("/")
    out = []
    if slash and not prefix:
        out.append("prefix part must be non-empty")
    elif slash:
        out += [f"prefix part {e}" for e in subdomain_errors(prefix)]
    if not part:
        out.append("name part must be non-empty")
    elif len(part) > 63:
        out.append("name part must be no more than 63 bytes")
    if not re.fullmatch(_QUALIFIED, part):
        out.append(NAME_PART_RULE)
    return out


def label_map_causes(labels: Json, path: str) -> list[Cause]:
    out = []
    for key, value in labels.items():
        out += [bad(path, key, e) for e in qualified_errors(key)]
        if len(value) > 63:
            out.append(bad(path, value, "must be no more than 63 bytes"))
        if not re.fullmatch(rf"({_QUALIFIED})?", value):
            out.append(bad(path, value, VALUE_RULE))
    return out


def metadata_causes(meta: Json) -> list[Cause]:
    """Check metadata, except the name, which has another rule for each kind."""
    out = label_map_causes(meta.get("labels") or {}, "metadata.labels")
    annotations = meta.get("annotations") or {}
    for key in annotations:
        out += [bad("metadata.annotations", key, e) for e in qualified_errors(key.lower())]
    if sum(len(k.encode()) + len(v.encode()) for k, v in annotations.items()) > 256 << 10:
        out.append(Cause("metadata.annotations", "FieldValueTooLong", "Too long: may not be more than 262144 bytes"))
    out += _owner_causes(meta.get("ownerReferences") or [])
    for i, f in enumerate(meta.get("finalizers") or ()):
        wrong = qualified_errors(f)
        out += [bad("metadata.finalizers", f, e) for e in wrong]
        if wrong or ("/" not in f and f not in ("orphan", "foregroundDeletion", "kubernetes")):
            why = "name is neither a standard finalizer name nor is it fully qualified"
            out.append(bad(f"metadata.finalizers[{i}]", f, why))
    return out


def _owner_causes(references: list[Json]) -> list[Cause]:
    out = []
    for ref in references:
        for key in ("apiVersion", "kind", "name", "uid"):
            if not ref.get(key):
                out.append(
                    bad(f"metadata.ownerReferences.{key}", "", "version must not be empty" if key == "apiVersion" else "must not be empty")
                )
    controllers = [f"{r.get('kind')}/{r.get('name')}" for r in references if r.get("controller")]
    if len(controllers) > 1:
        why = f'Only one reference can have Controller set to true. Found "true" in references for {controllers[0]} and {controllers[1]}'
        out.append(bad("metadata.ownerReferences", references, why))
    return out


def identity_causes(meta: Json) -> list[Cause]:
    if not meta.get("name") and not meta.get("generateName"):
        return [required("metadata.name", "name or generateName is required")]
    return []


IMMUTABLE = "field is immutable"


def update_causes(new: Json, old: Json) -> list[Cause]:
    """Check that fixed fields of metadata have not changed, after the system's own fields were restored."""
    out = []
    if old.get("deletionTimestamp"):
        added = [f for f in new.get("finalizers") or () if f not in (old.get("finalizers") or ())]
        if added:
            text = ", ".join(f'"{f}"' for f in added)
            why = f"no new finalizers can be added if the object is being deleted, found new finalizers []string{{{text}}}"
            out.append(forbidden_field("metadata.finalizers", why))
    out += [bad(f"metadata.{k}", new[k], IMMUTABLE) for k in ("name", "namespace", "uid") if new.get(k) != old.get(k) and k in new]
    return out
