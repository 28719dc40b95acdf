"""Fill defaults into a pod's specification, in pods and templates, and find its quality-of-service class."""

from __future__ import annotations

from typing import Any

from elastic.kube import quantity
from elastic.local.apiserver.errors import Json

_VOLUME_MODES = ("configMap", "secret", "projected", "downwardAPI")


def default_pod_spec(spec: Json) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    if "serviceAccountName" in spec or "serviceAccount" in spec:
        name = spec.get("serviceAccountName") or spec["serviceAccount"]
        spec["serviceAccountName"] = spec["serviceAccount"] = name
    for key in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(key) or ():
            _default_container(container, host_network=bool(spec.get("hostNetwork")))
    for volume in spec.get("volumes") or ():
        _default_volume(volume)
    for c in spec.get("topologySpreadConstraints") or ():
        c.setdefault("whenUnsatisfiable", "DoNotSchedule")


def default_requests(spec: Json) -> None:
    """Set missing requests of containers to their limits. This happens in pods, but not in templates."""
    for key in ("initContainers", "containers"):
        for container in spec.get(key) or ():
            limits = (container.get("resources") or {}).get("limits") or {}
            for name, amount in limits.items():
                container["resources"].setdefault("requests", {}).setdefault(name, amount)


def _default_container(c: Json, *, host_network: bool) -> None:
    c.setdefault("resources", {})
    c.setdefault("terminationMessagePath", "/dev/termination-log")
    c.setdefault("terminationMessagePolicy", "File")
    image = c.get("image", "")
    if "imagePullPolicy" not in c:
        tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
        pinned = "@" in image or tag not in ("", "latest")
        c["imagePullPolicy"] = "IfNotPresent" if pinned else "Always"
    for port in c.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if host_network:
            port.setdefault("hostPort", port.get("containerPort"))
    for env in c.get("env") or ():
        source = env.get("valueFrom") or {}
        if "fieldRef" in source:
            source["fieldRef"].setdefault("apiVersion", "v1")
        if "resourceFieldRef" in source:
            source["resourceFieldRef"].setdefault("divisor", "0")
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe in c:
            _default_probe(c[probe])
    for hook in (c.get("lifecycle") or {}).values():
        if isinstance(hook, dict) and "httpGet" in hook:
            _default_http(hook["httpGet"])


def _default_probe(probe: Json) -> None:
    for key, value in (("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)):
        if not probe.get(key):
            probe[key] = value
    if "httpGet" in probe:
        _default_http(probe["httpGet"])
    if "grpc" in probe:
        probe["grpc"].setdefault("service", "")


def _default_http(get: Json) -> None:
    get.setdefault("path", "/")
    get.setdefault("scheme", "HTTP")


def _default_volume(volume: Json) -> None:
    if len(volume) == 1:
        volume["emptyDir"] = {}
    for source in _VOLUME_MODES:
        if source in volume:
            volume[source].setdefault("defaultMode", 420)
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")
    items: list[Any] = list((volume.get("downwardAPI") or {}).get("items") or ())
    for source in (volume.get("projected") or {}).get("sources") or ():
        items += (source.get("downwardAPI") or {}).get("items") or ()
        if "serviceAccountToken" in source:
            source["serviceAccountToken"].setdefault("expirationSeconds", 3600)
    for item in items:
        if "fieldRef" in item:
            item["fieldRef"].setdefault("apiVersion", "v1")
        if "resourceFieldRef" in item:
            item["resourceFieldRef"].setdefault("divisor", "0")


def qos_class(spec: Json) -> str:
    requests: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    guaranteed = True
    for c in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        resources = c.get("resources") or {}
        for into, source in ((requests, resources.get("requests")), (limits, resources.get("limits"))):
            for name, amount in (source or {}).items():
                value = quantity.parse(amount)
                if name in ("cpu", "memory") and value:
                    into[name] = into.get(name, 0) + value
        here = {n for n, a in (resources.get("limits") or {}).items() if n in ("cpu", "memory") and quantity.parse(a)}
        guaranteed = guaranteed and here == {"cpu", "memory"}
    if not requests and not limits:
        return "BestEffort"
    same = all(limits.get(n) == v for n, v in requests.items()) and requests.keys() == limits.keys()
    return "Guaranteed" if guaranteed and same else "Burstable"
