"""What a job looks like from outside: to one member, and to the controller."""

from elastic.membership.wire import MAX_MEMBERS, RankedMember, Rescale, Standing, View, World, clipped
from rendezvous.machine.choose import absent, leave_notice
from rendezvous.machine.event_handlers import end_id
from rendezvous.machine.presented import share_of
from rendezvous.machine.restart_budget import unacknowledged_restarts
from rendezvous.machine.state import CurrentWorld, Job, Member, Phase

NAMED = 5
DONE = "the training has ended: its other workers are done, and nobody is taken in any more"


def view(job: Job, name: str) -> View:
    """All that this member needs to know now."""
    member = job.members[name]
    grace_s = job.expectation.grace_s if job.expectation is not None else 30.0
    notice = leave_notice(job, name)
    why_leaving = notice.cause if notice is not None else ""
    world = job.world
    if job.may_tell_end:
        return View(closed=job.closed, grace_s=grace_s, done=True, leaving=why_leaving)
    if world is None or member.world_id != world.id or member.phase in (Phase.READY, Phase.BOOTING):
        astray = member.phase in (Phase.BOOTING, Phase.RUNNING) and member.generation > 0
        why = f"{name} is leaving ({why_leaving})" if why_leaving else "the world went on without this member"
        return View(
            reform=why if astray else "",
            waiting=waiting(job, member),
            finished=DONE if job.is_done and member.phase is Phase.READY else "",
            leaving=why_leaving,
            grace_s=grace_s,
            done=member.phase is Phase.FINISHED,
            unacknowledged_restarts=share_of(job, name) if job.closed else (),
        )
    draining = job.round is not None and job.round.draining and member.phase is Phase.RUNNING
    return View(
        generation=world.generation,
        id=world.id,
        rank=world.ranks[name],
        size=world.size,
        store=world.store,
        reform=clipped(job.round.reason) if draining and job.round is not None else "",
        leaving=why_leaving,
        grace_s=grace_s,
        done=job.is_done,
        peers_finished=name == job.last_at_work,
        unacknowledged_restarts=share_of(job, name),
    )


def in_all_views(job: Job) -> tuple[object, ...]:
    """What the view of every member depends on. The rest of a view depends on what its member said."""
    return job.world, job.unacknowledged_restarts, job.round, job.closed, job.expectation, job.is_done


def waiting(job: Job, member: Member) -> str:
    """Why a member at the barrier is in no world."""
    notice = leave_notice(job, member.name)
    if job.closed:
        return clipped(f"for the controller to write down why the group ends: {job.closed}")
    if job.expectation is None:
        return "for the controller, which has not said yet who is expected"
    if notice is not None and member.name not in job.expected:
        return "not expected by the controller (yet)"
    if notice is not None:
        return f"leaving ({notice.cause})"
    return "for the next world"


def summary(job: Job) -> World:
    """The job as the controller hears of it."""
    world = job.world
    forming = job.round is not None and job.round.draining
    stands = world is not None and not forming and not job.closed
    ended = job.expectation.ended if job.expectation is not None else ()
    return World(
        job=job.uid,
        generation=job.generation if job.expectation is not None else 0,
        phase=_phase(job),
        members=_ranked_members(job, world) if world is not None and stands else (),
        waiting=tuple(m.name for m in job.members.values() if m.phase is Phase.READY)[:MAX_MEMBERS],
        leaving=tuple(name for name in job.members if leave_notice(job, name) is not None)[:MAX_MEMBERS],
        restarts=dict(job.restarts),
        unacknowledged_restarts=unacknowledged_restarts(job) if job.expectation is not None else (),
        explained=tuple(end_id(end) for end in ended if end_id(end) in job.explained),
        fruitless=job.progress.fruitless if job.expectation is not None else None,
        step=job.progress.step_at_restart,
        reason=clipped(_reason(job)),
        closed=job.closed,
        rescale=_rescale(job),
        standing=_standing(job, world) if world is not None and stands else None,
    )


def _ranked_members(job: Job, world: CurrentWorld) -> tuple[RankedMember, ...]:
    here = job.members
    return tuple(
        RankedMember(name=name, rank=rank, incarnation=here[name].incarnation if name in here else "")
        for name, rank in world.ranks.items()
        if not job.is_done or name in job.finished
    )


def _standing(job: Job, world: CurrentWorld) -> Standing:
    return Standing(size=world.size, age_s=max(0.0, job.now - world.since), has_stepped=job.progress.step_in_world is not None)


def _phase(job: Job) -> str:
    if job.closed:
        return "closed"
    if job.is_done:
        return "finished" if job.is_complete else "finishing"
    if job.world is None:
        return "forming" if job.members else "empty"
    if job.round is not None and job.round.draining:
        return "re-forming"
    return "running"


def _reason(job: Job) -> str:
    if job.closed:
        return job.closed
    if job.round is None or not job.round.draining:
        return job.world.reason if job.world is not None else "no member has come yet"
    here = sum(1 for m in job.members.values() if m.phase is Phase.READY)
    text = f"{job.round.reason}: {here} at the barrier, at least {job.min} needed"
    missing = absent(job)
    if missing:
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        text += f", waiting for {', '.join(missing[:NAMED])}{more}"
    return text


def _rescale(job: Job) -> Rescale | None:
    world, at = job.world, job.phases
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
    return Rescale(id=world.id, cause=world.cause, reason=clipped(world.reason), phases=phases)
