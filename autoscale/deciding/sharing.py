"""Who gets the free room when several jobs want it, and who gives some back.

Within one priority class a job that waits for its minimum comes first. What is wanted beyond is shared equally by namespaces, and what one
of them leaves by the others: no report exceeds that. Within a namespace the next worker goes where it adds the most, relative to the job's
own throughput at minReplicas, for the part of the cluster that it takes. What is all or nothing, such as a trial, comes last: it takes room
that nobody else uses.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoscale.deciding.cluster import PodSeen, Room, Shape
from autoscale.figures import JobKey

DIGITS = 12
"""Of what a namespace has of the cluster: sums of fractions are not exact, and equals are to be equal."""
LEAST_COST = 1e-9
MOST_VAIN = 64
"""Kinds of waiting pods of one namespace for which no room is found, that are tried in one round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Room that a job wants: `more` workers beyond `replicas`. gain(n): what the n-th worker adds, as a part of the job's throughput at its
    minimum. held: workers above that. is_whole: all of them or none.
    """

    key: JobKey
    shape: Shape
    replicas: int
    more: int
    least: int
    gain: Callable[[int], float]
    priority: int = 0
    held: int = 0
    is_whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Surplus:
    """Workers of a job above its minimum, the first to go first. held: all that it has. gain: as in Claim."""

    key: JobKey
    uid: str
    priority: int
    pods: Sequence[PodSeen]
    held: int
    gain: Callable[[int], float]

    def loss(self, *, gone: int, count: int) -> float:
        """What so many more of its workers bring, once the first ones have gone."""
        return sum(self.gain(self.held - gone - index) for index in range(count))


def granted(room: Room, claims: Iterable[Claim]) -> dict[JobKey, int]:
    """How many more workers each job gets room for. Claims for none count too: what they hold is a part of their namespace's share."""
    claims = list(claims)
    found = dict.fromkeys((claim.key for claim in claims), 0)
    cost = _costs(room, claims)
    for _, same in itertools.groupby(sorted(claims, key=lambda claim: -claim.priority), key=lambda claim: claim.priority):
        _share(room, list(same), found, cost)
    for claim in sorted((claim for claim in claims if claim.is_whole), key=lambda claim: (-claim.priority, claim.held)):
        if room.take_all(claim.shape, claim.more):
            found[claim.key] = claim.more
    return found


def _share(room: Room, claims: Sequence[Claim], found: dict[JobKey, int], cost: Mapping[str, float]) -> None:
    """Of one class: the workers that jobs lack for their minimum, then those beyond."""
    divisible = [claim for claim in claims if not claim.is_whole]
    used: dict[str, float] = {}
    for claim in claims:
        used[claim.key.namespace] = used.get(claim.key.namespace, 0.0) + cost[claim.shape.name] * claim.held
    _fill(room, divisible, found, cost=cost, used={}, most=lambda claim: min(claim.more, claim.least - claim.replicas))
    _fill(room, divisible, found, cost=cost, used=used, most=lambda claim: claim.more)


def _fill(
    room: Room,
    claims: Iterable[Claim],
    found: dict[JobKey, int],
    *,
    cost: Mapping[str, float],
    used: Mapping[str, float],
    most: Callable[[Claim], int],
) -> None:
    """One worker at a time, to the namespace that has least and still wants more; in it, and among equals, to the best claim. What one
    leaves is so shared by the others again: no report moves more than the last worker from one namespace to another.
    """

    def rank(claim: Claim) -> float:
        return -claim.gain(claim.replicas + found[claim.key] + 1) / cost[claim.shape.name]

    queues: dict[str, list[tuple[float, int, Claim]]] = {}
    for order, claim in enumerate(claims):
        if found[claim.key] < most(claim):
            queues.setdefault(claim.key.namespace, []).append((rank(claim), order, claim))
    for queue in queues.values():
        heapq.heapify(queue)
    turns = [(round(used.get(space, 0.0), DIGITS), queue[0][0], space) for space, queue in queues.items()]
    heapq.heapify(turns)
    while turns:
        has, _, space = heapq.heappop(turns)
        queue = queues[space]
        _, order, claim = heapq.heappop(queue)
        if room.take(claim.shape) is not None:
            found[claim.key] += 1
            has = round(has + cost[claim.shape.name], DIGITS)
            if found[claim.key] < most(claim):
                heapq.heappush(queue, (rank(claim), order, claim))
        if queue:
            heapq.heappush(turns, (has, queue[0][0], space))


def _costs(room: Room, claims: Iterable[Claim]) -> dict[str, float]:
    """What a worker takes of the cluster, by its shape: of the resource of which that is most."""
    shapes = {claim.shape.name: claim.shape for claim in claims}
    totals = {name: room.total(name) for shape in shapes.values() for name in shape.amounts if name != "pods"}
    return {
        name: max((amount / totals[part] for part, amount in shape.amounts.items() if totals.get(part)), default=0.0) or LEAST_COST
        for name, shape in shapes.items()
    }


def given_back(
    room: Room, waiting: Iterable[tuple[PodSeen, bool]], surplus: Iterable[Surplus], *, free: Room | None = None
) -> dict[JobKey, tuple[int, str]]:
    """How many workers each job gives back, and for which pod. `waiting` are pods without room, each with whether its job lacks it for its
    minimum; such a pod also takes from jobs of its own class. From several jobs the one gives that loses least for it.
    What waiting pods find in `free`, the room without that of pods which are leaving, is taken there too.
    """
    facts = {one.key: one for one in surplus}
    left = {one.key: list(one.pods) for one in facts.values()}
    found: dict[JobKey, tuple[int, str]] = {}
    vain = _Vain()
    for pod, is_needed in sorted(waiting, key=lambda one: (-one[0].priority, not one[1], one[0].key)):
        if vain.has(pod, is_needed=is_needed):
            continue
        if free is not None:
            free.take(pod.shape)
        if room.take(pod.shape) is not None:
            continue
        givers = [one for one in facts.values() if one.uid != pod.owner and _goes_before(pod, one, is_needed=is_needed)]
        counts = [
            (one.loss(gone=len(one.pods) - len(left[one.key]), count=count), count, one.key)
            for one in givers
            if (count := room.count_to_free(pod.shape, left[one.key])) is not None
        ]
        if not counts:
            vain.note(pod, is_needed=is_needed)
            continue
        _, count, key = min(counts, key=lambda one: one[:2])
        room.release(left[key][:count])
        left[key] = left[key][count:]
        room.take(pod.shape)
        before, words = found.get(key, (0, "/".join(pod.key)))
        found[key] = before + count, words
    return found


def _goes_before(pod: PodSeen, holder: Surplus, *, is_needed: bool) -> bool:
    return holder.priority < pod.priority or (is_needed and holder.priority == pod.priority)


class _Vain:
    """Pods for which nothing that others give back makes room. Another one like them is not tried again, and of one namespace only some
    kinds are: whoever may create pods that fit nowhere could hold up every round.
    """

    def __init__(self) -> None:
        self._kinds: set[tuple[str, int, bool, str]] = set()
        self._of_namespace: dict[str, int] = {}

    def has(self, pod: PodSeen, *, is_needed: bool) -> bool:
        return _kind(pod, is_needed) in self._kinds or self._of_namespace.get(pod.key[0], 0) >= MOST_VAIN

    def note(self, pod: PodSeen, *, is_needed: bool) -> None:
        self._kinds.add(_kind(pod, is_needed))
        self._of_namespace[pod.key[0]] = self._of_namespace.get(pod.key[0], 0) + 1


def _kind(pod: PodSeen, is_needed: bool) -> tuple[str, int, bool, str]:
    return pod.shape.name, pod.priority, is_needed, pod.owner
