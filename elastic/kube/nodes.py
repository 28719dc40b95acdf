"""Change a node through the API alone: taints, cordon and drain, as kubectl does them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from elastic.api.owners import owners_of
from elastic.api.reader import did_you_mean
from elastic.kube.client import Kube, Patch
from elastic.kube.errors import KubeError
from elastic.kube.resources import NODES, PODS, Object

EVICT_AGAIN_S = 5.0
LOOK_EVERY_S = 0.5
QUIET_S, AT_MOST_S = 5.0, 60.0
"""How long an eviction is silent at first, and later."""
TRIES = 10
NAMED = 10
"""Largest number of nodes that are listed if the named node does not exist."""

_TAINT = re.compile(r"(?P<key>[^=:]+?)(?:=(?P<value>[^:]*))?(?::(?P<effect>\w+))?(?P<gone>-)?\Z")


class Effect(StrEnum):
    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str = ""
    effect: Effect | None = Effect.NO_SCHEDULE
    """Effect of the taint. None means every effect, and is allowed only if a taint is removed."""
    is_removed: bool = False

    def __str__(self) -> str:
        value = f"={self.value}" if self.value else ""
        return f"{self.key}{value}" + (f":{self.effect.value}" if self.effect else "")


class TaintError(ValueError):
    """A taint that cannot be read; the text says how one is written."""


class NodeProblem(Exception):
    """The node could not be changed; the text says why."""


def parse_taint(text: str) -> Taint:
    """KEY[=VALUE]:EFFECT sets a taint, KEY[:EFFECT]- takes it away, as with kubectl."""
    found = _TAINT.match(text)
    effects = ", ".join(effect.value for effect in Effect)
    if found is None or (found["effect"] is None and not found["gone"]):
        raise TaintError(
            f"{text!r} is not a taint; write KEY=VALUE:EFFECT or KEY:EFFECT to set one, KEY- to remove one (effects: {effects})"
        )
    if found["effect"] and found["effect"] not in list(Effect):
        raise TaintError(f"{found['effect']!r} is not an effect of a taint; use one of {effects}")
    effect = Effect(found["effect"]) if found["effect"] else None
    return Taint(found["key"], found["value"] or "", effect, is_removed=bool(found["gone"]))


def with_taint(taints: list[Object], taint: Taint) -> list[Object]:
    """Return the list with this taint set or taken away. A taint of the same key and effect is replaced."""
    kept = [old for old in taints if old["key"] != taint.key or (taint.effect is not None and old.get("effect") != taint.effect)]
    if taint.is_removed or taint.effect is None:
        return kept
    return [*kept, {"key": taint.key, "effect": taint.effect.value} | ({"value": taint.value} if taint.value else {})]


async def set_taint(kube: Kube, name: str, taint: Taint, *, labels: dict[str, str] | None = None) -> None:
    """Write the whole list, and again if another client wrote in between."""
    for attempt in range(TRIES):
        node = await kube.get(NODES, name)
        taints = with_taint(node["spec"].get("taints") or [], taint)
        metadata: Object = {"resourceVersion": node["metadata"]["resourceVersion"]} | ({"labels": labels} if labels else {})
        try:
            await kube.patch(NODES, name, {"metadata": metadata, "spec": {"taints": taints}}, kind=Patch.MERGE)
            return
        except KubeError as error:
            if error.code != 409 or attempt == TRIES - 1:
                raise


def those_there(name: str, known: Iterable[str]) -> str:
    """Return the words about a node that does not exist. node-0 is not proposed for a lost node-1: it is another machine."""
    listed = sorted(known)
    alike = [node for node in listed if _without_numbers(node) != _without_numbers(name)]
    more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    return f"; nodes: {', '.join(listed[:NAMED]) or 'none'}{more}{did_you_mean(name, alike)}"


def _without_numbers(name: str) -> str:
    return re.sub("[0-9]+", "0", name)


async def check_node(kube: Kube, name: str) -> None:
    known = [node["metadata"]["name"] for node in (await kube.list(NODES)).items]
    if name not in known:
        raise NodeProblem(f"there is no node {name}{those_there(name, known)}")


async def cordon(kube: Kube, name: str, *, is_cordoned: bool = True) -> None:
    await kube.patch(NODES, name, {"spec": {"unschedulable": is_cordoned or None}}, kind=Patch.MERGE)


async def drain(kube: Kube, name: str, *, tell: Callable[[str], None], within_s: float) -> None:
    """Cordons the node and evicts its pods, each as often as its disruption budget makes necessary, until none is left."""
    await cordon(kube, name)
    tell(f"node {name} cordoned")
    try:
        async with asyncio.timeout(within_s):
            await _empty(kube, name, tell)
    except TimeoutError:
        left = ", ".join(_title(pod) for pod in await _pods(kube, name))
        raise NodeProblem(f"node {name} is not empty after {within_s:.0f} s; still there: {left}") from None


async def _empty(kube: Kube, name: str, tell: Callable[[str], None]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for pod in await _pods(kube, name):
            tasks.create_task(evict_pod(kube, pod, tell))


async def evict_pod(kube: Kube, pod: Object, tell: Callable[[str], None]) -> None:
    """Asks again while a disruption budget refuses, and returns when the pod is gone. The caller bounds the time."""
    metadata = pod["metadata"]
    where = {"namespace": metadata["namespace"], "name": metadata["name"]}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": where, "deleteOptions": {"preconditions": {"uid": metadata["uid"]}}}
    refused = ""
    while True:  # the caller's time-out bounds it
        try:
            await kube.create(PODS, body, namespace=metadata["namespace"], name=metadata["name"], subresource="eviction")
            break
        except KubeError as error:
            if error.code in (404, 409):  # gone, or another pod has the name by now
                return
            if error.code != 429:
                raise NodeProblem(f"{_title(pod)} cannot be evicted: {error.message}") from error
            if error.message != refused:
                refused = error.message
                tell(f"{_title(pod)} cannot go yet: {error.message}")
        await asyncio.sleep(EVICT_AGAIN_S)
    tell(f"{_title(pod)} evicted")
    loop = asyncio.get_running_loop()
    pause_s, said_at = QUIET_S, loop.time()
    while await _is_there(kube, metadata):  # the caller's time-out bounds it
        if loop.time() - said_at >= pause_s:
            tell(f"waits for {_title(pod)} to be gone from node {pod['spec'].get('nodeName', '')}")
            pause_s, said_at = min(2 * pause_s, AT_MOST_S), loop.time()
        await asyncio.sleep(LOOK_EVERY_S)
    tell(f"{_title(pod)} gone")


async def _is_there(kube: Kube, metadata: Object) -> bool:
    found = await kube.find(PODS, metadata["name"], namespace=metadata["namespace"])
    return found is not None and bool(found["metadata"]["uid"] == metadata["uid"])


async def _pods(kube: Kube, name: str) -> list[Object]:
    """Return the pods that a drain has to move, without pods that belong to the node itself."""
    listing = await kube.list(PODS, fields=f"spec.nodeName={name}")
    return [pod for pod in listing.items if not _stays(pod["metadata"])]


def _stays(metadata: Object) -> bool:
    return "kubernetes.io/config.mirror" in (metadata.get("annotations") or {}) or any(
        owner.kind == "DaemonSet" for owner in owners_of(metadata)
    )


def _title(pod: Object) -> str:
    return f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']}"
