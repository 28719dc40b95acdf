"""Make columns and cells of the kinds that people list most. All other kinds show name and age."""

from __future__ import annotations

from typing import Any

from elastic.local.apiserver.errors import Json
from elastic.local.apiserver.tables import age, column

NAME, AGE = column("Name", format="name"), column("Age")

SERVICE = [NAME, column("Type"), column("Cluster-IP"), column("External-IP"), column("Port(s)"), AGE, column("Selector", priority=1)]
CONFIG_MAP = [NAME, column("Data"), AGE]
SECRET = [NAME, column("Type"), column("Data", "integer"), AGE]
NAMESPACE = [NAME, column("Status"), AGE]
EVENT = [
    column("Last Seen"),
    column("Type"),
    column("Reason"),
    column("Object"),
    column("Subobject", priority=1),
    column("Source", priority=1),
    column("Message"),
    column("First Seen", priority=1),
    column("Count", "integer", priority=1),
    column("Name", priority=1, format="name"),
]
NODE = [
    NAME,
    column("Status"),
    column("Roles"),
    AGE,
    column("Version"),
    column("Internal-IP", priority=1),
    column("External-IP", priority=1),
    column("OS-Image", priority=1),
    column("Kernel-Version", priority=1),
    column("Container-Runtime", priority=1),
]
ACCOUNT = [NAME, AGE]
BUDGET = [NAME, column("Min Available"), column("Max Unavailable"), column("Allowed Disruptions", "integer"), AGE]
AUTOSCALER = [NAME, column("Reference"), column("Targets"), column("MinPods"), column("MaxPods"), column("Replicas"), AGE]
LEASE = [NAME, column("Holder"), AGE]
PRIORITY = [NAME, column("Value", "integer"), column("Global-Default", "boolean"), AGE, column("PreemptionPolicy")]


def _created(obj: Json) -> str:
    return age(obj["metadata"].get("creationTimestamp"))


def service(obj: Json) -> list[Any]:
    spec = obj.get("spec") or {}
    ports = [
        f"{p['port']}{':' + str(p['nodePort']) if p.get('nodePort') else ''}/{p.get('protocol', 'TCP')}" for p in spec.get("ports") or ()
    ]
    selector = ",".join(f"{k}={v}" for k, v in sorted((spec.get("selector") or {}).items()))
    pending = "<pending>" if spec.get("type") == "LoadBalancer" else "<none>"
    external = spec.get("externalName") or ",".join(spec.get("externalIPs") or ()) or pending
    address = spec.get("clusterIP") or "<none>"
    return [obj["metadata"]["name"], spec.get("type"), address, external, ",".join(ports) or "<none>", _created(obj), selector or "<none>"]


def config_map(obj: Json) -> list[Any]:
    return [obj["metadata"]["name"], str(len(obj.get("data") or ()) + len(obj.get("binaryData") or ())), _created(obj)]


def secret(obj: Json) -> list[Any]:
    return [obj["metadata"]["name"], obj.get("type", ""), len(obj.get("data") or ()), _created(obj)]


def namespace(obj: Json) -> list[Any]:
    return [obj["metadata"]["name"], (obj.get("status") or {}).get("phase", ""), _created(obj)]


def event(obj: Json) -> list[Any]:
    involved, source = obj.get("involvedObject") or {}, obj.get("source") or {}
    first = obj.get("firstTimestamp") or obj.get("eventTime")
    last = obj.get("lastTimestamp") or (obj.get("series") or {}).get("lastObservedTime") or first
    component = source.get("component") or obj.get("reportingComponent") or ""
    where = f"{component}, {source['host']}" if source.get("host") else component
    count = obj.get("count") or (obj.get("series") or {}).get("count") or 1
    return [
        age(last),
        obj.get("type", ""),
        obj.get("reason", ""),
        f"{involved.get('kind', '').lower()}/{involved.get('name', '')}",
        involved.get("fieldPath", ""),
        where,
        (obj.get("message") or "").strip(),
        age(first),
        count,
        obj["metadata"]["name"],
    ]


def node(obj: Json) -> list[Any]:
    status, labels = obj.get("status") or {}, obj["metadata"].get("labels") or {}
    ready = next((c["status"] for c in status.get("conditions") or () if c["type"] == "Ready"), None)
    word = {"True": "Ready", None: "Unknown"}.get(ready, "NotReady")
    if (obj.get("spec") or {}).get("unschedulable"):
        word += ",SchedulingDisabled"
    prefix = "node-role.kubernetes.io/"
    roles = ",".join(sorted(k.removeprefix(prefix) for k in labels if k.startswith(prefix))) or "<none>"
    info = status.get("nodeInfo") or {}
    addresses = {a["type"]: a["address"] for a in status.get("addresses") or ()}
    return [
        obj["metadata"]["name"],
        word,
        roles,
        _created(obj),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", "<none>"),
        addresses.get("ExternalIP", "<none>"),
        info.get("osImage") or "<unknown>",
        info.get("kernelVersion") or "<unknown>",
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def account(obj: Json) -> list[Any]:
    return [obj["metadata"]["name"], _created(obj)]


def budget(obj: Json) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    least, most = spec.get("minAvailable", "N/A"), spec.get("maxUnavailable", "N/A")
    return [obj["metadata"]["name"], str(least), str(most), status.get("disruptionsAllowed", 0), _created(obj)]


def autoscaler(obj: Json) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    target = spec.get("scaleTargetRef") or {}
    return [
        obj["metadata"]["name"],
        f"{target.get('kind')}/{target.get('name')}",
        "<unknown>",
        str(spec.get("minReplicas", "<unset>")),
        str(spec.get("maxReplicas")),
        str(status.get("currentReplicas", 0)),
        _created(obj),
    ]


def lease(obj: Json) -> list[Any]:
    return [obj["metadata"]["name"], (obj.get("spec") or {}).get("holderIdentity", ""), _created(obj)]


def priority(obj: Json) -> list[Any]:
    return [obj["metadata"]["name"], obj.get("value", 0), bool(obj.get("globalDefault")), _created(obj), obj.get("preemptionPolicy", "")]
