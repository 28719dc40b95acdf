"""Decide which jobs release workers so that pods with a higher claim fit.

Jobs of the lowest priority class release first. Within a class, each namespace keeps at most an equal share of the room above its jobs'
minimums. Reports of jobs do not change this share. Within a namespace, the workers with the smallest gain (`sharing`) go first. If no job
makes room for a pod by itself, several jobs do it together.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from elastic_training.autoscale.deciding.cluster import PodSeen, Room, Shape
from elastic_training.autoscale.figures import JobName

MOST_KINDS, MOST_TOGETHER = 64, 8
"""Limits per namespace and round: kinds of waiting pods to search room for, and kinds for which several jobs release workers together.
The limits keep a tenant that creates pods from holding up the round.
"""
DIGITS = 9
"""Digits to which shares are rounded, because sums of fractions are not exact and equal shares must be equal."""
Price = TypeVar("Price", bound=tuple[float, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class Surplus:
    """Workers of a job above its minimum."""

    key: JobName
    uid: str
    priority: int
    pods: Sequence[PodSeen]
    """The workers above the minimum, in the order of removal."""
    held: int
    """Number of all its workers."""
    gain: Callable[[int], float]
    """Throughput that the n-th of all workers adds, relative to the job's throughput at its minimum."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod without room."""

    pod: PodSeen
    is_needed: bool = False
    """Whether its job's minimum needs it. Then jobs of its own priority class release workers too."""


def given_back(
    room: Room, waiting: Iterable[Waiting], surplus: Iterable[Surplus], *, free: Room | None = None
) -> dict[JobName, tuple[int, str]]:
    """Return how many workers each job gives back, and for which pod.

    `free` excludes the room of leaving pods. Waiting pods that fit there reserve it.
    """
    jobs = _Jobs(room, surplus)
    found: dict[JobName, tuple[int, str]] = {}
    for one in sorted(waiting, key=lambda one: (-one.pod.priority, not one.is_needed, one.pod.key)):
        if jobs.is_vain(one):
            continue
        if free is not None:
            free.take(one.pod.shape)
        if room.take(one.pod.shape) is not None:
            continue
        for uid, count in jobs.making_room(one).items():
            key = jobs.give(uid, count)
            before, words = found.get(key, (0, "/".join(one.pod.key)))
            found[key] = before + count, words
        room.take(one.pod.shape)
    return found


@dataclass(slots=True)
class _Giver:
    """A job that can give workers."""

    of: Surplus
    cost: Callable[[Shape], float]
    given: int = 0
    """Number of its workers that are already chosen."""
    sums: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 0.0)])
    """Total gain and room of its first n workers to go, at index n."""

    @property
    def left(self) -> Iterator[PodSeen]:
        return itertools.islice(self.of.pods, self.given, None)

    def loss(self, count: int) -> float:
        """Return the gain that the job loses with the next `count` workers."""
        return self._sum(self.given + count)[0] - self._sum(self.given)[0]

    def room(self, count: int) -> float:
        """Return the part of the cluster that the next `count` workers use."""
        return self._sum(self.given + count)[1] - self._sum(self.given)[1]

    def _sum(self, count: int) -> tuple[float, float]:
        while len(self.sums) <= count:
            (loss, cost), gone = self.sums[-1], len(self.sums) - 1
            self.sums.append((loss + self.of.gain(self.of.held - gone), cost + self.cost(self.of.pods[gone].shape)))
        return self.sums[count]


class _Queue(Generic[Price]):
    """Offers by their price. The lowest price is computed again before use, because other offers may have been taken meanwhile."""

    def __init__(self, names: Iterable[str], price: Callable[[str], Price | None]) -> None:
        self._price = price
        self._heap = [(found, name) for name in names if (found := price(name)) is not None]
        heapq.heapify(self._heap)

    def best(self) -> tuple[Price, str] | None:
        while self._heap:
            price, name = self._heap[0]
            now = self._price(name)
            if now == price:
                return price, name
            if now is not None:
                heapq.heapreplace(self._heap, (now, name))
            else:
                heapq.heappop(self._heap)
        return None


@dataclass(slots=True)
class _Search:
    """The jobs that may give workers for one kind of pod."""

    givers: Mapping[str, _Giver]
    alone: Mapping[tuple[int, str], _Queue[tuple[float, int]]]
    """Jobs that make room by themselves, by priority and namespace."""
    together: _Queue[tuple[int, float, float, int]] | None = None
    """Nodes on which several jobs can make room together."""
    is_vain: bool = False
    """Whether no job can make room any more."""


@dataclass(frozen=True, slots=True, order=True)
class _Step:
    """A worker on a node."""

    priority: int
    shortage: float
    loss: float
    count: int
    """Number of further workers of its job that go if this one goes, including itself."""
    uid: str
    pod: PodSeen = field(compare=False)


class _Jobs:
    """The room that jobs can still give in one round."""

    def __init__(self, room: Room, surplus: Iterable[Surplus]) -> None:
        self._room = room
        self._givers = {one.uid: _Giver(one, room.cost) for one in surplus}
        self._held: dict[int, dict[str, float]] = {}
        for giver in self._givers.values():
            spaces = self._held.setdefault(giver.of.priority, {})
            spaces[giver.of.key.namespace] = spaces.get(giver.of.key.namespace, 0.0) + giver.room(len(giver.of.pods))
        self._on_node: dict[str, list[tuple[_Giver, int]]] = {}
        self._searches: dict[tuple[str, int, bool, str], _Search] = {}
        self._kinds: dict[str, int] = {}
        self._together: dict[str, int] = {}

    def is_vain(self, waiting: Waiting) -> bool:
        """Return whether no job made room for a similar pod, or the pod's namespace has reached MOST_KINDS."""
        search = self._searches.get(self._kind(waiting))
        return self._kinds.get(waiting.pod.key[0], 0) >= MOST_KINDS if search is None else search.is_vain

    def making_room(self, waiting: Waiting) -> Mapping[str, int]:
        """Return the numbers of workers that go for a pod, by their jobs' uids."""
        pod, search = waiting.pod, self._search(waiting)
        found = self._alone(pod.shape, search) or self._several(pod, search)
        search.is_vain = not found
        return found

    def give(self, uid: str, count: int) -> JobName:
        giver = self._givers[uid]
        self._held[giver.of.priority][giver.of.key.namespace] -= giver.room(count)
        self._room.release(itertools.islice(giver.left, count))
        giver.given += count
        return giver.of.key

    def _kind(self, waiting: Waiting) -> tuple[str, int, bool, str]:
        """Return the key of a pod's search. A job never makes room for its own pods, so an owner that could give is part of the key."""
        pod = waiting.pod
        return pod.shape.name, pod.priority, waiting.is_needed, pod.owner if pod.owner in self._givers else ""

    def _search(self, waiting: Waiting) -> _Search:
        pod, kind = waiting.pod, self._kind(waiting)
        if kind not in self._searches:
            self._kinds[pod.key[0]] = self._kinds.get(pod.key[0], 0) + 1
            highest = pod.priority if waiting.is_needed else pod.priority - 1
            givers = {uid: one for uid, one in self._givers.items() if one.of.priority <= highest and uid != pod.owner}
            spaces: dict[tuple[int, str], list[str]] = {}
            for uid, one in givers.items():
                spaces.setdefault((one.of.priority, one.of.key.namespace), []).append(uid)
            alone = {space: _Queue(uids, lambda uid: self._offer(pod.shape, givers[uid])) for space, uids in spaces.items()}
            self._searches[kind] = _Search(givers, alone)
        return self._searches[kind]

    def _alone(self, shape: Shape, search: _Search) -> Mapping[str, int]:
        """Choose one job of the lowest class that makes room by itself.

        Prefer the namespace that falls least below its share, and then the job that loses least.
        """
        levels, offers = self._levels(shape), []
        for (priority, _), queue in search.alone.items():
            best = queue.best()
            if best is not None:
                (loss, count), uid = best
                offers.append((priority, self._shortage(self._givers[uid], count, levels), loss, count, uid))
        return {uid: count for *_, count, uid in [min(offers)]} if offers else {}

    def _offer(self, shape: Shape, giver: _Giver) -> tuple[float, int] | None:
        """Return the loss of the job's workers that make room, and their number."""
        count = self._room.count_to_free(shape, giver.left)
        return (giver.loss(count), count) if count is not None else None

    def _levels(self, shape: Shape) -> dict[int, float]:
        """Return, by priority, the room that each namespace keeps if a pod of this shape is placed: an equal share of the rest."""
        cost = self._room.cost(shape)
        return {priority: _level(spaces.values(), sum(spaces.values()) - cost) for priority, spaces in self._held.items()}

    def _shortage(self, giver: _Giver, count: int, levels: Mapping[int, float]) -> float:
        """Return how far the job's namespace would fall below its share."""
        has = self._held[giver.of.priority][giver.of.key.namespace] - giver.room(count)
        return round(max(0.0, levels[giver.of.priority] - has), DIGITS)

    def _several(self, pod: PodSeen, search: _Search) -> Mapping[str, int]:
        """Choose several jobs that make room on one node together."""
        if search.together is None:
            if len(search.givers) < 2 or self._together.get(pod.key[0], 0) >= MOST_TOGETHER:
                return {}
            self._together[pod.key[0]] = self._together.get(pod.key[0], 0) + 1
            search.together = _Queue(self._nodes(), lambda node: _price(self._chosen(pod.shape, node, search.givers)))
        best = search.together.best()
        chosen = self._chosen(pod.shape, best[1], search.givers) if best is not None else ()
        return {step.uid: step.count for step in chosen}

    def _nodes(self) -> Iterable[str]:
        if not self._on_node:
            for giver in self._givers.values():
                for index, pod in enumerate(giver.of.pods):
                    self._on_node.setdefault(pod.node, []).append((giver, index))
        return self._on_node

    def _chosen(self, shape: Shape, node: str, givers: Mapping[str, _Giver]) -> Sequence[_Step]:
        """Choose the cheapest jobs that make room, drop those that are unnecessary, and return the last leaving worker of each."""
        levels = self._levels(shape)
        steps = sorted(
            _Step(one.of.priority, self._shortage(one, count, levels), one.loss(count), count, one.of.uid, one.of.pods[index])
            for one, index in self._on_node[node]
            if (count := index + 1 - one.given) > 0 and one.of.uid in givers
        )
        enough = self._room.count_to_free(shape, (step.pod for step in steps))
        if enough is None:
            return ()
        chosen = steps[:enough]
        for uid in dict.fromkeys(step.uid for step in reversed(steps[:enough])):
            rest = [step for step in chosen if step.uid != uid]
            if self._room.count_to_free(shape, (step.pod for step in rest)) is not None:
                chosen = rest
        return tuple({step.uid: step for step in chosen}.values())


def _price(chosen: Sequence[_Step]) -> tuple[int, float, float, int] | None:
    """Return the price of this choice. Priority and shortage compare first, then gain and count."""
    if not chosen:
        return None
    priority, shortage = max((step.priority, step.shortage) for step in chosen)
    return priority, shortage, sum(step.loss for step in chosen), sum(step.count for step in chosen)


def _level(amounts: Iterable[float], total: float) -> float:
    """Return the most that each may keep if all together keep `total`, and none keeps more than it has."""
    ordered = sorted(amounts)
    for index, amount in enumerate(ordered):
        share = total / (len(ordered) - index)
        if amount >= share:
            return share
        total -= amount
    return math.inf
