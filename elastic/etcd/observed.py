"""Translate a job's records in etcd into messages of the rendezvous server, and a controller's expectation into a record. Pure.

Agents in an etcd decide by themselves (elastic_worker.etcd.decide) and keep the ends of members in the record `world`. They cannot know
how a container ended, so this module adds it. Both sides derive a restart's id from the world and the pod, so that it counts once.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum

from elastic.etcd.records import Expected, Leaving, Member, Records, Seat, World, uid_of
from elastic.membership import bounds, wire
from elastic.membership.phases import WorldPhase
from elastic_training.rendezvous.engine.messages.in_place import Rung
from elastic_training.rendezvous.engine.restart_log import RestartLog, merged, unknown_to

NAMED = 3
PLAN, USER, OUT_OF_MEMORY, DISRUPTION, HANG = "plan", "user", "outOfMemory", "disruption", "hang"
IN_PROCESS = ("hold", "stop", "form", "run")
"""Stages of a world whose processes change worlds (elastic_worker.etcd.change_records)."""
CHARGED = (USER, OUT_OF_MEMORY, HANG)
"""The charged causes that agents know."""


class Standing(Enum):
    """The state of a seat's member, as in elastic_worker.etcd.group."""

    WORKING = "working"
    FAILED = "failed"
    BACK = "back"
    FINISHED = "finished"
    GONE = "gone"


def standing_of(seat: Seat, member: Member | None, generation: int) -> Standing:
    if member is None or member.incarnation != seat.incarnation:
        return Standing.GONE
    if member.finished == generation:
        return Standing.FINISHED
    if member.left:
        return Standing.GONE
    if member.after >= generation:
        return Standing.BACK
    has_failed = member.failed is not None and member.failed.generation == generation
    return Standing.FAILED if has_failed else Standing.WORKING


def standings_of(records: Records) -> dict[str, Standing]:
    world = records.world
    if world is None:
        return {}
    return {seat.name: standing_of(seat, records.members.get(seat.name), world.generation) for seat in world.seats}


def phase_of(records: Records) -> WorldPhase:
    """Return the phase of the world, by the name that the rendezvous server uses."""
    world, there = records.world, set(standings_of(records).values())
    if world is None:
        return WorldPhase.FORMING if records.members else WorldPhase.EMPTY
    if world.closed:
        return WorldPhase.CLOSED
    if Standing.FINISHED in there:
        return WorldPhase.FINISHING if there & {Standing.WORKING, Standing.BACK, Standing.FAILED} else WorldPhase.FINISHED
    return WorldPhase.RUNNING if there == {Standing.WORKING} and world.round is None else WorldPhase.RE_FORMING


def has_started(records: Records) -> bool:
    """Return whether the world stands and each of its members has entered it."""
    world = records.world
    if world is None or phase_of(records) is not WorldPhase.RUNNING:
        return False
    return all(records.members[seat.name].entered == world.generation for seat in world.seats)


def heard(
    job: str,
    records: Records,
    expectation: wire.Expectation | None,
    *,
    age_s: float,
    phases: Mapping[str, int],
    silent: Collection[str],
    baseline: int = 0,
) -> wire.WorldReport:
    """Return the world as the rendezvous server would report it.

    age_s: how long the world is known. phases: how long its forming took. silent: ends of containers that agents have had enough time to
    notice. baseline: the first world whose end counts here; pods were counted before it.
    """
    world, phase = records.world, phase_of(records)
    standings = standings_of(records)
    explained, restarts = _accounted(records, expectation, silent, baseline)
    stands = world is not None and phase in (WorldPhase.RUNNING, WorldPhase.FINISHING, WorldPhase.FINISHED)
    return wire.WorldReport(
        job=job,
        generation=world.generation if world is not None else 0,
        phase=phase,
        members=tuple(_seats(world, standings, phase)) if world is not None and stands else (),
        waiting=tuple(sorted(name for name, member in records.members.items() if name not in standings and not member.left)),
        leaving=tuple(sorted(leaving.member for leaving in records.expected.leaving)) if records.expected is not None else (),
        restarts=dict(world.restarts) if world is not None else {},
        unacknowledged_restarts=restarts,
        explained=explained,
        fruitless=_fruitless(records) if expectation is not None else None,
        step=world.step if world is not None else None,
        highest=records.progress.step if records.progress is not None and phase is not WorldPhase.RUNNING else None,
        reason=bounds.clipped(_reason(records, standings, phase)),
        closed=world.closed if world is not None else "",
        rescale=_rescale(world, phases) if world is not None else None,
        standing=_standing(world, records, age_s=age_s) if world is not None and stands and world.seats else None,
    )


def has_stepped(records: Records) -> bool:
    """Return whether training has reported a step in this world."""
    world, progress = records.world, records.progress
    return world is not None and progress is not None and progress.generation == world.generation


def _standing(world: World, records: Records, *, age_s: float) -> wire.StandingWorld:
    return wire.StandingWorld(size=len(world.seats), age_s=age_s, has_stepped=has_stepped(records))


def _fruitless(records: Records) -> int:
    """Count the restarts in a row without a further step. A step beyond that of the newest restart ends the row."""
    world, progress = records.world, records.progress
    if world is None or (progress is not None and (world.step is None or progress.step > world.step)):
        return 0
    return world.fruitless


def unreached(job: str, why: str, *, generation: int) -> wire.WorldReport:
    """Report that nobody can tell who is in the world, so that the job's pods are counted instead."""
    return wire.WorldReport(job=job, generation=generation, phase=WorldPhase.UNREACHED, reason=bounds.clipped(why))


def _seats(world: World, standings: Mapping[str, Standing], phase: WorldPhase) -> Iterator[wire.RankedMember]:
    for rank, seat in enumerate(world.seats):
        if phase is not WorldPhase.FINISHED or standings[seat.name] is Standing.FINISHED:
            yield wire.RankedMember(name=seat.name, rank=rank, incarnation=seat.incarnation if len(seat.incarnation) <= 253 else "")


def _reason(records: Records, standings: Mapping[str, Standing], phase: WorldPhase) -> str:
    """Return why the world is as it is, and also who is missing while a world forms."""
    world = records.world
    if world is not None and world.closed:
        return world.closed
    if world is not None and phase is not WorldPhase.RE_FORMING:
        return world.reason
    why = world.round.reason if world is not None and world.round is not None else _broken(standings)
    absent = missing(records)
    more = f" and {len(absent) - NAMED} more" if len(absent) > NAMED else ""
    return f"{why}, waiting for {', '.join(absent[:NAMED])}{more}" if absent else why


def _broken(standings: Mapping[str, Standing]) -> str:
    for standing, words in ((Standing.GONE, "was lost"), (Standing.FAILED, "failed"), (Standing.BACK, "came back")):
        if found := [name for name, there in standings.items() if there is standing]:
            return f"{found[0]} {words}"
    return "the first members have come" if not standings else "a new world forms"


def missing(records: Records) -> list[str]:
    """Return the expected members that could be here and are not."""
    expected = records.expected
    if expected is None:
        return []
    excused = {*expected.pending, *expected.finished, *(leaving.member for leaving in expected.leaving)}
    here = {name for name, member in records.members.items() if not member.left}
    return sorted(set(expected.members) - here - excused)


def _rescale(world: World, phases: Mapping[str, int]) -> wire.RescaleReport:
    change = world.change
    is_alive = change is not None and change.stage in IN_PROCESS and world.generation > change.began
    rung = Rung.IN_PROCESS if is_alive else ""
    return wire.RescaleReport(id=f"{world.generation}.etcd", cause=world.cause or PLAN, reason=world.reason, phases=dict(phases), rung=rung)


# --- restarts


def _accounted(
    records: Records, expectation: wire.Expectation | None, silent: Collection[str], baseline: int
) -> tuple[tuple[str, ...], tuple[wire.Restart, ...]]:
    """Return the ends of containers that are accounted for, and the restarts that the controller does not know yet."""
    if expectation is None:
        return (), ()
    log = RestartLog(expectation.restarts, expectation.unsettled, expectation.settled_to)
    restarts = [restart for restart in _of_world(records.world) if restart.generation >= baseline]
    explained = []
    for end in expectation.ended:
        known = merged(log, restarts)
        found = _of_end(end, known, records, is_silent=end_id(end) in silent)
        if found is not None:
            restarts += found
            explained.append(end_id(end))
    return tuple(explained), unknown_to(log, _newest(restarts))[-wire.MAX_UNSETTLED :]


def end_id(end: wire.Ended) -> str:
    return f"{end.pod_uid}/{end.run}"


def _newest(restarts: Iterable[wire.Restart]) -> tuple[wire.Restart, ...]:
    """Return each restart once: the known cause of a container's end replaces the agents' guess."""
    return merged(RestartLog(), restarts).unsettled


def _of_world(world: World | None) -> Iterator[wire.Restart]:
    for end in world.ends if world is not None else ():
        uid = uid_of(end.incarnation)
        if end.cause == HANG:  # the whole world's, and no pod's
            yield wire.Restart(id=f"{end.generation}.etcd", generation=end.generation, cause=HANG)
            continue
        is_guess = end.is_lost and end.cause == DISRUPTION
        yield wire.Restart(
            id=_id(end.generation, uid), generation=end.generation, cause=end.cause, pod=uid, lost=end.is_lost, unsure=is_guess
        )


def _id(generation: int, uid: str) -> str:
    return f"{generation}.etcd/{uid}"


def _of_end(end: wire.Ended, log: RestartLog, records: Records, *, is_silent: bool) -> list[wire.Restart] | None:
    """Return the restarts that a container's end adds, at most one; None while the agents have yet to notice the end."""
    world, standings = records.world, standings_of(records)
    generation = max(log.generation, world.generation if world is not None else 0)
    alone = wire.Restart(id=end_id(end), generation=generation, cause=end.cause, pod=end.pod_uid)
    if end.usage_error:
        return [alone]
    lost = log.lost(end.pod_uid)
    if lost is not None:
        return [wire.Restart(id=lost.id, generation=lost.generation, cause=end.cause, pod=end.pod_uid)]
    seat = next((seat for seat in world.seats if uid_of(seat.incarnation) == end.pod_uid), None) if world is not None else None
    if world is not None and seat is not None:
        standing = standings[seat.name]
        if standing is Standing.GONE:
            return [wire.Restart(id=_id(world.generation, end.pod_uid), generation=world.generation, cause=end.cause, pod=end.pod_uid)]
        if standing in (Standing.FAILED, Standing.FINISHED):
            return []  # its agent has said so itself
        if not is_silent:
            return None
    if end.cause == DISRUPTION or any(uid_of(known.incarnation) == end.pod_uid for known in (world.ends if world is not None else ())):
        return []
    return [alone]


# --- what the controller expects


def expected_of(expectation: wire.Expectation) -> Expected:
    """Return the record that tells the agents what is expected of them."""
    return Expected(
        members=expectation.members,
        min=expectation.min,
        max=expectation.max,
        pending=expectation.pending,
        leaving=tuple(
            Leaving(member=one.member, cause=one.cause, by_s=one.by_s, when_replaced=one.when_replaced) for one in expectation.leaving
        ),
        finished=expectation.finished,
        sizes=expectation.sizes,
        grace_s=expectation.grace_s,
        floor=expectation.floor,
        max_restarts=_limit(expectation.budget),
        restarts={cause: count for cause, count in expectation.restarts.items() if cause in CHARGED},
        closed=expectation.closed,
        term=expectation.term,
        without_progress=expectation.budget.without_progress,
        hang_s=None if expectation.budget.hang_s is None else min(expectation.budget.hang_s, bounds.MOST_SECONDS),
        fruitless=expectation.fruitless,
        step=expectation.step,
        newcomers=expectation.newcomers,
        state_s=expectation.state_s,
    )


def _limit(budget: wire.Budget) -> int | None:
    """Return the limit that the agents enforce; None if the controller enforces it.

    Agents count since the beginning, and count failed workers and hangs together. They cannot enforce a limit of another kind.
    """
    is_theirs = budget.window_s is None and not any(cause in budget.by_cause for cause in CHARGED)
    return budget.max_restarts if is_theirs else None
