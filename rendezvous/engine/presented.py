"""How much of a member's claims is believed, and what members keep for the next server.

A member may be wrong, late or hostile. The bounds here keep each job's state small, and leave room for the numbers of its next worlds.
"""

from __future__ import annotations

from collections.abc import Iterable

from .messages.controller import MAX_HELD, MAX_UNSETTLED, Expectation, Restart
from .messages.member import Held
from .restart_log import unknown_to
from .state.job import JobState
from .values import replace
from .words import Cause

GENERATIONS_AHEAD = 10_000
"""How far worlds may have gone beyond the generation in the job's status, while the controller could not write."""

KEEPERS = 3
"""How many members keep each share of what the status lacks. One is enough unless it is lost together with the server, within the second
that the controller needs to write. If all kept everything, each join of a large world would carry thousands of restarts."""

MAX_CLAIMED_BYTES = 4 * 2**20
"""Memory of the restarts that members presented. 8,192 genuine ones need less; before the controller speaks, nothing else is known."""
BYTES_A_RESTART = 320
"""Memory of a restart without the text of its id and pod."""

_CAUSES = frozenset(cause.value for cause in Cause) - {Cause.START.value}


def placed_near(job: JobState, held: Held) -> Held:
    """Return what the member holds. If no world can have had this number, remove its id: the member is called to the barrier."""
    if job.membership.expectation is None or held.generation <= job.membership.generation + GENERATIONS_AHEAD:
        return held
    return replace(held, id="", generation=max(1, job.membership.generation), unacknowledged_restarts=())


def is_far_from(job: JobState, expectation: Expectation) -> bool:
    """Return whether members claimed, before the controller spoke, a generation that the controller cannot have missed."""
    return job.membership.expectation is None and job.membership.generation > expectation.floor + GENERATIONS_AHEAD


def credible(job: JobState, held: Held) -> tuple[Restart, ...]:
    """Return the restarts that a member kept for this server, if they can have happened and the job has room for them."""
    if not held.unacknowledged_restarts:
        return ()
    known = job.accounting.known_restarts.keys() | {entry.id for entry in job.accounting.recorded.unsettled}
    room, room_bytes = _room(job, held) - len(known), MAX_CLAIMED_BYTES - _bytes(job.accounting.known_restarts.values())
    believed = []
    for entry in held.unacknowledged_restarts:
        if entry.cause not in _CAUSES or entry.generation > held.generation:
            continue
        if entry.id not in known:
            if room <= 0 or room_bytes <= 0:
                continue
            room, room_bytes = room - 1, room_bytes - _bytes((entry,))
        believed.append(entry)
    return tuple(believed)


def with_room(job: JobState, presented: tuple[Restart, ...]) -> tuple[Restart, ...]:
    """Return what members presented before the controller spoke, as far as the job has room now that its members are known."""
    unknown = unknown_to(job.accounting.recorded, presented)
    dropped = {entry.id for entry in unknown[room_of(job) :]}
    return tuple(entry for entry in presented if entry.id not in dropped)


def room_of(job: JobState) -> int:
    """Return how many restarts the job may present: two worlds in a row may have lost everybody before the controller booked it.

    The members that a job has count. How many it might have (`maxReplicas`) is its owner's free choice.
    """
    return _twice(members_of(job))


def members_of(job: JobState) -> int:
    """Return how many members the job has or has had: in its world, connected here, or with a pod that may have come."""
    group = job.membership
    seats = 0
    if group.world is not None:
        seats = len(group.world.ranks) if group.world.adopted else group.world.size
    pending = len(group.expectation.pending) if group.expectation is not None else 0
    return max(seats, len(group.members), len(group.expected) - pending)


def _room(job: JobState, held: Held) -> int:
    """Return the job's room. Before the controller has spoken, believe the size of the world that a member claims."""
    return room_of(job) if job.membership.expectation is not None else _twice(held.size)


def _twice(members: int) -> int:
    return min(MAX_UNSETTLED, max(MAX_HELD, 2 * members))


def _bytes(restarts: Iterable[Restart]) -> int:
    return sum(len(entry.id) + len(entry.pod) + BYTES_A_RESTART for entry in restarts)


def share_of(job: JobState, name: str) -> tuple[Restart, ...]:
    """Return what this member keeps for the next server.

    Each share lies with `KEEPERS` ranks of the current world, far apart, because neighbours are often on one machine. Members without a
    rank keep a share only of a group that has ended.
    """
    world = job.membership.world
    rank = world.ranks.get(name) if world is not None else None
    if world is None or rank is None:
        return job.accounting.unacknowledged_restarts[-MAX_HELD:] if job.accounting.closed else ()
    shares = max(1, world.size // KEEPERS)
    if rank >= KEEPERS * shares:
        return ()
    newest = job.accounting.unacknowledged_restarts[-shares * MAX_HELD :]
    return newest[rank % shares * MAX_HELD :][:MAX_HELD]
