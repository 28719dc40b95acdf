"""Serve metrics.k8s.io: ask the node agents for the use of pods and nodes at each request, as a metrics server asks kubelets.

Nothing is stored. A list leaves out pods whose agent does not answer in time or has not measured them yet.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import Any

from elastic.kube import quantity
from elastic.local.apiserver import lists, tables
from elastic.local.apiserver.calls import Call
from elastic.local.apiserver.errors import Json, StatusError, not_found
from elastic.local.apiserver.kubelet import Kubelets
from elastic.local.apiserver.objects import now_text
from elastic.local.apiserver.resources import Registry, ResourceType, Strategy
from elastic.local.apiserver.store import Entry, Store

GROUP, VERSION = "metrics.k8s.io", "v1beta1"


class Measured(Strategy):
    """Shows the objects as a metrics server does."""

    def columns(self) -> list[Json]:
        return [tables.column("Name", format="name"), *(tables.column(name) for name in ("CPU", "Memory", "Window"))]

    def cells(self, obj: Json, /) -> list[Any]:
        used = [obj["usage"]] if "usage" in obj else [container["usage"] for container in obj["containers"]]
        return [obj["metadata"]["name"], *_sums(used).values(), obj["window"]]


def kinds() -> list[ResourceType]:
    def measured(plural: str, kind: str, *, namespaced: bool) -> ResourceType:
        return ResourceType(GROUP, VERSION, plural, kind, namespaced, Measured(), verbs=("get", "list"))

    return [measured("nodes", "NodeMetrics", namespaced=False), measured("pods", "PodMetrics", namespaced=True)]


class Usages:
    def __init__(self, store: Store, registry: Registry, kubelets: Kubelets) -> None:
        self._store, self._registry, self._kubelets = store, registry, kubelets

    async def get(self, call: Call) -> Json:
        found = self._store.get(call.kind.plural, call.namespace, call.name)
        measured = await self._measure(call, [found]) if found is not None else []
        if not measured:
            name = f"{call.namespace}/{call.name}" if call.namespace else call.name
            raise not_found(GROUP, call.kind.kind.lower(), name)
        return {"kind": call.kind.kind, "apiVersion": call.kind.api_version, **measured[0]}

    async def chosen(self, call: Call) -> list[Json]:
        """Return the metrics of all objects that the selectors choose, without kind and version."""
        stored = self._registry.find("", "v1", call.kind.plural)
        assert stored is not None
        as_stored = Call(call.verb, stored, call.namespace, call.name, "", call.query, call.user)
        return await self._measure(call, lists.page(self._store, as_stored).entries)

    async def _measure(self, call: Call, entries: Iterable[Entry]) -> list[Json]:
        objects = [entry.load() for entry in entries]
        if call.kind.plural == "nodes":
            summaries = await self._summaries(o["metadata"]["name"] for o in objects)
            return [_node(o, summaries[name]) for o in objects if (name := o["metadata"]["name"]) in summaries]
        summaries = await self._summaries(o["spec"].get("nodeName") for o in objects)
        by_uid = {pod["podRef"]["uid"]: pod for summary in summaries.values() for pod in summary["pods"]}
        return [_pod(o, by_uid[uid]) for o in objects if (uid := o["metadata"]["uid"]) in by_uid]

    async def _summaries(self, nodes: Iterable[str | None]) -> dict[str, Json]:
        names = sorted({name for name in nodes if name})
        answers = await asyncio.gather(*(self._summary(name) for name in names))
        return {name: answer for name, answer in zip(names, answers, strict=True) if answer is not None}

    async def _summary(self, node: str) -> Json | None:
        try:
            return await self._kubelets.summary(node)
        except StatusError:
            return None


def _pod(pod: Json, summary: Json) -> Json:
    containers = [{"name": c["name"], "usage": _usage(c)} for c in summary["containers"]]
    return _metadata(pod) | _times(summary["containers"]) | {"containers": containers}


def _node(node: Json, summary: Json) -> Json:
    times = _times([container for pod in summary["pods"] for container in pod["containers"]] or [summary["node"]])
    return _metadata(node) | times | {"usage": _usage(summary["node"])}


def _metadata(obj: Json) -> Json:
    kept = {key: obj["metadata"][key] for key in ("name", "namespace", "labels") if key in obj["metadata"]}
    return {"metadata": {**kept, "creationTimestamp": now_text()}}


def _times(measured: list[Json]) -> Json:
    """Return a common time and window: the oldest time and the longest window."""
    window = max(m["cpu"].get("windowSeconds", 0) for m in measured)
    return {"timestamp": min(m["cpu"]["time"] for m in measured), "window": f"{window:g}s"}


def _usage(measured: Json) -> Json:
    cores, used = measured["cpu"]["usageNanoCores"], measured["memory"]["workingSetBytes"]
    return {"cpu": f"{cores}n" if cores else "0", "memory": f"{math.ceil(used / 1024)}Ki"}


def _sums(used: list[Json]) -> Json:
    cpu = sum(quantity.parse(u["cpu"]) for u in used)
    memory = sum(quantity.parse(u["memory"]) for u in used)
    return {"cpu": f"{math.ceil(cpu * 10**9)}n" if cpu else "0", "memory": f"{math.ceil(memory / 1024)}Ki"}
