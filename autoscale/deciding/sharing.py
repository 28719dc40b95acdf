"""Share the free room among jobs that want it.

Within a priority class a job that waits for its minimum comes first. Namespaces share the rest equally, and the others share the room that
one of them leaves: no report exceeds that. Within a namespace the next worker goes where it adds the most, relative to the job's own
throughput at minReplicas, for the part of the cluster that it takes. Claims of all or nothing, such as a trial, come last: they take room
that nobody else uses.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoscale.deciding.cluster import Room, Shape
from autoscale.figures import JobName

DIGITS = 12
"""Digits of a namespace's share: sums of fractions are not exact, and equal shares must be equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Room that a job wants: `more` workers beyond `replicas`.

    gain(n): addition of the n-th worker, relative to the job's throughput at its minimum. held: workers above the minimum. is_whole: all of
    them or none.
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
    """Return for how many more workers each job gets room.

    Claims for no worker count too, because the workers that they hold are a part of their namespace's share.
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
    """Share within one class: first the workers that jobs lack for their minimum, then those beyond."""
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
    """Give one worker at a time to the namespace that has least and wants more; in it, and among equals, to the best claim.

    So the others share the room that one leaves: no report moves more than the last worker from one namespace to another.
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
