"""Play the signals of clouds on a node, from the same table by which the controller reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email.utils import format_datetime
from types import MappingProxyType

from elastic.kube.client import Kube, Patch
from elastic.kube.nodes import Effect, Taint, set_taint
from elastic.kube.resources import NODES, Object
from elastic.signals.seen import on_node
from elastic.signals.signal import Deadline, DisruptionSignal, Meaning, On
from elastic.signals.table import AKS, AUTOSCALER, AWS, BUILT_IN, GKE, KARPENTER

EVENT = "spot-itn-0123456789abcdef"
SPOT_LABELS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        AWS: {"aws-node-termination-handler/action": "cordon-and-drain", "aws-node-termination-handler/event-id": EVENT},
        GKE: {"cloud.google.com/gke-spot": "true"},
        AKS: {"kubernetes.azure.com/scalesetpriority": "spot"},
        KARPENTER: {"karpenter.sh/capacity-type": "spot"},
    }
)


def why_not(signal: DisruptionSignal) -> str:
    """Return why a signal is not played; empty if it is played."""
    if signal.source not in (AWS, GKE, AKS, KARPENTER, AUTOSCALER) or not signal.on.is_of_node:
        return "it is no cloud's signal on a node"
    if signal.key == "Ready":
        return "the condition Ready is the node agent's own"
    if signal.meaning is Meaning.INFORM and signal.effect == Effect.NO_EXECUTE:
        return "a cloud gives its taint to nodes without pods; on another node it would end them"
    return ""


PLAYABLE: Mapping[str, DisruptionSignal] = MappingProxyType({row.name: row for row in BUILT_IN if not why_not(row)})
NOT_PLAYED: Mapping[str, str] = MappingProxyType({row.name: why for row in BUILT_IN if (why := why_not(row))})
"""The reason why a signal is not played, by its name."""
SHORT: Mapping[str, str] = MappingProxyType(
    {"aws": "aws-spot", "gcp": "gke-termination", "azure": "aks-remediator", "karpenter": "karpenter-disrupted"}
)
LOSS_S: Mapping[str, float] = MappingProxyType({"gke-termination": 30.0})
"""Seconds from the signal to the loss of the machine, for signals after which pods have less time than that."""
LOOK_EVERY_S = 1.0
SAY_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Played:
    """The taint, condition, annotations and labels of a signal on a node, and the words for people."""

    words: str
    taint: Taint | None = None
    condition: Object | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


def as_seen(signal: DisruptionSignal, *, now: datetime, left_s: float | None) -> Played:
    """Return the signal as its cloud gives it now. The loss comes after `left_s` seconds, or after the signal's usual time."""
    lost_at = now + timedelta(seconds=signal.lead_s if left_s is None else left_s)
    given = str(int((lost_at - timedelta(seconds=signal.lead_s)).timestamp()))
    labels = dict(SPOT_LABELS.get(signal.source, {}))
    if signal.deadline is Deadline.LABEL:
        labels[signal.deadline_key] = given
    if signal.on is On.NODE_ANNOTATION:
        return Played(f"annotation {signal.key}", annotations={signal.key: lost_at.strftime("%Y-%m-%dT%H:%M:%SZ")}, labels=labels)
    if signal.on is On.NODE_CONDITION:
        message = f"{signal.message} Scheduled: {format_datetime(lost_at, usegmt=True)}"
        stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {"type": signal.key, "status": signal.value, "reason": signal.reason or signal.key, "message": message}
        times = {"lastTransitionTime": stamp, "lastHeartbeatTime": stamp}
        return Played(f"condition {signal.key}, {message}", condition=condition | times, labels=labels)
    value = signal.value or {Deadline.VALUE: given, Deadline.LABEL: EVENT}.get(signal.deadline, "")
    taint = Taint(signal.key, value, Effect(signal.effect or Effect.NO_SCHEDULE))
    return Played(f"taint {taint}", taint=taint, labels=labels)


async def show(kube: Kube, node: str, played: Played, *, take_back: bool = False) -> None:
    """Write the signal to the node, or take it back."""
    if played.taint is not None:
        taint = Taint(played.taint.key, played.taint.value, played.taint.effect, is_removed=take_back)
        await set_taint(kube, node, taint, labels=None if take_back else dict(played.labels))
        return
    annotations = {key: None if take_back else value for key, value in played.annotations.items()}
    metadata: Object = {"annotations": annotations} | ({} if take_back else {"labels": dict(played.labels)})
    await kube.patch(NODES, node, {"metadata": metadata}, kind=Patch.MERGE)
    if played.condition is not None:
        condition = played.condition | ({"status": "False", "message": ""} if take_back else {})
        await kube.patch(NODES, node, {"status": {"conditions": [condition]}}, kind=Patch.STRATEGIC, subresource="status")


async def is_taken_back(
    kube: Kube, node: str, signal: DisruptionSignal, *, within_s: float, say: Callable[[float], None] = lambda left_s: None
) -> bool:
    """Wait until the node does not show the signal any more, and return whether that came true in time.

    `say` gets the seconds left now and then. A node that is gone took nothing back.
    """
    loop = asyncio.get_running_loop()
    said = loop.time()
    end = said + within_s
    while (left_s := end - loop.time()) > 0:
        await asyncio.sleep(min(LOOK_EVERY_S, left_s))
        found = await kube.find(NODES, node)
        if found is not None and not on_node((signal,), found):
            return True
        if loop.time() - said >= SAY_EVERY_S:
            said = loop.time()
            say(max(0.0, end - said))
    return False
