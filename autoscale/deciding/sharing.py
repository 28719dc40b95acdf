"""Who gets the free room when several jobs want it, and who gives some back.

Within one priority class a job that waits for its minimum comes first; then the next worker goes where it adds the most, relative to the
job's own throughput at minReplicas, for the part of the cluster that it takes. No namespace gets more than its equal share as long as
another wants room, whatever its jobs report. What is all or nothing, such as a trial, comes last: it takes room that nobody else uses.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoscale.deciding.cluster import PodSeen, Room, Shape
from autoscale.figures import JobKey

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
    """How many more workers each job gets room for."""
    claims = list(claims)
    found = dict.fromkeys((claim.key for claim in claims), 0)
    divisible = [claim for claim in claims if not claim.is_whole]
    fair = _Fair(room, divisible)
    for _, same in itertools.groupby(sorted(divisible, key=lambda claim: -claim.priority), key=lambda claim: claim.priority):
        left = _grant(room, list(same), found, fair, bounded=True)
        _grant(room, left, found, fair, bounded=False)
    for claim in sorted((claim for claim in claims if claim.is_whole), key=lambda claim: (-claim.priority, claim.held)):
        if room.take_all(claim.shape, claim.more):
            found[claim.key] = claim.more
    return found


def _grant(room: Room, claims: Sequence[Claim], found: dict[JobKey, int], fair: "_Fair", *, bounded: bool) -> list[Claim]:
    """One worker at a time, the best claim first; the claims that their namespace's share held back are returned."""
    order = itertools.count()
    queue = [(*fair.rank(claim, found[claim.key]), next(order), claim) for claim in claims if found[claim.key] < claim.more]
    heapq.heapify(queue)
    held_back: list[Claim] = []
    while queue:
        is_extra, _, _, claim = heapq.heappop(queue)
        if bounded and is_extra and not fair.has_left(claim):
            held_back.append(claim)
            continue
        if room.take(claim.shape) is None:
            continue
        found[claim.key] += 1
        fair.take(claim)
        if found[claim.key] < claim.more:
            heapq.heappush(queue, (*fair.rank(claim, found[claim.key]), next(order), claim))
    return held_back


class _Fair:
    """Equal shares of what is contested, by the resource of which a worker takes the largest part of the cluster."""

    def __init__(self, room: Room, claims: Sequence[Claim]) -> None:
        self._cost = {claim.shape.name: _dominant(room, claim.shape) for claim in claims}
        self._used: dict[str, float] = {}
        wanted = 0.0
        for claim in claims:
            cost = self._cost[claim.shape.name]
            self._used[claim.key.namespace] = self._used.get(claim.key.namespace, 0.0) + cost * claim.held
            wanted += cost * (claim.held + claim.more)
        # What can be shared at all: what they hold above their minimum, and what is free for them.
        self._share = _fitting(room, claims, self._cost) / max(1, len(self._used))
        self._share = min(self._share, wanted)

    def has_left(self, claim: Claim) -> bool:
        cost = self._cost[claim.shape.name]
        return self._used[claim.key.namespace] + cost <= self._share * (1 + 1e-9)

    def rank(self, claim: Claim, found: int) -> tuple[bool, float]:
        """The lower, the sooner: whether it is more than the minimum, then what it brings for what it takes of the cluster."""
        count = claim.replicas + found + 1
        return count > claim.least, -claim.gain(count) / self._cost[claim.shape.name]

    def take(self, claim: Claim) -> None:
        self._used[claim.key.namespace] += self._cost[claim.shape.name]


def _dominant(room: Room, shape: Shape) -> float:
    parts = [amount / total for name, amount in shape.amounts.items() if name != "pods" and (total := room.total(name)) > 0]
    return max(parts, default=0.0) or 1e-6


def _fitting(room: Room, claims: Sequence[Claim], cost: Mapping[str, float]) -> float:
    """The contested room: as many workers as find room, taken in turn by the claims."""
    trial = room.copy()
    found = sum(cost[claim.shape.name] * claim.held for claim in claims)
    open_claims = [(claim, claim.more) for claim in claims]
    while open_claims:
        still = []
        for claim, more in open_claims:
            if more > 0 and trial.take(claim.shape) is not None:
                found += cost[claim.shape.name]
                still.append((claim, more - 1))
        open_claims = still
    return found


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
