"""Who gets the free room when several jobs want it, and who gives some back.

Within one priority class a job that waits for its minimum comes first; then the next worker goes where it adds the most for its node,
relative to the job's own throughput at minReplicas. No namespace gets more than its equal share as long as another wants room, whatever its
jobs report.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoscale.deciding.cluster import PodSeen, Room, Shape
from autoscale.figures import JobKey

MOST_GAIN = 1.0
"""No worker counts for more than the first one of its job, whatever is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Room that a job wants: `more` workers beyond `replicas`. gain(n): what the n-th worker adds. held: workers above its minimum."""

    key: JobKey
    shape: Shape
    replicas: int
    more: int
    least: int
    gain: Callable[[int], float]
    priority: int = 0
    held: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surplus:
    """Workers of a job above its minimum, the first to go first."""

    key: JobKey
    priority: int
    pods: Sequence[PodSeen]
    gain: float


def granted(room: Room, claims: Iterable[Claim]) -> dict[JobKey, int]:
    """How many more workers each job gets room for."""
    claims = list(claims)
    found = dict.fromkeys((claim.key for claim in claims), 0)
    fair = _Fair(room, claims)
    for _, same in itertools.groupby(sorted(claims, key=lambda claim: -claim.priority), key=lambda claim: claim.priority):
        left = _grant(room, list(same), found, fair, bounded=True)
        _grant(room, left, found, fair, bounded=False)
    return found


def _grant(room: Room, claims: Sequence[Claim], found: dict[JobKey, int], fair: "_Fair", *, bounded: bool) -> list[Claim]:
    """One worker at a time, the best claim first; the claims that their namespace's share held back are returned."""
    order = itertools.count()
    queue = [(*_rank(claim, found), next(order), claim) for claim in claims if found[claim.key] < claim.more]
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
            heapq.heappush(queue, (*_rank(claim, found), next(order), claim))
    return held_back


def _rank(claim: Claim, found: Mapping[JobKey, int]) -> tuple[bool, float]:
    count = claim.replicas + found[claim.key] + 1
    return count > claim.least, -min(MOST_GAIN, max(0.0, claim.gain(count)))


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


def given_back(room: Room, waiting: Iterable[tuple[PodSeen, bool]], surplus: Iterable[Surplus]) -> dict[JobKey, tuple[int, str]]:
    """How many workers each job gives back, and for which pod. `waiting` are pods without room, each with whether its job lacks it for its
    minimum; such a pod also takes from jobs of its own class. From several jobs the one gives that gives fewest workers, and loses least.
    """
    left = {one.key: list(one.pods) for one in surplus}
    facts = {one.key: one for one in surplus}
    found: dict[JobKey, tuple[int, str]] = {}
    for pod, is_needed in sorted(waiting, key=lambda one: (-one[0].priority, not one[1], one[0].key)):
        if room.take(pod.shape) is not None:
            continue
        best: tuple[int, float, JobKey] | None = None
        for key, pods in left.items():
            owner = facts[key]
            if owner.key == pod.job or not (owner.priority < pod.priority or (is_needed and owner.priority == pod.priority)):
                continue
            count = next((n for n in range(1, len(pods) + 1) if room.fits_without(pod.shape, pods[:n])), None)
            if count is not None and (best is None or (count, owner.gain) < best[:2]):
                best = count, owner.gain, key
        if best is None:
            continue
        count, _, key = best
        room.release(left[key][:count])
        left[key] = left[key][count:]
        room.take(pod.shape)
        before, words = found.get(key, (0, "/".join(pod.key)))
        found[key] = before + count, words
    return found
