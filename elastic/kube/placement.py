"""Find a node for a pod.

The node must fit the pod's tolerations, node selector, affinity and requests. If no node fits, the answer has a reason in the scheduler's
own words. This module is pure: it knows neither the API nor the time, and no pod except those that it is given.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from elastic.kube import quantity
from elastic.kube.labels import holds
from elastic.kube.quantity import Amounts

Object = dict[str, Any]
_BLOCKING = ("NoSchedule", "NoExecute")
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node as the scheduler sees it: its resources, and its pods with their requests."""

    name: str
    labels: dict[str, str]
    taints: tuple[Object, ...]
    offers: Amounts
    unschedulable: bool
    pods: tuple[Object, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """A node, or the reason why no node fits."""

    node: str | None
    reason: str = ""
    full: tuple[str, ...] = ()
    """Nodes that would do if there were room: where making some is worth a thought."""


def requests(pod: Object) -> Amounts:
    """Return a pod's requests: of its containers together, or of its largest init container if that is more, and one place among pods."""
    spec = pod["spec"]
    sidecars = [container for container in spec.get("initContainers") or () if container.get("restartPolicy") == "Always"]
    steady = quantity.total(_asked(container) for container in [*sidecars, *spec["containers"]])
    peaks = []
    before: list[Object] = []
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            before.append(container)
        else:
            peaks.append(quantity.total(_asked(other) for other in [*before, container]))
    asked = quantity.total([quantity.most([steady, *peaks]), quantity.amounts(spec.get("overhead"))])
    return {**asked, "pods": Fraction(1)}


def _asked(container: Object) -> Amounts:
    resources = container.get("resources") or {}
    return quantity.amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def candidate(node: Object, pods: Iterable[Object]) -> Candidate:
    spec, status = node.get("spec") or {}, node.get("status") or {}
    return Candidate(
        name=node["metadata"]["name"],
        labels=node["metadata"].get("labels") or {},
        taints=tuple(spec.get("taints") or ()),
        offers=quantity.amounts(status.get("allocatable") or status.get("capacity")),
        unschedulable=bool(spec.get("unschedulable")),
        pods=tuple(pod for pod in pods if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")),
    )


def place(pod: Object, nodes: Sequence[Candidate]) -> Placement:
    """Return the fitting node that the pod prefers, then the node with the most room left, then the first by name."""
    if not nodes:
        return Placement(None, "no nodes available to schedule pods")
    wanted = requests(pod)
    whys: Counter[str] = Counter()
    fitting: list[tuple[int, Fraction, str]] = []
    full: list[str] = []
    for node in nodes:
        obstacle = _obstacle(pod, node)
        if obstacle:
            whys[obstacle] += 1
            continue
        free = room(node)
        short = [name for name, amount in wanted.items() if amount and amount > free.get(name, Fraction(0))]
        if short:
            full.append(node.name)
            whys.update("Too many pods" if name == "pods" else f"Insufficient {name}" for name in short)
            continue
        fitting.append((-_preference(pod, node), _fill(node, free, wanted), node.name))
    if fitting:
        return Placement(min(fitting)[2])
    parts = ", ".join(f"{count} {why}" for why, count in sorted(whys.items(), key=lambda item: f"{item[1]} {item[0]}"))
    return Placement(None, f"0/{len(nodes)} nodes are available: {parts}.", tuple(full))


def room(node: Candidate, *, without: Iterable[str] = ()) -> Amounts:
    """Return the free part of a node's offer, as if the pods with these uids were gone."""
    gone = set(without)
    used = quantity.total(requests(pod) for pod in node.pods if pod["metadata"]["uid"] not in gone)
    return {name: amount - used.get(name, Fraction(0)) for name, amount in node.offers.items()}


def _fill(node: Candidate, free: Amounts, wanted: Amounts) -> Fraction:
    """Return how full the node would be with the pod, as the mean over cpu, memory and all other resources that the pod requests."""
    names = {"cpu", "memory", "pods", *wanted} & {name for name, amount in node.offers.items() if amount}
    shares = [1 - (free[name] - wanted.get(name, Fraction(0))) / node.offers[name] for name in names]
    return sum(shares, Fraction(0)) / max(len(shares), 1)


def fits_but_for_room(pod: Object, node: Candidate) -> bool:
    return not _obstacle(pod, node)


def _obstacle(pod: Object, node: Candidate) -> str:
    if node.unschedulable and not _tolerates(pod, {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}):
        return "node(s) were unschedulable"
    for taint in node.taints:
        if taint.get("effect") in _BLOCKING and not _tolerates(pod, taint):
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    wanted = pod["spec"].get("nodeSelector") or {}
    if any(node.labels.get(key) != value for key, value in wanted.items()) or not _affine(pod, node):
        return "node(s) didn't match Pod's node affinity/selector"
    return ""


def _tolerates(pod: Object, taint: Object) -> bool:
    return any(tolerates(toleration, taint) for toleration in pod["spec"].get("tolerations") or ())


def tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")


def _affine(pod: Object, node: Candidate) -> bool:
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    return any(_matches(term, node) for term in required.get("nodeSelectorTerms") or ())


def _preference(pod: Object, node: Candidate) -> int:
    """Return the sum of the weights of the pod's preferences that the node has."""
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    wishes = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    return sum(int(wish.get("weight") or 0) for wish in wishes if _matches(wish.get("preference") or {}, node))


def _matches(term: Object, node: Candidate) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    known = {"metadata.name": node.name}
    return all(_holds(entry, node.labels) for entry in expressions) and all(_holds(entry, known) for entry in fields)


def _holds(entry: Object, labels: dict[str, str]) -> bool:
    """Evaluate an expression of a label selector, or one with the two further operators of node selectors.

    Its values may be invalid, because no API server has checked a job's template.
    """
    operator, values = entry.get("operator"), entry.get("values") or ()
    if operator not in ("Gt", "Lt"):
        return holds(entry, labels)
    value, bound = _whole(labels.get(entry.get("key", ""))), _whole(values[0]) if values else None
    if value is None or bound is None:
        return False
    return value > bound if operator == "Gt" else value < bound


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and _WHOLE.fullmatch(text) else None
