"""Ask the metrics APIs for an autoscaler's metrics: metrics.k8s.io for CPU and memory, and the APIs of other servers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import aiohttp

from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.local.controllers.autoscaling.amounts import thousandths
from elastic.local.controllers.autoscaling.pods import Problem, Value, seconds
from elastic.local.controllers.autoscaling.sources import Answer
from elastic.local.controllers.discovery import Kinds
from elastic.local.selectors import written

Object = dict[str, Any]
RESOURCE, CUSTOM, EXTERNAL = "metrics.k8s.io", "custom.metrics.k8s.io", "external.metrics.k8s.io"
DEFAULT_WINDOW_S = 60.0
ANSWER_S = 10.0
_DURATION = re.compile(r"([0-9.]+)(h|ms|us|ns|m|s)")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


class Asking:
    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    async def answer(self, metric: Object, *, namespace: str, selector: str, kinds: Kinds) -> Answer:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._answer(metric, namespace, selector, kinds)
        except (KubeError, aiohttp.ClientError, TimeoutError) as error:
            words = error.message if isinstance(error, KubeError) else str(error) or "the request timed out"
            return Problem(f"unable to fetch metrics from {_API[metric['type']]} metrics API: {words}")
        except (KeyError, TypeError, ValueError) as error:
            return Problem(f"unable to fetch metrics from {_API[metric['type']]} metrics API: the answer cannot be read: {error!r}")

    async def _answer(self, metric: Object, namespace: str, selector: str, kinds: Kinds) -> Answer:
        match metric["type"]:
            case "Resource" | "ContainerResource":
                source = metric.get("resource") or metric["containerResource"]
                return await self._usage(namespace, selector, source["name"], source.get("container", ""))
            case "Pods":
                return await self._pods(namespace, selector, metric["pods"]["metric"], kinds)
            case "Object":
                return await self._object(namespace, metric["object"], kinds)
        return await self._external(namespace, metric["external"]["metric"])

    async def _usage(self, namespace: str, selector: str, resource: str, container: str) -> Answer:
        path = f"/apis/{RESOURCE}/v1beta1/namespaces/{namespace}/pods"
        items = (await self._get(path, labelSelector=selector)).get("items") or []
        if not items:
            return Problem("no metrics returned from resource metrics API")
        found = {i["metadata"]["name"]: _used(i, resource, container) for i in items}
        return {name: value for name, value in found.items() if value is not None}

    async def _pods(self, namespace: str, selector: str, metric: Object, kinds: Kinds) -> Answer:
        version = _version(kinds)
        if isinstance(version, Problem):
            return version
        path = f"/apis/{CUSTOM}/{version}/namespaces/{namespace}/pods/*/{quote(metric['name'], safe='')}"
        items = (await self._get(path, labelSelector=selector, **_selected("metricLabelSelector", metric))).get("items") or []
        if not items:
            return Problem("no metrics returned from custom metrics API")
        return {
            i["describedObject"]["name"]: Value(
                thousandths(i["value"]), seconds(i["timestamp"]), float(i.get("windowSeconds") or DEFAULT_WINDOW_S)
            )
            for i in items
        }

    async def _object(self, namespace: str, source: Object, kinds: Kinds) -> Answer:
        version = _version(kinds)
        if isinstance(version, Problem):
            return version
        described, metric = source["describedObject"], source["metric"]
        group = described.get("apiVersion", "").rpartition("/")[0]
        name = quote(metric["name"], safe="")
        if (group, described["kind"]) == ("", "Namespace"):
            path = f"/apis/{CUSTOM}/{version}/namespaces/{namespace}/metrics/{name}"
        else:
            resource = kinds.every.get((group, described["kind"]))
            if resource is None:
                kind = f"{described['kind']}.{group}" if group else described["kind"]
                return Problem(
                    f'unable to fetch metrics from custom metrics API: unable to map kind {kind} to resource: no matches for kind "{kind}"'
                )
            plural = f"{resource.plural}.{group}" if group else resource.plural
            path = f"/apis/{CUSTOM}/{version}/namespaces/{namespace}/{plural}/{described['name']}/{name}"
        items = (await self._get(path, **_selected("metricLabelSelector", metric))).get("items") or []
        if len(items) != 1:
            words = f"the custom metrics API server returned {len(items)} results when we asked for exactly one"
            return Problem(f"unable to fetch metrics from custom metrics API: {words}")
        return [thousandths(items[0]["value"])]

    async def _external(self, namespace: str, metric: Object) -> Answer:
        path = f"/apis/{EXTERNAL}/v1beta1/namespaces/{namespace}/{quote(metric['name'], safe='')}"
        items = (await self._get(path, **_selected("labelSelector", metric))).get("items") or []
        if not items:
            return Problem("no metrics returned from external metrics API")
        return [thousandths(i["value"]) for i in items]

    async def _get(self, path: str, **params: str) -> Object:
        return await self._kube.request("GET", path, params=params or None)


_API = {"Resource": "resource", "ContainerResource": "resource", "Pods": "custom", "Object": "custom", "External": "external"}


def _version(kinds: Kinds) -> str | Problem:
    """Return the newest served version of the custom metrics API. v1beta2 also names the metric's selector."""
    served = kinds.versions.get(CUSTOM, ())
    known = [version for version in ("v1beta2", "v1beta1") if version in served]
    return known[0] if known else Problem(f"unable to fetch metrics from custom metrics API: no custom metrics API ({CUSTOM}) registered")


def _selected(parameter: str, metric: Object) -> dict[str, str]:
    text = written(metric.get("selector"))
    return {parameter: text} if text else {}


def _used(item: Mapping[str, Any], resource: str, container: str) -> Value | None:
    """Return the use of one container or of all. Return None if a container was not measured."""
    chosen = [c for c in item["containers"] if container in ("", c["name"])]
    if not chosen or any(resource not in c["usage"] for c in chosen):
        return None
    amount = sum(thousandths(c["usage"][resource]) for c in chosen)
    return Value(amount, seconds(item["timestamp"]), duration_s(item["window"]))


def duration_s(text: str) -> float:
    """Return the seconds of a duration in Go's form, such as 1m30.5s."""
    return sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(text))
