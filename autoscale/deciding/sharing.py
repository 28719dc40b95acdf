"""Share the free room among jobs that want it.

Within a priority class, jobs that wait for their minimum come first. Namespaces then share the rest equally. If a namespace does not use
its share, the other namespaces share what it leaves. Within a namespace, the next worker goes to the job that gains most per part of the
cluster, relative to the job's own throughput at minReplicas. All-or-nothing claims, such as trials, come last and take room that no other
claim uses.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from elastic_training.autoscale.deciding.cluster import Room, Shape
from elastic_training.autoscale.figures import JobName

DIGITS = 12
"""Decimal places to which a namespace's share is rounded. Sums of fractions are not exact, and equal shares must compare as equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Room that a job wants: `more` workers beyond `replicas`.

    `least` is the minimum number of workers. `gain(n)` is the throughput that the n-th worker adds, relative to the job's throughput at its
    minimum. `held` is the number of workers above the minimum that the job has already. If `is_whole`, the job takes all workers or none.
    """

    key: JobName
    shape: Shape
    replicas: int
    more: int
    least: int
    gain: Callable[[int], float]
    priority: int = 0
    held: int = 0
    is_whole: bool = False


def granted(room: Room, claims: Iterable[Claim]) -> dict[JobName, int]:
    """Return the number of additional workers for which each job gets room.

    Pass the claims of jobs that want no more workers, too, because their present workers are a part of their namespace's share.
    """
    claims = list(claims)
    found = dict.fromkeys((claim.key for claim in claims), 0)
    for _, same in itertools.groupby(sorted(claims, key=lambda claim: -claim.priority), key=lambda claim: claim.priority):
        _share(room, list(same), found)
    for claim in sorted((claim for claim in claims if claim.is_whole), key=lambda claim: (-claim.priority, claim.held)):
        if room.take_all(claim.shape, claim.more):
            found[claim.key] = claim.more
    return found


def _share(room: Room, claims: Sequence[Claim], found: dict[JobName, int]) -> None:
    """Share the room within one priority class: first for workers that jobs lack for their minimum, then for workers beyond it."""
    divisible = [claim for claim in claims if not claim.is_whole]
    used: dict[str, float] = {}
    for claim in claims:
        used[claim.key.namespace] = used.get(claim.key.namespace, 0.0) + room.cost(claim.shape) * claim.held
    _fill(room, divisible, found, used={}, most=lambda claim: min(claim.more, claim.least - claim.replicas))
    _fill(room, divisible, found, used=used, most=lambda claim: claim.more)


def _fill(
    room: Room,
    claims: Iterable[Claim],
    found: dict[JobName, int],
    *,
    used: Mapping[str, float],
    most: Callable[[Claim], int],
) -> None:
    """Give one worker at a time to the namespace with the smallest share that still wants workers.

    Within a namespace, and among namespaces with equal shares, the claim with the largest gain comes first. So a false report of throughput
    moves at most the last worker from one namespace to another.
    """

    def rank(claim: Claim) -> float:
        return -claim.gain(claim.replicas + found[claim.key] + 1) / room.cost(claim.shape)

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
            has = round(has + room.cost(claim.shape), DIGITS)
            if found[claim.key] < most(claim):
                heapq.heappush(queue, (rank(claim), order, claim))
        if queue:
            heapq.heappush(turns, (has, queue[0][0], space))
