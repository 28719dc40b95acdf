"""Answer for the three metrics APIs about one namespace, from the metrics of a scenario's step. Recorder and replay share it."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]
VERSIONS = {"metrics.k8s.io": "v1beta1", "custom.metrics.k8s.io": "v1beta2", "external.metrics.k8s.io": "v1beta1"}
_PATH = re.compile(r"/apis/(?P<group>[a-z.0-9]+)/(?P<version>v[a-z0-9]+)/namespaces/(?P<namespace>[^/]+)/(?P<rest>.+)")


def resources(group: str) -> Object:
    names = {"metrics.k8s.io": ("pods", "PodMetrics", ["get", "list"]), "custom.metrics.k8s.io": ("pods/rate", "MetricValueList", ["get"])}
    name, kind, verbs = names.get(group, ("queue", "ExternalMetricValueList", ["get"]))
    entry = {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": verbs}
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{group}/{VERSIONS[group]}", "resources": [entry]}


def namespace_of(path: str) -> str:
    found = _PATH.fullmatch(path)
    return found["namespace"] if found else ""


def answer(path: str, metrics: Object, *, now: float) -> tuple[int, Object]:
    found = _PATH.fullmatch(path)
    if found is None or metrics.get("status"):
        return _failed(metrics.get("status", 404), "InternalError" if metrics.get("status") else "NotFound", "the metrics server is upset")
    at = datetime.fromtimestamp(int(now) + metrics.get("at_s", 0), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    answered = {"metrics.k8s.io": _usage, "custom.metrics.k8s.io": _custom, "external.metrics.k8s.io": _external}[found["group"]]
    items = answered(found["namespace"], found["rest"].split("/"), metrics, at)
    if items is None:
        return _failed(404, "NotFound", f"the server could not find the metric {found['rest'].rpartition('/')[2]}")
    kinds = {"metrics.k8s.io": "PodMetricsList", "custom.metrics.k8s.io": "MetricValueList"}
    kind = kinds.get(found["group"], "ExternalMetricValueList")
    return 200, {"kind": kind, "apiVersion": f"{found['group']}/{found['version']}", "metadata": {}, "items": items}


def _failed(code: int, reason: str, message: str) -> tuple[int, Object]:
    return code, {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }


def _usage(namespace: str, rest: list[str], metrics: Object, at: str) -> list[Object]:
    return [
        {
            "metadata": {"name": name, "namespace": namespace},
            "timestamp": at,
            "window": "15s",
            "containers": [{"name": container, "usage": usage} for container, usage in containers.items()],
        }
        for name, containers in metrics.get("usage", {}).items()
    ]


def _custom(namespace: str, rest: list[str], metrics: Object, at: str) -> list[Object] | None:
    metric = rest[-1]
    if rest[0] == "pods":
        values = metrics.get("pods", {}).get(metric)
        described = {} if values is None else {("Pod", name): value for name, value in values.items()}
    else:
        values = metrics.get("object", {}).get(metric)
        described = {} if values is None else {("Thing", rest[-2]): values}
    if values is None:
        return None
    return [
        {
            "describedObject": {"kind": kind, "namespace": namespace, "name": name, "apiVersion": "/v1"},
            "metric": {"name": metric, "selector": None},
            "timestamp": at,
            "windowSeconds": 60,
            "value": value,
        }
        for (kind, name), value in described.items()
    ]


def _external(namespace: str, rest: list[str], metrics: Object, at: str) -> list[Object] | None:
    values = metrics.get("external", {}).get(rest[-1])
    if values is None:
        return None
    return [{"metricName": rest[-1], "metricLabels": {}, "timestamp": at, "windowSeconds": 60, "value": value} for value in values]
