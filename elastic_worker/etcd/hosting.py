"""Let the engine decide for a job that meets in an etcd, from the records under its prefix.

Records are the whole state of the job, so this module makes the engine's state from them each time. Only waits come from the state before:
for how long this member has watched a fact hold. The engine goes one step, and what it changes is the record to write. Pure, as the engine.
"""

import math
import typing

from elastic_worker._engine import in_place
from elastic_worker._engine.messages.controller import Budget, Expectation, LeaveOrder
from elastic_worker._engine.messages.in_place import Stage
from elastic_worker._engine.restart_log import RestartLog
from elastic_worker._engine.state import accounting
from elastic_worker._engine.state.accounting import Accounting, Loss, PendingFailure
from elastic_worker._engine.state.in_place import InPlace
from elastic_worker._engine.state.job import JobState
from elastic_worker._engine.state.membership import CurrentWorld, LeaveNotice, Member, MemberPhase, Membership, Round, pod_of, ranks_of
from elastic_worker._engine.state.progress import Progress
from elastic_worker._engine.state.timings import Limits, Phases
from elastic_worker._engine.step import begin
from elastic_worker._engine.values import replace
from elastic_worker._engine.words import Cause
from elastic_worker.etcd import changes
from elastic_worker.etcd.group import Group, Rules, Standing
from elastic_worker.etcd.records import Records

INSTANCE = "etcd"
"""Part of a world's id. One transaction seals a world, so its generation alone tells it from all others."""


def job_of(records: Records, rules: Rules, *, before: typing.Optional[JobState], now: float, form_until: float = math.inf) -> JobState:
    """Return the engine's state of the job, with the waits of the state before.

    form_until: when a world that is being formed in process counts as failed.
    """
    group = Group(records, rules)
    job = _hosted(group, before=before, now=now, form_until=form_until)
    is_asked = job.membership.world is not None and job.in_place.stage not in (None, Stage.ABORT)
    if is_asked and changes.deserters(group) and not in_place.obstacle_to_begin(job):
        aborted = in_place.begin(job.with_round(changes.abort_round(group, now=now)), is_planned=False)
        job = _hosted(group, before=aborted, now=now, form_until=form_until)
    return job


def _hosted(group: Group, *, before: typing.Optional[JobState], now: float, form_until: float) -> JobState:
    records = group.records
    job = begin("", instance=INSTANCE, up_since=-math.inf, now=now, limits=_limits(group.rules))
    if before is not None and _generation(before) != (group.world.generation if group.world is not None else 0):
        before = None
    expectation, change = _expectation(group), changes.state_of(group, before, until=form_until)
    world = _world(group, since=before.membership.world.since if before is not None and before.membership.world is not None else now)
    membership = Membership(
        expectation=expectation,
        expected=dict.fromkeys(expectation.members) if expectation is not None else {},
        notices={one.member: LeaveNotice(now + one.by_s, one.cause, one.when_replaced) for one in expectation.leaving}
        if expectation
        else {},
        members=_members(group, change, now=now),
        arrivals=len(records.members),
        generation=group.next_generation() - 1,
        world=world,
        finished=frozenset(group.those(Standing.FINISHED)),
        round=_round(group, before, now=now),
    )
    progress = _progress(records, before, now=now)
    timings = before.timings if before is not None else job.timings
    if world is not None:
        timings = replace(timings, phases=_phases(group, before, now=now))
    accounting = _accounting(group, now=now)
    return replace(job, membership=membership, accounting=accounting, progress=progress, timings=timings, in_place=change)


def _limits(rules: Rules) -> Limits:
    """Return the waits. A record that is gone shows that its member is gone, so nobody waits for connections."""
    return Limits(
        straggler_s=rules.straggler_s,
        return_s=0.0,
        settle_s=0.0,
        silence_s=math.inf,
        peers_s=rules.peers_s,
        drain_s=rules.drain_s,
        late_s=rules.late_s,
        progress_s=rules.lasted_s,
    )


def _generation(job: JobState) -> int:
    return job.membership.world.generation if job.membership.world is not None else 0


def _expectation(group: Group) -> typing.Optional[Expectation]:
    """Return the controller's word. Without a controller, everybody who has come is expected."""
    said, rules = group.expected, group.rules
    if said is None:
        if rules.needs_controller:
            return None
        names = {present.record.name: present.created for present in group.records.members.values() if not present.record.left}
        members = tuple(sorted(names, key=lambda name: (names[name], name)))
    else:
        members = said.members
    return Expectation(
        members=members,
        pending=said.pending if said is not None else (),
        leaving=tuple(
            LeaveOrder(member=one.member, by_s=one.by_s, cause=one.cause or Cause.PLAN.value, when_replaced=one.when_replaced)
            for one in (said.leaving if said is not None else ())
        ),
        finished=said.finished if said is not None else (),
        min=rules.min,
        max=rules.max,
        sizes=rules.sizes,
        budget=Budget(max_restarts=rules.max_restarts, without_progress=rules.without_progress, hang_s=rules.hang_s),
        grace_s=rules.grace_s,
        floor=said.floor if said is not None else 0,
        newcomers=said.newcomers if said is not None else (),
        state_s=rules.state_s,
    )


def _world(group: Group, *, since: float) -> typing.Optional[CurrentWorld]:
    world = group.world
    if world is None:
        return None
    by_rank = tuple(seat.name for seat in world.seats)
    heirs = frozenset(by_rank[rank] for rank in world.heirs if rank < len(by_rank))
    return CurrentWorld(
        id="{}-{}".format(world.generation, INSTANCE),
        generation=world.generation,
        by_rank=by_rank,
        store=world.store,
        reason=world.reason,
        cause=world.cause,
        since=since,
        ranks=ranks_of(by_rank),
        heirs=heirs or None,
    )


PHASES = {
    Standing.WORKING: MemberPhase.RUNNING,
    Standing.FAILED: MemberPhase.RUNNING,
    Standing.BACK: MemberPhase.READY,
    Standing.FINISHED: MemberPhase.FINISHED,
}


def _members(group: Group, change: InPlace, *, now: float) -> typing.Dict[str, Member]:
    """Return the members that are here: those at their seats, and newcomers by age."""
    found = {}
    ages = sorted(group.records.members.values(), key=lambda present: (present.created, present.record.name))
    waiting = {one.name for one in group.newcomers()}
    for arrived, present in enumerate(ages):
        record = present.record
        standing = group.standings.get(record.name, Standing.GONE)
        if standing is Standing.GONE:
            if record.left or (record.name in group.ranks and record.name not in waiting):
                continue
            phase = MemberPhase.READY if record.name in waiting else MemberPhase.BOOTING
            member = Member(record.name, record.incarnation, phase, heard_at=now, arrived=arrived, store=record.store)
            found[record.name] = changes.placed(member, record, group, change)
            continue
        assert group.world is not None
        phase, generation = PHASES[standing], group.world.generation
        world_id = "" if phase is MemberPhase.READY else "{}-{}".format(generation, INSTANCE)
        member = Member(record.name, record.incarnation, phase, now, arrived, world_id=world_id, generation=generation, store=record.store)
        found[record.name] = changes.placed(member, record, group, change)
    return found


def _round(group: Group, before: typing.Optional[JobState], *, now: float) -> typing.Optional[Round]:
    """Return the round that the record asks for, or the one that this member itself waits in."""
    world, known = group.world, before.membership.round if before is not None else None
    found = changes.round_of(group, before, now=now)
    if found is not None:
        return found
    if world is None or world.round is None:
        is_kept = known is not None and (world is None or changes.is_broken(group) or not known.draining)
        return known if is_kept and known is not None and not known.in_place else None
    if known is not None and known.draining and not known.in_place and known.reason == world.round.reason:
        return known
    until = now + group.rules.grace_s + group.rules.drain_s
    return Round(world.round.reason, world.round.cause, now, True, until, now)


def _accounting(group: Group, *, now: float) -> Accounting:
    """Return the restarts that the record counts, and what ended its world."""
    world, said = group.world, group.expected
    counts = world.restarts if world is not None else said.restarts if said is not None else {}
    generation = world.generation if world is not None else 0
    known = Accounting(recorded=RestartLog(dict(counts), (), generation), restarts={cause: n for cause, n in counts.items() if n})
    if world is None:
        return known
    planned = frozenset(world.round.planned if world.round is not None else ())
    runs = {seat.name: seat.incarnation for seat in world.seats}
    pods = {name: pod_of(incarnation) for name, incarnation in runs.items()}
    if world.round is not None and world.round.cause == Cause.HANG:
        known = replace(known, hang_reason=world.round.reason, trouble=(world.round.reason, Cause.HANG.value))
    if world.round is None or changes.is_in_process(group):
        for name in changes.alarms(group):
            known = accounting.with_alarm(known, name)
        for name in group.failed():
            failure = group.failure(name)
            assert failure is not None
            if failure.by_library:
                words = "the training library ended a worker of {}".format(name)
                known = accounting.with_loss(known, Loss(name, pods[name], Cause.DISRUPTION.value, words, by_library=True))
                continue
            at = float(failure.at or group.records.members[name].written)
            # The engine tells by the words of an error whether a peer was gone; the record has only the answer.
            blame = Cause.OUT_OF_MEMORY if failure.out_of_memory else Cause.USER
            found = PendingFailure(name, pods[name], failure.status, at, cause=blame, is_replaced=failure.replaced)
            found = replace(found, error="connection reset by peer" if failure.follows else "")
            known = accounting.with_failure(known, found)
    for name in group.those(Standing.GONE):
        if group.failure(name) is not None:
            continue
        cause = Cause.PLAN.value if group.ranks[name] in planned else group.leaving(name) or Cause.DISRUPTION.value
        present = group.records.members.get(name)
        left = present.record.left if present is not None and present.record.incarnation == runs[name] else ""
        words = "{} left: {}".format(name, left) if left else "{} was lost".format(name)
        known = accounting.with_loss(known, Loss(name, pods[name], cause, words, is_gone=True, unsure=True))
    for name in group.those(Standing.BACK):
        trouble = group.members[name].trouble
        if trouble and group.failure(name) is None:
            known = accounting.with_loss(known, Loss(name, pods[name], Cause.DISRUPTION.value, "{}: {}".format(name, trouble)))
        elif known.trouble is None:
            known = replace(known, trouble=("{} came back".format(name), Cause.DISRUPTION.value))
    return known


def _progress(records: Records, before: typing.Optional[JobState], *, now: float) -> Progress:
    world, told, said = records.world, records.progress, records.expected
    in_world = told.in_world if told is not None and world is not None and told.generation == world.generation else None
    same = before is not None and before.progress.step_in_world == in_world
    moved_at = before.progress.moved_at if before is not None and same else now
    start = world if world is not None else said
    reached = start.step if start is not None else None
    is_forward = told is not None and (reached is None or told.step > reached)
    return Progress(
        step=told.step if told is not None else reached,
        step_at_restart=reached,
        fruitless=0 if start is None or is_forward else start.fruitless,
        step_in_world=in_world,
        moved_at=moved_at,
        done_at=before.progress.done_at if before is not None else None,
    )


def _phases(group: Group, before: typing.Optional[JobState], *, now: float) -> Phases:
    """Return since when all members of the world have been at work, which a hang is measured from."""
    world = group.world
    assert world is not None
    has_entered = all(group.standings[name] is Standing.WORKING and group.members[name].entered >= world.generation for name in group.ranks)
    known = before.timings.phases if before is not None else None
    started = (known.started if known is not None and known.started is not None else now) if has_entered else None
    return Phases(now, now, now, now, now, started=started)
