"""The job as others see it: the view of one member, and the world that the controller hears of."""

import msgspec

from elastic.membership.bounds import MAX_MEMBERS, clipped
from elastic.membership.doing import Hang
from elastic.membership.in_place import Rung
from elastic.membership.phases import WorldPhase
from elastic.membership.wire import RankedMember, Rescale, Standing, View, World
from rendezvous.machine import in_place, stragglers
from rendezvous.machine.choose import absent, awaits_state, leave_notice, target
from rendezvous.machine.handlers.exit_reports import end_id
from rendezvous.machine.presented import share_of
from rendezvous.machine.reach import awaits_word
from rendezvous.machine.state.job import Job
from rendezvous.machine.state.membership import CurrentWorld, Member, Phase

NAMED = 5
DONE = "the training has ended: its other workers are done, and nobody is taken in any more"


def view(job: Job, name: str) -> View:
    """Return everything that this member needs to know now."""
    group = job.membership
    member, world, grace_s = group.members[name], group.world, group.grace_s
    notice = leave_notice(group, name, now=job.now)
    why_leaving = notice.cause if notice is not None else ""
    if job.may_tell_end:
        return View(closed=job.accounting.closed, grace_s=grace_s, done=True, leaving=why_leaving)
    if world is None or member.world_id != world.id or member.phase in (Phase.READY, Phase.BOOTING):
        is_newcomer = member.generation == 0
        starts = member.provisional and is_newcomer and job.changes_in_process
        astray = member.phase in (Phase.BOOTING, Phase.RUNNING) and (member.provisional if is_newcomer else True) and not starts
        why = "the world went on without this member" if not is_newcomer else "all processes of the job restart"
        if why_leaving:
            why = f"{name} is leaving ({why_leaving})"
        return View(
            reform=why if astray else "",
            waiting=waiting(job, member),
            finished=DONE if job.is_done and member.phase is Phase.READY else "",
            leaving=why_leaving,
            grace_s=grace_s,
            done=member.phase is Phase.FINISHED,
            unacknowledged_restarts=share_of(job, name) if job.accounting.closed else (),
            change=in_place.change_of(job, member),
            provisional=starts,
        )
    draining = group.is_draining and member.phase is Phase.RUNNING and not (group.round is not None and group.round.in_place)
    return View(
        generation=world.generation,
        id=world.id,
        rank=world.ranks[name],
        size=world.size,
        store=world.store,
        reform=clipped(group.round.reason) if draining and group.round is not None else "",
        leaving=why_leaving,
        grace_s=grace_s,
        done=job.is_done,
        peers_finished=name == group.last_at_work,
        unacknowledged_restarts=share_of(job, name),
        change=in_place.change_of(job, member),
        watch=job.hang_watch.asks,
        pace_s=job.budget.pace_s,
    )


def in_all_views(job: Job) -> tuple[object, ...]:
    """Return the values on which the views of all members depend. The rest of a view depends on its member's messages."""
    group, known = job.membership, job.accounting
    return (
        group.world,
        known.unacknowledged_restarts,
        group.round,
        known.closed,
        group.expectation,
        job.is_done,
        job.in_place.told,
        job.hang_watch.asks,
    )


def waiting(job: Job, member: Member) -> str:
    """Return why a member at the barrier is in no world."""
    notice = leave_notice(job.membership, member.name, now=job.now)
    if job.accounting.closed:
        return clipped(f"for the controller to write down why the group ends: {job.accounting.closed}")
    if job.membership.expectation is None:
        return "for the controller, which has not said yet who is expected"
    if notice is not None and member.name not in job.membership.expected:
        return "not expected by the controller (yet)"
    if notice is not None:
        return f"leaving ({notice.cause})"
    return "for the next world"


def summary(job: Job) -> World:
    """Return the job as the controller hears of it."""
    group, known, expectation = job.membership, job.accounting, job.membership.expectation
    world = group.world if not group.is_draining and not known.closed else None
    ended = expectation.ended if expectation is not None else ()
    return World(
        job=job.uid,
        generation=group.generation if expectation is not None else 0,
        phase=_phase(job),
        members=_ranked_members(job, world) if world is not None else (),
        waiting=tuple(m.name for m in group.members.values() if m.phase is Phase.READY or m.provisional)[:MAX_MEMBERS],
        leaving=tuple(name for name in group.members if leave_notice(group, name, now=job.now) is not None)[:MAX_MEMBERS],
        restarts=dict(known.restarts),
        unacknowledged_restarts=known.unrecorded if expectation is not None else (),
        explained=tuple(end_id(end) for end in ended if end_id(end) in known.explained),
        fruitless=job.progress.fruitless if expectation is not None else None,
        step=job.progress.step_at_restart,
        # While a world works, the step would be old by the next change.
        highest=job.progress.step if _phase(job) is not WorldPhase.RUNNING else None,
        reason=clipped(_reason(job)),
        closed=known.closed,
        rescale=_rescale(job),
        standing=_standing(job, world) if world is not None else None,
        asks=awaits_word(job),
        hang=_hang(job),
        stragglers=stragglers.told(job),
    )


def _ranked_members(job: Job, world: CurrentWorld) -> tuple[RankedMember, ...]:
    here = job.membership.members
    return tuple(
        RankedMember(name=name, rank=rank, incarnation=here[name].incarnation if name in here else "")
        for name, rank in world.ranks.items()
        if not job.is_done or name in job.membership.finished
    )


def _standing(job: Job, world: CurrentWorld) -> Standing:
    return Standing(size=world.size, age_s=max(0.0, job.now - world.since), has_stepped=job.progress.step_in_world is not None)


def _phase(job: Job) -> WorldPhase:
    group = job.membership
    if job.accounting.closed:
        return WorldPhase.CLOSED
    if job.is_done:
        return WorldPhase.FINISHED if job.progress.is_complete else WorldPhase.FINISHING
    if group.world is None:
        return WorldPhase.FORMING if group.members else WorldPhase.EMPTY
    return WorldPhase.RE_FORMING if group.is_draining else WorldPhase.RUNNING


def _reason(job: Job) -> str:
    group = job.membership
    if job.accounting.closed:
        return job.accounting.closed
    if group.round is None or not group.round.draining:
        return group.world.reason if group.world is not None else "no member has come yet"
    here = sum(1 for m in group.members.values() if m.phase is Phase.READY)
    text = f"{group.round.reason}: {here} at the barrier, at least {group.min} needed"
    missing = absent(group)
    if missing:
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        text += f", waiting for {', '.join(missing[:NAMED])}{more}"
    if group.expectation is not None and group.expectation.awaited and (chosen := target(job)) and awaits_state(job, chosen):
        text += "; none of them has the state of training, and a worker that has it may come back"
    return text


def _hang(job: Job) -> Hang | None:
    found = job.hang_watch.found
    return msgspec.structs.replace(found, ago_s=max(0.0, job.now - job.hang_watch.found_at)) if found is not None else None


def _rung(job: Job, world: CurrentWorld) -> str:
    """Return how the processes came into this world. Agents say whether the fork server started them."""
    group = job.membership
    if world.rung != Rung.PLAIN or not group.started >= world.ranks.keys():
        return world.rung
    return Rung.WARM if group.warm >= world.ranks.keys() else Rung.PLAIN


def _rescale(job: Job) -> Rescale | None:
    world, at = job.membership.world, job.timings.phases
    if world is None or at is None:
        return None
    marks = {
        "detect": at.detected - at.first_sign,
        "notice": at.notified - at.detected,
        "drain": at.drained - at.notified,
        "round": at.sealed - at.drained,
    }
    if at.started is not None:
        marks["start"] = at.started - at.sealed
        if at.stepped is not None:
            marks["firstStep"] = at.stepped - at.started
    phases = {name: max(0, round(seconds * 1000)) for name, seconds in marks.items()}
    return Rescale(
        id=world.id,
        cause=world.cause,
        reason=clipped(world.reason),
        phases=phases,
        step_before=job.progress.before,
        step_after=job.progress.first_in_world,
        state_lost=world.lost_state,
        began_unseen=world.began_unseen,
        rung=_rung(job, world),
        killed=world.killed,
    )
