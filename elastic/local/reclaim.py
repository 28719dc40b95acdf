"""Knows how the clouds announce that they take a spot machine back: which taint and labels, how many seconds ahead. Does nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from elastic.kube.nodes import Taint

EVENT = "spot-itn-0123456789abcdef"


@dataclass(frozen=True, slots=True)
class Notice:
    """What is seen of a machine that is about to be taken back."""

    taint: Taint
    seconds: int
    """From the notice to the loss."""
    labels: Mapping[str, str]


NOTICES: Mapping[str, Notice] = MappingProxyType(
    {
        "aws": Notice(
            Taint("aws-node-termination-handler/spot-itn", EVENT),
            120,
            {"aws-node-termination-handler/action": "cordon-and-drain", "aws-node-termination-handler/event-id": EVENT},
        ),
        "gcp": Notice(Taint("cloud.google.com/impending-node-termination"), 30, {"cloud.google.com/gke-spot": "true"}),
        "azure": Notice(Taint("remediator.kubernetes.azure.com/unschedulable"), 30, {"kubernetes.azure.com/scalesetpriority": "spot"}),
        "karpenter": Notice(Taint("karpenter.sh/disrupted"), 120, {"karpenter.sh/capacity-type": "spot"}),
    }
)
