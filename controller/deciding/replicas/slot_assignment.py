"""Decide which replicas a job should have now: which pods to create, and which to delete if there are too many.

Static jobs have fixed places, because the index is the rank. Elastic jobs may use any free index, because only the count matters.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from elastic_training.controller.deciding.moments import FIRST
from elastic_training.controller.facts.snapshot import Pod, PodPhase


@dataclass(frozen=True, slots=True)
class SlotAssignment:
    """`present` are the pods that fill a place, `missing` the indexes to fill, `surplus` the pods that are too many."""

    present: tuple[Pod, ...]
    missing: tuple[int, ...]
    surplus: tuple[Pod, ...] = ()


def in_places(count: int, pods: Sequence[Pod]) -> SlotAssignment:
    """Indexes 0 to count-1; a place is taken until its pod is gone, because the next pod needs the same name."""
    taken = {pod.index for pod in pods}
    return SlotAssignment(
        present=tuple(pod for pod in pods if pod.index < count and not pod.is_deleting),
        missing=tuple(index for index in range(count) if index not in taken),
        surplus=tuple(pod for pod in pods if pod.index >= count and not pod.is_deleting),
    )


def by_count(count: int, pods: Sequence[Pod], *, leaving: Collection[str]) -> SlotAssignment:
    """Any `count` pods that stay; a worker on its way out is replaced at once, under another index."""
    staying = who_stay(pods, leaving=leaving)
    if len(staying) > count:
        victims = sorted(staying, key=_by_worth, reverse=True)[: len(staying) - count]
        gone = {pod.name for pod in victims}
        return SlotAssignment(tuple(pod for pod in staying if pod.name not in gone), (), tuple(victims))
    taken = {pod.index for pod in pods}
    free = (index for index in range(count + len(taken)) if index not in taken)
    return SlotAssignment(tuple(staying), tuple(index for index, _ in zip(free, range(count - len(staying)), strict=False)))


def by_count_in_places(count: int, pods: Sequence[Pod]) -> SlotAssignment:
    """Any `count` pods that are well stay, so that a place whose pod is lost costs none that works; lost ones are filled as they were."""
    staying = who_stay(pods, leaving=())
    if len(staying) > count:
        return by_count(count, pods, leaving=())
    taken = {pod.index for pod in pods}
    free = (index for index in range(count) if index not in taken)
    missing = tuple(index for index, _ in zip(free, range(count - len(taken)), strict=False))
    return SlotAssignment(tuple(pod for pod in pods if not pod.is_deleting), missing)


def without_needed(assigned: SlotAssignment, *, least: int) -> SlotAssignment:
    """Keep the best surplus pods if fewer than `least` others stay."""
    here = len(who_stay(assigned.present, leaving=()))
    needed = sorted(assigned.surplus, key=_by_worth)[: max(0, least - here)]
    return replace(assigned, surplus=tuple(pod for pod in assigned.surplus if pod not in needed))


def without_joining(assigned: SlotAssignment, count: int, pods: Sequence[Pod], *, noticed: Collection[str]) -> SlotAssignment:
    """Return the assignment with only one replacement for each of the `count` oldest pods.

    If a replacement has started on a node that goes too, the next one might as well. So another one is created only once a pod is gone.
    """
    oldest_first = sorted(who_stay(pods, leaving=()), key=_age)
    in_vain = sum(pod.name in noticed for pod in oldest_first[count:])
    return replace(assigned, missing=assigned.missing[: max(0, len(assigned.missing) - in_vain)])


def _age(pod: Pod) -> tuple[datetime, int]:
    return (pod.created_at or FIRST, pod.index)


def who_stay(pods: Sequence[Pod], *, leaving: Collection[str]) -> list[Pod]:
    return [pod for pod in pods if not pod.is_deleting and pod.name not in leaving and pod.phase is not PodPhase.FAILED]


def _by_worth(pod: Pod) -> tuple[bool, bool, int, int]:
    """Return the sort key by which the last pod goes first: one that does not run, then one that is not Ready, then the highest place."""
    runs = pod.phase in (PodPhase.RUNNING, PodPhase.SUCCEEDED)
    return (not runs, not pod.is_ready, *place(pod))


def place(pod: Pod) -> tuple[int, int]:
    """Return the place of a pod among equally healthy pods. The pod of the lowest place stays longest."""
    return (pod.index if pod.number is None else pod.number, pod.index)
