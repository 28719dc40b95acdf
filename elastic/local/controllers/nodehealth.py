"""Decide the consequences of a node's reports or silence: its conditions and taints, and which pods must leave, and when. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from elastic.kube.placement import tolerates

Object = dict[str, Any]
UNREACHABLE = "node.kubernetes.io/unreachable"
NOT_READY = "node.kubernetes.io/not-ready"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
OURS = (UNREACHABLE, NOT_READY, UNSCHEDULABLE)
OWN_SILENCE_S = 10.0
CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")


@dataclass(frozen=True, slots=True)
class Eviction:
    """The time at which a taint drives a pod out; None if it may stay."""

    at: float | None


def seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def listening_since(since: float, *, looked_at: float, now: float) -> float:
    """Return the time from which a node's silence counts.

    After our own start, and after a pause of this process, for example because the machine slept, agents need a moment to report again.
    """
    return now if now - looked_at > OWN_SILENCE_S else since


def silent(node: Object, lease: Object | None, *, now: float, grace_s: float) -> bool:
    """Return whether the node has been silent for too long.

    The newer of its lease and its status counts. We see both at different times, and a node that has come back must not count as silent
    because of its old lease.
    """
    renewed = ((lease or {}).get("spec") or {}).get("renewTime")
    told = (entry.get("lastHeartbeatTime") for entry in (node.get("status") or {}).get("conditions") or () if entry["type"] == "Ready")
    heard = max(seconds(text) for text in (renewed, *told, node["metadata"]["creationTimestamp"]) if text)
    return now - heard > grace_s


def unknown_conditions(node: Object, *, now: float) -> list[Object]:
    """Return the new conditions of a silent node, without those that are Unknown already."""
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    said = {entry["type"]: entry for entry in (node.get("status") or {}).get("conditions") or ()}
    return [
        {
            "type": kind,
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "message": "Kubelet stopped posting node status.",
            "lastHeartbeatTime": said.get(kind, {}).get("lastHeartbeatTime", stamp),
            "lastTransitionTime": stamp,
        }
        for kind in CONDITIONS
        if said.get(kind, {}).get("status") != "Unknown"
    ]


def taints(node: Object, *, now: float) -> list[Object] | None:
    """Return the taints that the node should have, or None if it has them."""
    present = list((node.get("spec") or {}).get("taints") or ())
    ready = next((e["status"] for e in (node.get("status") or {}).get("conditions") or () if e["type"] == "Ready"), "Unknown")
    wanted: list[tuple[str, str]] = []
    if ready == "Unknown":
        wanted = [(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")]
    elif ready == "False":
        wanted = [(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")]
    if (node.get("spec") or {}).get("unschedulable"):
        wanted.append((UNSCHEDULABLE, "NoSchedule"))
    ours = {(taint["key"], taint["effect"]): taint for taint in present if taint["key"] in OURS}
    if ours.keys() == set(wanted):
        return None
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kept = [taint for taint in present if taint["key"] not in OURS]
    return kept + [ours.get(key, {"key": key[0], "effect": key[1], "timeAdded": stamp}) for key in wanted]


def eviction(pod: Object, of_node: Iterable[Object], *, now: float) -> Eviction:
    """Decide when a pod must leave because of NoExecute taints: at once, after the shortest toleration, or never."""
    at: float | None = None
    for taint in of_node:
        if taint.get("effect") != "NoExecute":
            continue
        tolerations = [entry for entry in pod["spec"].get("tolerations") or () if tolerates(entry, taint)]
        if not tolerations:
            return Eviction(now)
        limits = [float(entry["tolerationSeconds"]) for entry in tolerations if entry.get("tolerationSeconds") is not None]
        if limits:
            since = seconds(taint["timeAdded"]) if taint.get("timeAdded") else now
            due = since + max(0.0, min(limits))
            at = due if at is None else min(at, due)
    return Eviction(at)
