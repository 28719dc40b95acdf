"""Invariants of a job, which must hold after every step of the engine.

Tests and the simulation check it after each step. The server does not, because that takes time in proportion to the members.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from .handlers.arrivals import RETIRED_KEPT
from .handlers.exit_reports import EXPLAINED_KEPT
from .messages.controller import MAX_UNSETTLED
from .messages.in_place import Stage
from .state.job import JobState
from .state.membership import MemberPhase, ranks_of


def broken(before: JobState, after: JobState) -> list[str]:
    """Return the invariants that do not hold after a step from one state to the next; none if the engine is right."""
    return [
        *_of_world(after),
        *_of_members(after),
        *_of_round(after),
        *_of_accounting(after),
        *_of_change(before, after),
        *_of_step(before, after),
    ]


def _of_world(job: JobState) -> Iterator[str]:
    group, world = job.membership, job.membership.world
    if world is None:
        if group.started or group.finished:
            yield f"members have started or finished in no world: {sorted(group.started | group.finished)}"
        return
    if ranks_of(world.by_rank) != world.ranks:
        yield f"the ranks {dict(world.ranks)} are not dense and unique: by rank there are {world.by_rank}"
    if world.size < 1:
        yield "the world has no seat"
    if world.generation > group.generation:
        yield f"the world has number {world.generation}, and the highest known number is {group.generation}"
    if not world.adopted and None in world.by_rank:
        yield f"a world that this server sealed has unknown members: {world.by_rank}"
    if strangers := (group.started | group.finished) - world.ranks.keys():
        yield f"members that are not in the world have started or finished there: {sorted(strangers)}"
    known = job.accounting
    lost = {loss.member for loss in known.losses} | {failure.member for failure in known.failures}
    missing = world.ranks.keys() - group.members.keys() - group.finished - lost
    if missing and not known.closed and not job.is_done:
        yield f"members of the world are neither here nor recorded as lost: {sorted(missing)}"


def _of_members(job: JobState) -> Iterator[str]:
    group, world = job.membership, job.membership.world
    retired = set(group.retired)
    for name, member in group.members.items():
        if member.name != name:
            yield f"{member.name} is kept as {name}"
        if (name, member.incarnation) in retired:
            yield f"{name} is here with incarnation {member.incarnation}, which a newer one replaced"
        if member.phase is MemberPhase.RUNNING and not member.world_id:
            yield f"{name} works in no world"
        if member.phase in (MemberPhase.BOOTING, MemberPhase.READY) and member.world_id:
            yield f"{name} is {member.phase}, and in world {member.world_id}"
        if world is not None and member.world_id == world.id and name not in world.ranks:
            yield f"{name} is in the world, and has no rank there"
    if len(group.retired) > RETIRED_KEPT:
        yield f"{len(group.retired)} retired incarnations are kept"


def _of_round(job: JobState) -> Iterator[str]:
    waiting, timings = job.membership.round, job.timings
    if waiting is not None:
        if not math.isfinite(waiting.until):
            yield "the round has no deadline"
        if waiting.draining and waiting.notified_at is None:
            yield "members are called to the barrier, and the time of the call is unknown"
        if waiting.began > job.now:
            yield "the round began in the future"
    if timings.doubt_since is not None and timings.first_doubt_at is None:
        yield "a doubt has no beginning, so it has no end"


def _of_change(before: JobState, after: JobState) -> Iterator[str]:
    """Yield what is wrong with the change in process."""
    known, group, world = after.in_place, after.membership, after.membership.world
    if known.round < before.in_place.round:
        yield f"the number of the change falls from {before.in_place.round} to {known.round}"
    is_round = group.round is not None and group.round.in_place
    if is_round != (known.stage in (Stage.HOLD, Stage.STOP, Stage.ABORT)) and not after.accounting.closed and not after.is_done:
        yield f"the change is at {known.stage}, and the round is {group.round}"
    if known.stage is not None and known.stage is not Stage.ABORT and world is None and group.members and not after.accounting.closed:
        yield f"the change is at {known.stage}, and there is no world"
    if world is not None and not known.formed <= world.ranks.keys():
        yield f"members that are not in the world have formed it: {sorted(known.formed - world.ranks.keys())}"
    if known.stage is Stage.STOP and known.step != max(known.holds.values(), default=None):
        yield f"members stop after step {known.step}, and promised {dict(known.holds)}"
    has_donors = world is None or (bool(known.donors) and max(known.donors) < world.size)
    if known.stage is Stage.FORM and not known.is_adopted and world is not None and not has_donors:
        yield f"the donors of a world of {world.size} have the ranks {known.donors}"
    for name, member in group.members.items():
        if member.alive and member.phase is not MemberPhase.READY:
            yield f"{name} is {member.phase}, and alive at the barrier"
        if member.provisional and member.phase not in (MemberPhase.BOOTING, MemberPhase.READY):
            yield f"{name} is {member.phase}, and in a world of its own"


def _of_accounting(job: JobState) -> Iterator[str]:
    known = job.accounting
    if any(id != entry.id for id, entry in known.known_restarts.items()):
        yield "a restart is kept under the id of another one"
    if len(known.known_restarts) > MAX_UNSETTLED:
        yield f"{len(known.known_restarts)} restarts are kept"
    if len(known.explained) > EXPLAINED_KEPT:
        yield f"{len(known.explained)} explained ends are kept"
    if any(count < 0 for count in known.restarts.values()) or job.progress.fruitless < 0:
        yield f"a number of restarts is negative: {dict(known.restarts)}, {job.progress.fruitless} in a row without progress"
    dates = [date.at for date in known.restart_dates]
    if dates != sorted(dates):
        yield "the dated restarts are not in order"
    for kind, members in (("lost", [loss.member for loss in known.losses]), ("failed", [one.member for one in known.failures])):
        if len(set(members)) != len(members):
            yield f"a member is recorded as {kind} twice: {members}"


def _of_step(before: JobState, after: JobState) -> Iterator[str]:
    was, group = before.membership, after.membership
    if after.now < before.now:
        yield f"time goes back from {before.now} to {after.now}"
    if group.arrivals < was.arrivals:
        yield f"the number of arrivals falls from {was.arrivals} to {group.arrivals}"
    if before.accounting.closed and after.accounting.closed != before.accounting.closed:
        yield f"a closed group is opened or closed again: {before.accounting.closed!r}, then {after.accounting.closed!r}"
    if was.expectation is not None:
        yield from _of_step_with_word(before, after)
    world = group.world
    if world is None or world.adopted or (was.world is not None and was.world.id == world.id):
        return
    if before.timings.doubt_since is not None and after.timings.doubt_since is not None:
        yield f"world {world.id} is sealed in a doubt"
    if world.generation <= was.generation:
        yield f"world {world.id} is sealed, and number {was.generation} is known"
    if group.expectation is None or world.size > group.max:
        yield f"world {world.id} has {world.size} members, and at most {group.max} are expected"
    if idle := [name for name in world.ranks if name not in group.members or group.members[name].world_id != world.id]:
        yield f"world {world.id} is sealed without its members {idle}"


def _of_step_with_word(before: JobState, after: JobState) -> Iterator[str]:
    """Yield what breaks once the controller has spoken. Before that, a claim of a member may be dropped again."""
    was, group = before.membership, after.membership
    assert was.expectation is not None
    if group.expectation is None:
        yield "the expectation is forgotten"
    elif group.expectation.term < was.expectation.term:
        yield f"the term falls from {was.expectation.term} to {group.expectation.term}"
    if group.generation < was.generation:
        yield f"the generation falls from {was.generation} to {group.generation}"
    if group.expectation is was.expectation:
        was_counted, counted = before.accounting.restarts, after.accounting.restarts
        # A restart may get another cause, once it is clear which end explains it.
        if sum(counted.values()) < sum(was_counted.values()):
            yield f"restarts are counted no more: there were {dict(was_counted)}, and there are {dict(counted)}"
    if before.progress.step is not None and (after.progress.step is None or after.progress.step < before.progress.step):
        yield f"the highest step falls from {before.progress.step} to {after.progress.step}"
