"""Choose the pods that a more important pod may displace, and the node: as few and as unimportant pods as possible.

A choice against a disruption budget is made only if no other helps. Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from elastic.kube.placement import Candidate, fits_but_for_room, requests, room
from elastic.local.selectors import matches

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Preemption:
    """The node, and the pods that must leave it."""

    node: str
    victims: tuple[Object, ...]


def priority(pod: Object) -> int:
    return int(pod["spec"].get("priority") or 0)


def preempt(pod: Object, nodes: Sequence[Candidate], budgets: Sequence[Object] = ()) -> Preemption | None:
    if pod["spec"].get("preemptionPolicy") == "Never":
        return None
    options = []
    for node in nodes:
        victims = _victims(pod, node, budgets)
        if victims is not None:
            against = len(_against(victims, budgets))
            options.append((against, max(map(priority, victims), default=0), len(victims), node.name, victims))
    if not options:
        return None
    *_, name, victims = min(options, key=lambda option: option[:4])
    return Preemption(name, tuple(victims))


def waits_for_victims(pod: Object, nodes: Iterable[Candidate]) -> bool:
    """Return whether less important pods are already leaving the node that was chosen for the pod."""
    chosen = (pod.get("status") or {}).get("nominatedNodeName")
    return any(
        node.name == chosen and any("deletionTimestamp" in other["metadata"] and priority(other) < priority(pod) for other in node.pods)
        for node in nodes
    )


def _against(victims: Iterable[Object], budgets: Sequence[Object]) -> set[str]:
    """Return the uids of victims for which a budget has no room. The most important victims use a budget first."""
    left = {id(budget): int((budget.get("status") or {}).get("disruptionsAllowed") or 0) for budget in budgets}
    found = set()
    for victim in sorted(victims, key=_last_to_go):
        mine = [budget for budget in budgets if _guards(budget, victim)]
        if any(left[id(budget)] <= 0 for budget in mine):
            found.add(victim["metadata"]["uid"])
        for budget in mine:
            left[id(budget)] -= 1
    return found


def _guards(budget: Object, pod: Object) -> bool:
    metadata = pod["metadata"]
    same = budget["metadata"].get("namespace") == metadata.get("namespace")
    return same and matches(budget["spec"].get("selector"), metadata.get("labels") or {})


def _last_to_go(pod: Object) -> tuple[int, str]:
    """Return a sort key. Among pods of equal priority, the pod that has run longest stays."""
    return -priority(pod), pod["metadata"].get("creationTimestamp", "")


def _victims(pod: Object, node: Candidate, budgets: Sequence[Object]) -> list[Object] | None:
    """Remove all less important pods in theory, and then let as many as possible back in.

    Pods that a budget guards come back first, then the most important ones.
    """
    if not fits_but_for_room(pod, node):
        return None
    lesser = [other for other in node.pods if priority(other) < priority(pod)]
    gone = {other["metadata"]["uid"] for other in lesser}
    if not lesser or not _fits(pod, node, gone):
        return None
    guarded = _against(lesser, budgets)
    for other in sorted(lesser, key=lambda other: (other["metadata"]["uid"] not in guarded, *_last_to_go(other))):
        uid = other["metadata"]["uid"]
        if _fits(pod, node, gone - {uid}):
            gone.discard(uid)
    return [other for other in lesser if other["metadata"]["uid"] in gone]


def _fits(pod: Object, node: Candidate, gone: set[str]) -> bool:
    free = room(node, without=gone)
    return all(amount <= free.get(name, Fraction(0)) for name, amount in requests(pod).items() if amount)
