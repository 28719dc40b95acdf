"""Reads Kubernetes' protobuf envelope for the kinds that kubectl's imperative commands send; everything else is asked for as JSON.

The tables below are the wire format: field number, JSON name, type. Types are str, int, bool, bytes and names of
messages; `*` repeats, `{}` is a map with string keys.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from elastic.local.apiserver.errors import Json, bad_request, unsupported_media

MEDIA = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"

_MESSAGES: dict[str, dict[int, tuple[str, str]]] = {
    "Unknown": {1: ("typeMeta", "TypeMeta"), 2: ("raw", "raw")},
    "TypeMeta": {1: ("apiVersion", "str"), 2: ("kind", "str")},
    "ObjectMeta": {
        1: ("name", "str"), 2: ("generateName", "str"), 3: ("namespace", "str"), 5: ("uid", "str"), 6: ("resourceVersion", "str"),
        11: ("labels", "{}str"), 12: ("annotations", "{}str"), 13: ("ownerReferences", "*OwnerReference"), 14: ("finalizers", "*str"),
    },
    "OwnerReference": {
        1: ("kind", "str"), 3: ("name", "str"), 4: ("uid", "str"), 5: ("apiVersion", "str"), 6: ("controller", "bool"),
        7: ("blockOwnerDeletion", "bool"),
    },
    "ConfigMap": {1: ("metadata", "ObjectMeta"), 2: ("data", "{}str"), 3: ("binaryData", "{}bytes"), 4: ("immutable", "bool")},
    "Secret": {
        1: ("metadata", "ObjectMeta"), 2: ("data", "{}bytes"), 3: ("type", "str"), 4: ("stringData", "{}str"), 5: ("immutable", "bool"),
    },
    "ServiceAccount": {
        1: ("metadata", "ObjectMeta"), 3: ("imagePullSecrets", "*LocalReference"), 4: ("automountServiceAccountToken", "bool"),
    },
    "LocalReference": {1: ("name", "str")},
    "Namespace": {1: ("metadata", "ObjectMeta")},
    "TokenRequest": {1: ("metadata", "ObjectMeta"), 2: ("spec", "TokenRequestSpec")},
    "TokenRequestSpec": {1: ("audiences", "*str"), 3: ("boundObjectRef", "BoundReference"), 4: ("expirationSeconds", "int")},
    "BoundReference": {1: ("kind", "str"), 2: ("apiVersion", "str"), 3: ("name", "str"), 4: ("uid", "str")},
    "SelfSubjectReview": {1: ("metadata", "ObjectMeta")},
    "SelfSubjectAccessReview": {1: ("metadata", "ObjectMeta"), 2: ("spec", "AccessReviewSpec")},
    "AccessReviewSpec": {1: ("resourceAttributes", "ResourceAttributes"), 2: ("nonResourceAttributes", "PathAttributes")},
    "ResourceAttributes": {
        1: ("namespace", "str"), 2: ("verb", "str"), 3: ("group", "str"), 4: ("version", "str"), 5: ("resource", "str"),
        6: ("subresource", "str"), 7: ("name", "str"),
    },
    "PathAttributes": {1: ("path", "str"), 2: ("verb", "str")},
    "SelfSubjectRulesReview": {1: ("metadata", "ObjectMeta"), 2: ("spec", "RulesReviewSpec")},
    "RulesReviewSpec": {1: ("namespace", "str")},
    "Eviction": {1: ("metadata", "ObjectMeta"), 2: ("deleteOptions", "DeleteOptions")},
    "DeleteOptions": {
        1: ("gracePeriodSeconds", "int"), 2: ("preconditions", "Preconditions"), 3: ("orphanDependents", "bool"),
        4: ("propagationPolicy", "str"), 5: ("dryRun", "*str"),
    },
    "Preconditions": {1: ("uid", "str"), 2: ("resourceVersion", "str")},
    "PriorityClass": {
        1: ("metadata", "ObjectMeta"), 2: ("value", "int"), 3: ("globalDefault", "bool"), 4: ("description", "str"),
        5: ("preemptionPolicy", "str"),
    },
    "Role": {1: ("metadata", "ObjectMeta"), 2: ("rules", "*PolicyRule")},
    "ClusterRole": {1: ("metadata", "ObjectMeta"), 2: ("rules", "*PolicyRule")},
    "PolicyRule": {
        1: ("verbs", "*str"), 2: ("apiGroups", "*str"), 3: ("resources", "*str"), 4: ("resourceNames", "*str"),
        5: ("nonResourceURLs", "*str"),
    },
    "Service": {1: ("metadata", "ObjectMeta"), 2: ("spec", "ServiceSpec")},
    "ServiceSpec": {
        1: ("ports", "*ServicePort"), 2: ("selector", "{}str"), 3: ("clusterIP", "str"), 4: ("type", "str"), 10: ("externalName", "str"),
    },
    "ServicePort": {
        1: ("name", "str"), 2: ("protocol", "str"), 3: ("port", "int"), 4: ("targetPort", "IntOrString"), 5: ("nodePort", "int"),
    },
    "RoleBinding": {1: ("metadata", "ObjectMeta"), 2: ("subjects", "*Subject"), 3: ("roleRef", "RoleRef")},
    "ClusterRoleBinding": {1: ("metadata", "ObjectMeta"), 2: ("subjects", "*Subject"), 3: ("roleRef", "RoleRef")},
    "Subject": {1: ("kind", "str"), 2: ("apiGroup", "str"), 3: ("name", "str"), 4: ("namespace", "str")},
    "RoleRef": {1: ("apiGroup", "str"), 2: ("kind", "str"), 3: ("name", "str")},
    "PodDisruptionBudget": {1: ("metadata", "ObjectMeta"), 2: ("spec", "BudgetSpec")},
    "BudgetSpec": {1: ("minAvailable", "IntOrString"), 2: ("selector", "LabelSelector"), 3: ("maxUnavailable", "IntOrString")},
    "IntOrString": {1: ("type", "int"), 2: ("intVal", "int"), 3: ("strVal", "str")},
    "LabelSelector": {1: ("matchLabels", "{}str"), 2: ("matchExpressions", "*Requirement")},
    "Requirement": {1: ("key", "str"), 2: ("operator", "str"), 3: ("values", "*str")},
}  # fmt: skip


def decode(body: bytes, expected: str) -> Json:
    """The object in an envelope, as JSON; `expected` is the kind, for messages."""
    if not body.startswith(_MAGIC):
        why = f"provided data does not appear to be a protobuf message, expected prefix [107 56 115 0] ({body[:12].hex()})"
        raise bad_request(f"the object provided is unrecognized (must be of type {expected}): {why}")
    if len(body) == len(_MAGIC):
        raise bad_request(f"the object provided is unrecognized (must be of type {expected}): empty body ({body.hex()})")
    try:
        envelope = _message(body[len(_MAGIC) :], "Unknown")
        meta = envelope.get("typeMeta") or {}
        kind = meta.get("kind", "")
        if kind not in _MESSAGES:
            raise unsupported_media(
                ("application/json", "application/yaml", f"application/vnd.kubernetes.protobuf (not for {kind or expected})")
            )
        return {**meta, **_message(envelope.get("raw", b""), kind)}
    except (IndexError, UnicodeDecodeError) as e:
        raise bad_request(f"the object provided is unrecognized (must be of type {expected}): {e}") from None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise IndexError("a number is too long")


def _parts(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers with their values: numbers, or the bytes of everything else."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(wire, -1)
        if size < 0 or at + size > len(data):
            raise IndexError(f"field {number} does not fit into the message")
        yield number, data[at : at + size]
        at += size


def _message(data: bytes, name: str) -> Json:
    out: Json = {}
    for number, value in _parts(data):
        field = _MESSAGES[name].get(number)
        if field is None:
            continue
        key, kind = field
        if kind.startswith("*"):
            out.setdefault(key, []).append(_value(value, kind[1:]))
        elif kind.startswith("{}"):
            pair = dict(_parts(value)) if isinstance(value, bytes) else {}
            out.setdefault(key, {})[_value(pair.get(1, b""), "str")] = _value(pair.get(2, b""), kind[2:])
        else:
            out[key] = _value(value, kind)
    return out


def _value(value: int | bytes, kind: str) -> Any:
    if kind == "bool":
        return bool(value)
    if isinstance(value, int):
        return value - (1 << 64) if value >= 1 << 63 else value
    if kind == "str":
        return value.decode()
    if kind == "raw":
        return value
    if kind == "bytes":
        return base64.b64encode(value).decode()
    made = _message(value, kind)
    if kind == "IntOrString":
        return made.get("strVal", "") if made.get("type") else made.get("intVal", 0)
    return made
