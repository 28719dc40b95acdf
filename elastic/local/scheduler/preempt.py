"""Chooses whom a more important pod may displace: on which node, and which pods, as few and as unimportant as will do. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from elastic.kube.placement import Candidate, fits_but_for_room, requests, room

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Preemption:
    """The node and those that have to leave it; none if no preemption helps."""

    node: str
    victims: tuple[Object, ...]


def priority(pod: Object) -> int:
    return int(pod["spec"].get("priority") or 0)


def preempt(pod: Object, nodes: Sequence[Candidate]) -> Preemption | None:
    if pod["spec"].get("preemptionPolicy") == "Never":
        return None
    options = []
    for node in nodes:
        victims = _victims(pod, node)
        if victims is not None:
            options.append((max(map(priority, victims), default=0), len(victims), node.name, victims))
    if not options:
        return None
    _, _, name, victims = min(options, key=lambda option: option[:3])
    return Preemption(name, tuple(victims))


def waits_for_victims(pod: Object, nodes: Iterable[Candidate]) -> bool:
    """Whether room is being made for the pod already: less important pods are leaving the node that was chosen for it."""
    chosen = (pod.get("status") or {}).get("nominatedNodeName")
    return any(
        node.name == chosen and any("deletionTimestamp" in other["metadata"] and priority(other) < priority(pod) for other in node.pods)
        for node in nodes
    )


def _victims(pod: Object, node: Candidate) -> list[Object] | None:
    """All less important pods leave in thought; then as many as possible, the most important first, are let back in."""
    if not fits_but_for_room(pod, node):
        return None
    lesser = [other for other in node.pods if priority(other) < priority(pod)]
    gone = {other["metadata"]["uid"] for other in lesser}
    if not lesser or not _fits(pod, node, gone):
        return None
    # Among equals the one that has run longest stays.
    for other in sorted(lesser, key=lambda other: (-priority(other), other["metadata"].get("creationTimestamp", ""))):
        uid = other["metadata"]["uid"]
        if _fits(pod, node, gone - {uid}):
            gone.discard(uid)
    return [other for other in lesser if other["metadata"]["uid"] in gone]


def _fits(pod: Object, node: Candidate, gone: set[str]) -> bool:
    free = room(node, without=gone)
    return all(amount <= free.get(name, Fraction(0)) for name, amount in requests(pod).items() if amount)
