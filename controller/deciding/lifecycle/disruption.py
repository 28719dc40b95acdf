"""Decides who must leave because the cluster says so: by a pod's condition, by its deletion, by a taint of its node.
Taints are known by their keys. A plain cordon is no notice: `replica_slots.wanted` says when it brings a replacement.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType

from controller.watching.snapshot import Phase, Pod, Snapshot

GRACE_S = 30.0
"""What the cluster gives a pod that must go, where nothing says otherwise."""
LOST = frozenset({"node.kubernetes.io/unreachable", "node.kubernetes.io/out-of-service", "node.cloudprovider.kubernetes.io/shutdown"})
"""The node is gone already: nothing on it can be saved."""
NOTICE_S: Mapping[str, float] = MappingProxyType(
    {
        "aws-node-termination-handler/spot-itn": 120.0,
        "aws-node-termination-handler/scheduled-maintenance": 120.0,
        "aws-node-termination-handler/asg-lifecycle-termination": 120.0,
        "cloud.google.com/impending-node-termination": 25.0,
        "karpenter.sh/disrupted": 60.0,
        "karpenter.sh/disruption": 60.0,
        "remediator.kubernetes.azure.com/unschedulable": 30.0,
        "ToBeDeletedByClusterAutoscaler": 60.0,
    }
)


@dataclass(frozen=True, slots=True)
class Notice:
    """A worker must go: why, and by when at the latest."""

    reason: str
    by: datetime


def notices(snapshot: Snapshot) -> dict[str, Notice]:
    """By pod name, for every running pod that must go whatever we do."""
    found = {}
    for pod in snapshot.pods:
        if pod.phase is Phase.RUNNING and (notice := _notice(pod, snapshot)) is not None:
            found[pod.name] = notice
    return found


def _notice(pod: Pod, snapshot: Snapshot) -> Notice | None:
    now, node = snapshot.now, snapshot.nodes.get(pod.node)
    if pod.is_deleting:
        return Notice("it is being deleted", pod.gone_by or now + timedelta(seconds=GRACE_S))
    if pod.disruption:
        return Notice(pod.disruption, now + timedelta(seconds=GRACE_S))
    for taint in node.taints if node is not None else ():
        if taint in LOST:
            return Notice(f"its node has the taint {taint}", now)
        if taint in NOTICE_S:
            return Notice(f"its node has the taint {taint}", now + timedelta(seconds=NOTICE_S[taint]))
    return None
