"""Services: defaults, validation, and the cluster address and node ports that the server hands out."""

from __future__ import annotations

from typing import Any

from elastic.local.apiserver import names, rows
from elastic.local.apiserver.errors import Cause, Json, bad, duplicate, required, unsupported
from elastic.local.apiserver.resources import Strategy

_RANGE = "must be between 1 and 65535, inclusive"


def _causes(spec: Json) -> list[Cause]:
    out: list[Cause] = []
    kind, ports = spec["type"], spec.get("ports") or []
    if kind not in ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort"):
        out.append(unsupported("spec.type", kind, ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")))
    if kind == "ExternalName":
        return out if spec.get("externalName") else [*out, required("spec.externalName")]
    if not ports and spec.get("clusterIP") != "None":
        out.append(required("spec.ports"))
    seen: set[str] = set()
    for i, port in enumerate(ports):
        out += _port_causes(port, f"spec.ports[{i}]", alone=len(ports) == 1, seen=seen)
    return out


def _port_causes(port: Json, path: str, *, alone: bool, seen: set[str]) -> list[Cause]:
    out: list[Cause] = []
    name = port.get("name", "")
    if not name and not alone:
        out.append(required(f"{path}.name"))
    elif name:
        out += names.label_causes(name, f"{path}.name")
        if name in seen:
            out.append(duplicate(f"{path}.name", name))
        seen.add(name)
    for key in ("port", "targetPort"):
        number = port.get(key, 0)
        if isinstance(number, int) and not 1 <= number <= 65535:
            out.append(bad(f"{path}.{key}", number, _RANGE))
    if port.get("protocol") not in ("SCTP", "TCP", "UDP"):
        out.append(unsupported(f"{path}.protocol", port.get("protocol"), ("SCTP", "TCP", "UDP")))
    return out


class Services(Strategy):
    has_status = True
    answers_deleted = True

    def default(self, obj: Json, /) -> None:
        spec = obj.setdefault("spec", {})
        kind = spec.setdefault("type", "ClusterIP")
        spec.setdefault("sessionAffinity", "None")
        for port in spec.get("ports") or ():
            port.setdefault("protocol", "TCP")
            if port.get("targetPort") in (None, "", 0):
                port["targetPort"] = port.get("port", 0)
        if kind != "ExternalName":
            spec.setdefault("internalTrafficPolicy", "Cluster")
        if kind in ("NodePort", "LoadBalancer"):
            spec.setdefault("externalTrafficPolicy", "Cluster")
        if kind == "LoadBalancer":
            spec.setdefault("allocateLoadBalancerNodePorts", True)

    def prepare_create(self, obj: Json, /) -> None:
        obj["status"] = {"loadBalancer": {}}

    def name_causes(self, name: str, path: str) -> list[Cause]:
        return names.label_causes(name, path)

    def validate(self, obj: Json, /) -> list[Cause]:
        return _causes(obj["spec"])

    def change_causes(self, new: Json, old: Json, /) -> list[Cause]:
        before, after = old["spec"], new["spec"]
        if "ExternalName" in (before["type"], after["type"]) or before.get("clusterIP") == after.get("clusterIP"):
            return []
        return [bad("spec.clusterIPs[0]", after.get("clusterIPs"), "may not change once set")]

    def fields(self, obj: Json, /) -> dict[str, str]:
        spec = obj.get("spec") or {}
        return {"spec.clusterIP": spec.get("clusterIP", ""), "spec.type": spec.get("type", "")}

    def selectable(self) -> tuple[str, ...]:
        return ("spec.clusterIP", "spec.type")

    def columns(self) -> list[Json]:
        return rows.SERVICE

    def cells(self, obj: Json, /) -> list[Any]:
        return rows.service(obj)
