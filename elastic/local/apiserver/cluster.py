"""Strategies of the plain core kinds: config maps, secrets, events, namespaces, nodes, service accounts."""

from __future__ import annotations

import base64
import re
from typing import Any

from elastic.local.apiserver import names, policyrows, rows
from elastic.local.apiserver.errors import Cause, Json, bad, forbidden_field, required, too_long, unsupported
from elastic.local.apiserver.resources import Strategy

MOST_DATA = 1 << 20


class WithStatus(Strategy):
    has_status = True


class Quotas(WithStatus):
    def columns(self) -> list[Json]:
        return policyrows.QUOTA

    def cells(self, obj: Json, /) -> list[Any]:
        return policyrows.quota(obj)


class ConfigMaps(Strategy):
    def validate(self, obj: Json, /) -> list[Cause]:
        return [*_data_causes(obj, "data"), *_data_causes(obj, "binaryData"), *_repeated(obj), *_size_causes(obj, "[]")]

    def change_causes(self, new: Json, old: Json, /) -> list[Cause]:
        return _immutable_causes(new, old, ("data", "binaryData"))

    def columns(self) -> list[Json]:
        return rows.CONFIG_MAP

    def cells(self, obj: Json, /) -> list[Any]:
        return rows.config_map(obj)


def _repeated(obj: Json) -> list[Cause]:
    both = set(obj.get("data") or ()) & set(obj.get("binaryData") or ())
    return [bad(f"data[{k}]", k, "duplicate of key present in binaryData") for k in sorted(both)]


def _data_causes(obj: Json, key: str) -> list[Cause]:
    rule = (
        "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', "
        "regex used for validation is '[-._a-zA-Z0-9]+')"
    )
    return [bad(f"{key}[{k}]", k, rule) for k in obj.get(key) or {} if not re.fullmatch(r"[-._a-zA-Z0-9]+", k)]


def _size_causes(obj: Json, field: str) -> list[Cause]:
    """Return the size of the values: of text as it is, of bytes decoded."""
    plain = sum(len(v.encode()) for v in (obj.get("data") or {}).values()) if field == "[]" else 0
    encoded = obj.get("binaryData") if field == "[]" else obj.get("data")
    size = plain + sum(len(v) * 3 // 4 for v in (encoded or {}).values())
    return [too_long(field, MOST_DATA)] if size > MOST_DATA else []


def _immutable_causes(new: Json, old: Json, keys: tuple[str, ...]) -> list[Cause]:
    if not old.get("immutable"):
        return []
    out = [] if new.get("immutable") else [forbidden_field("immutable", "field is immutable when `immutable` is set")]
    return out + [forbidden_field(k, "field is immutable when `immutable` is set") for k in keys if new.get(k) != old.get(k)]


class Secrets(Strategy):
    def fields(self, obj: Json, /) -> dict[str, str]:
        return {"type": obj.get("type", "")}

    def selectable(self) -> tuple[str, ...]:
        return ("type",)

    def prepare_create(self, obj: Json, /) -> None:
        _fold(obj)

    def prepare_update(self, new: Json, old: Json, /) -> None:
        _fold(new)

    def default(self, obj: Json, /) -> None:
        _fold(obj)
        obj.setdefault("type", "Opaque")

    def validate(self, obj: Json, /) -> list[Cause]:
        out = [*_data_causes(obj, "data"), *_size_causes(obj, "data")]
        wanted = {"kubernetes.io/tls": ("tls.crt", "tls.key"), "kubernetes.io/dockerconfigjson": (".dockerconfigjson",)}
        return out + [required(f"data[{k}]") for k in wanted.get(obj["type"], ()) if k not in (obj.get("data") or {})]

    def change_causes(self, new: Json, old: Json, /) -> list[Cause]:
        changed = [bad("type", new["type"], names.IMMUTABLE)] if new["type"] != old["type"] else []
        return changed + _immutable_causes(new, old, ("data",))

    def columns(self) -> list[Json]:
        return rows.SECRET

    def cells(self, obj: Json, /) -> list[Any]:
        return rows.secret(obj)


def _fold(obj: Json) -> None:
    """StringData is a way to write data, and is never stored."""
    plain = obj.pop("stringData", None)
    if plain:
        obj.setdefault("data", {}).update({k: base64.b64encode(v.encode()).decode() for k, v in plain.items()})


class Events(Strategy):
    FIELDS = (
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    )

    def validate(self, obj: Json, /) -> list[Cause]:
        involved, meta = obj.get("involvedObject") or {}, obj["metadata"]
        namespace = involved.get("namespace", "")
        if namespace != meta["namespace"] and not (not namespace and meta["namespace"] == "default"):
            return [bad("involvedObject.namespace", namespace, "does not match event.namespace")]
        if not obj.get("eventTime"):
            return []
        out = [required(k) for k in ("reportingComponent", "reportingInstance", "action", "reason") if not obj.get(k)]
        if not obj.get("reportingComponent"):
            out += [bad("reportingComponent", "", e) for e in names.qualified_errors("")]
        return out

    def fields(self, obj: Json, /) -> dict[str, str]:
        involved = obj.get("involvedObject") or {}
        out = {
            f"involvedObject.{k}": involved.get(k, "")
            for k in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
        }
        source = (obj.get("source") or {}).get("component") or obj.get("reportingComponent", "")
        return out | {
            "reason": obj.get("reason", ""),
            "type": obj.get("type", ""),
            "source": source,
            "reportingComponent": obj.get("reportingComponent", ""),
        }

    def selectable(self) -> tuple[str, ...]:
        return self.FIELDS

    def default(self, obj: Json, /) -> None:
        obj.setdefault("source", {})
        for key in ("firstTimestamp", "lastTimestamp", "eventTime"):
            obj.setdefault(key, None)
        obj.setdefault("reportingComponent", "")
        obj.setdefault("reportingInstance", "")

    def columns(self) -> list[Json]:
        return rows.EVENT

    def cells(self, obj: Json, /) -> list[Any]:
        return rows.event(obj)


_EVENT_NAMES = (
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
)


class NewEvents(Events):
    """events.k8s.io/v1: the same objects under other names."""

    def default(self, obj: Json, /) -> None:
        pass

    def validate(self, obj: Json, /) -> list[Cause]:
        return []

    def fields(self, obj: Json, /) -> dict[str, str]:
        return super().fields(self.to_storage(obj))

    def same_form(self, revision: int, /) -> bool:
        return False

    def to_storage(self, obj: Json, /) -> Json:
        out = {**obj, "apiVersion": "v1"}
        for new, core in _EVENT_NAMES:
            if new in out:
                out[core] = out.pop(new)
        Events.default(self, out)
        return out

    def from_storage(self, obj: Json, /) -> Json:
        out = dict(obj)
        for new, core in _EVENT_NAMES:
            if core in out:
                out[new] = out.pop(core)
        return {k: v for k, v in out.items() if not (k in ("reportingController", "reportingInstance") and not v)}


class Namespaces(Strategy):
    has_status = True

    def prepare_create(self, obj: Json, /) -> None:
        obj["status"] = {"phase": "Active"}
        finalizers = obj.setdefault("spec", {}).setdefault("finalizers", [])
        if "kubernetes" not in finalizers:
            finalizers.append("kubernetes")

    def prepare_update(self, new: Json, old: Json, /) -> None:
        super().prepare_update(new, old)
        new["spec"] = old.get("spec", {})

    def default(self, obj: Json, /) -> None:
        name = obj["metadata"].get("name")
        if name:
            obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = name

    def prepare_delete(self, obj: Json, /) -> None:
        obj.setdefault("status", {})["phase"] = "Terminating"

    def held(self, obj: Json, /) -> bool:
        return bool((obj.get("spec") or {}).get("finalizers"))

    def name_causes(self, name: str, path: str) -> list[Cause]:
        return names.label_causes(name, path)

    def fields(self, obj: Json, /) -> dict[str, str]:
        return {"status.phase": (obj.get("status") or {}).get("phase", "")}

    def selectable(self) -> tuple[str, ...]:
        return ("status.phase",)

    def columns(self) -> list[Json]:
        return rows.NAMESPACE

    def cells(self, obj: Json, /) -> list[Any]:
        return rows.namespace(obj)


_NODE_INFO = (
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
)


class Nodes(Strategy):
    has_status = True

    def prepare_create(self, obj: Json, /) -> None:
        """Keep the status: a node may be created with it."""

    def validate(self, obj: Json, /) -> list[Cause]:
        out = []
        for i, taint in enumerate((obj.get("spec") or {}).get("taints") or ()):
            if taint.get("effect") not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
                out.append(
                    unsupported(f"metadata.taints[{i}].effect", taint.get("effect", ""), ["NoSchedule", "PreferNoSchedule", "NoExecute"])
                )
        return out

    def fields(self, obj: Json, /) -> dict[str, str]:
        return {"spec.unschedulable": str(bool((obj.get("spec") or {}).get("unschedulable"))).lower()}

    def selectable(self) -> tuple[str, ...]:
        return ("spec.unschedulable",)

    def default(self, obj: Json, /) -> None:
        spec, status = obj.setdefault("spec", {}), obj.setdefault("status", {})
        if spec.get("podCIDR"):
            spec.setdefault("podCIDRs", [spec["podCIDR"]])
        status.setdefault("daemonEndpoints", {"kubeletEndpoint": {"Port": 0}})
        status.setdefault("nodeInfo", dict.fromkeys(_NODE_INFO, ""))
        if "capacity" in status and "allocatable" not in status:
            status["allocatable"] = dict(status["capacity"])

    def columns(self) -> list[Json]:
        return rows.NODE

    def cells(self, obj: Json, /) -> list[Any]:
        return rows.node(obj)


class ServiceAccounts(Strategy):
    answers_deleted = True

    def columns(self) -> list[Json]:
        return rows.ACCOUNT

    def cells(self, obj: Json, /) -> list[Any]:
        return rows.account(obj)
