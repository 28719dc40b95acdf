"""Hold the room of a cluster (nodes, pods and their requests, as far as decisions need them), and find room for another pod."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from elastic.kube.placement import Candidate, fits_but_for_room
from elastic.kube.resources import Object

Amounts = Mapping[str, float]
SPARE = 1e-9
"""Tolerance of an amount: sums of decimal fractions are not exact."""
LEAST_COST = 1e-9


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Shape:
    """A pod's needs of a node: amounts, and the parts of its spec by which nodes are chosen. Equal names mean equal shapes."""

    name: str
    amounts: Amounts
    pod: Object


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    key: tuple[str, str]
    node: str
    shape: Shape
    uid: str = ""
    address: str = ""
    is_running: bool = False
    priority: int = 0
    owner: str = ""
    """Uid of the object that controls it, such as its job. Labels say nothing of that: any pod may have them."""
    index: int = -1
    is_worker: bool = False
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Labels of a worker; empty for other pods, because nothing needs them."""
    unschedulable_since: float | None = None
    """Seconds since 1970."""
    is_leaving: bool = False


@dataclass(frozen=True, slots=True)
class NodeSeen:
    candidate: Candidate
    offers: Amounts
    is_spot: bool = False
    group: str = ""


class Room:
    """The free room on each node. Taking room changes it, so it is made again for each round."""

    def __init__(self, nodes: Sequence[NodeSeen], pods: Iterable[PodSeen]) -> None:
        self._nodes = {node.candidate.name: node for node in nodes}
        self._free = {node.candidate.name: dict(node.offers) for node in nodes}
        self._suitable: dict[str, frozenset[str]] = {}
        self._fitting: dict[str, list[str]] = {}
        self._costs: dict[str, float] = {}
        for pod in pods:
            if (free := self._free.get(pod.node)) is not None:
                _add(free, pod.shape.amounts, -1)

    def copy(self) -> "Room":
        made = Room((), ())
        made._nodes, made._suitable, made._costs = self._nodes, self._suitable, self._costs
        made._free = {name: dict(free) for name, free in self._free.items()}
        return made

    def _suits(self, shape: Shape) -> frozenset[str]:
        """Return the nodes that a pod of this shape may be on."""
        found = self._suitable.get(shape.name)
        if found is None:
            fitting = (name for name, node in self._nodes.items() if fits_but_for_room(shape.pod, node.candidate))
            found = self._suitable[shape.name] = frozenset(fitting)
        return found

    def cost(self, shape: Shape) -> float:
        """Return the part of the cluster that a pod of this shape takes, by the resource of which it takes most."""
        found = self._costs.get(shape.name)
        if found is None:
            totals = {name: sum(node.offers.get(name, 0.0) for node in self._nodes.values()) for name in shape.amounts if name != "pods"}
            parts = [shape.amounts[name] / total for name, total in totals.items() if total > 0]
            found = self._costs[shape.name] = max(parts, default=0.0) or LEAST_COST
        return found

    def take(self, shape: Shape) -> str | None:
        """Take room for one more pod of this shape. Return its node; None if there is no room."""
        names = self._fitting.get(shape.name)
        if names is None:
            suitable = self._suits(shape)
            names = self._fitting[shape.name] = [name for name in reversed(self._nodes) if name in suitable]
        while names:
            free = self._free[names[-1]]
            if has(free, shape.amounts):
                _add(free, shape.amounts, -1)
                return names[-1]
            names.pop()  # room only becomes less
        return None

    def take_all(self, shape: Shape, count: int) -> bool:
        """Take room for this many more pods of this shape, or for none."""
        before = list(self._fitting[shape.name]) if shape.name in self._fitting else None
        taken: list[str] = []
        while len(taken) < count and (name := self.take(shape)) is not None:
            taken.append(name)
        if len(taken) == count:
            return True
        for name in taken:
            _add(self._free[name], shape.amounts, 1)
        if before is not None:
            self._fitting[shape.name] = before
        else:
            self._fitting.pop(shape.name, None)
        return False

    def count_to_free(self, shape: Shape, pods: Iterable[PodSeen]) -> int | None:
        """Return how many of these pods must go, in their order, until a pod of this shape finds room; None if that does not help."""
        freed: dict[str, dict[str, float]] = {}
        suitable = self._suits(shape)
        for count, pod in enumerate(pods, start=1):
            if pod.node not in suitable:
                continue
            there = freed.get(pod.node) or freed.setdefault(pod.node, dict(self._free[pod.node]))
            _add(there, pod.shape.amounts, 1)
            if has(there, shape.amounts):
                return count
        return None

    def release(self, pods: Iterable[PodSeen]) -> None:
        for pod in pods:
            if pod.node in self._free:
                _add(self._free[pod.node], pod.shape.amounts, 1)
        self._fitting.clear()

    def label(self, node: str, name: str) -> str | None:
        found = self._nodes.get(node)
        return found.candidate.labels.get(name) if found is not None else None

    def by_group(self) -> dict[tuple[str, str, str], float]:
        """Return the free room by group of nodes, spot or on demand, and resource."""
        found: dict[tuple[str, str, str], float] = {}
        for name, free in self._free.items():
            node = self._nodes[name]
            for resource, amount in free.items():
                key = (node.group, "spot" if node.is_spot else "on-demand", resource)
                found[key] = found.get(key, 0.0) + max(0.0, amount)
        return found


def has(free: Amounts, amounts: Amounts) -> bool:
    return all(amount <= free.get(name, 0.0) + SPARE * (1 + amount) for name, amount in amounts.items() if amount)


def _add(to: dict[str, float], amounts: Amounts, sign: int) -> None:
    for name, amount in amounts.items():
        to[name] = to.get(name, 0.0) + sign * amount
