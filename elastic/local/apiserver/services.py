"""Services: defaults, validation, and the cluster address and node ports that the server hands out."""

from __future__ import annotations

from elastic.local.apiserver import names
from elastic.local.apiserver.errors import Cause, Json
from elastic.local.apiserver.resources import Strategy


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
                port["targetPort"] = port.get("port")
        if kind != "ExternalName":
            spec.setdefault("internalTrafficPolicy", "Cluster")
            spec.setdefault("ipFamilyPolicy", "SingleStack")
            spec.setdefault("ipFamilies", ["IPv4"])
        if kind in ("NodePort", "LoadBalancer"):
            spec.setdefault("externalTrafficPolicy", "Cluster")
        if kind == "LoadBalancer":
            spec.setdefault("allocateLoadBalancerNodePorts", True)

    def prepare_create(self, obj: Json, /) -> None:
        obj["status"] = {"loadBalancer": {}}

    def name_causes(self, name: str, path: str) -> list[Cause]:
        return [Cause(path, "FieldValueInvalid", f'Invalid value: "{name}": {e}') for e in names.dns1035_errors(name)]

    def fields(self, obj: Json, /) -> dict[str, str]:
        spec = obj.get("spec") or {}
        return {"spec.clusterIP": spec.get("clusterIP", ""), "spec.type": spec.get("type", "")}

    def selectable(self) -> tuple[str, ...]:
        return ("spec.clusterIP", "spec.type")
