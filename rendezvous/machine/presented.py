"""How much of what a member presents is believed, and what members keep for the next server.

A member may be wrong, late or hostile: what it says is taken over within bounds, so that no job's state grows without end and the numbers
of its worlds keep room to rise.
"""

from msgspec import structs

from elastic.api.words import Cause
from elastic.membership.wire import MAX_HELD, MAX_MEMBERS, MAX_UNSETTLED, Expectation, Held, Restart
from rendezvous.machine.state.job import Job

GENERATIONS_AHEAD = 10_000
"""So far may worlds have gone on beyond the generation that the controller has written down, while it could not write."""

KEEPERS = 3
"""So many members keep each share of what is not written down yet. One would do unless it is lost together with the server, within the
second that the controller needs to write; all would make each join of a large world carry thousands of restarts."""

_CAUSES = frozenset(cause.value for cause in Cause) - {Cause.START.value}


def placed_near(job: Job, held: Held) -> Held:
    """What the member holds; where there cannot have been a world of this number, one without an id: it is called to the barrier."""
    if job.membership.expectation is None or held.generation <= job.membership.generation + GENERATIONS_AHEAD:
        return held
    return structs.replace(held, id="", generation=max(1, job.membership.generation), unacknowledged_restarts=())


def is_far_from(job: Job, expectation: Expectation) -> bool:
    """Whether members claimed, before the controller spoke, what it cannot have missed."""
    return job.membership.expectation is None and job.membership.generation > expectation.floor + GENERATIONS_AHEAD


def credible(job: Job, held: Held) -> tuple[Restart, ...]:
    """The restarts that a member kept for this server, as far as they can have happened and the job has room for them."""
    if not held.unacknowledged_restarts:
        return ()
    known = job.accounting.known_restarts.keys() | {entry.id for entry in job.accounting.recorded.unsettled}
    room = _capacity(job) - len(known)
    believed = []
    for entry in held.unacknowledged_restarts:
        if entry.cause not in _CAUSES or entry.generation > held.generation:
            continue
        if entry.id not in known:
            if room <= 0:
                continue
            room -= 1
        believed.append(entry)
    return tuple(believed)


def _capacity(job: Job) -> int:
    """Two worlds in a row may have lost everybody before the controller wrote it down."""
    largest = MAX_MEMBERS if job.membership.expectation is None else job.membership.max
    return min(MAX_UNSETTLED, max(MAX_HELD, 2 * largest))


def share_of(job: Job, name: str) -> tuple[Restart, ...]:
    """What this member keeps for the next server.

    Each share lies with `KEEPERS` ranks of the current world, far apart, since neighbours are often on one machine. Members without a rank
    keep one only of a group that has ended.
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
