"""What a job looks like from outside: to one member, and to the controller."""

from elastic.membership.wire import MAX_MEMBERS, Rescale, Seat, Standing, View, World, clipped
from rendezvous.machine.choose import absent, leaving
from rendezvous.machine.event_handlers import end_id
from rendezvous.machine.presented import share_of
from rendezvous.machine.restart_budget import uncounted
from rendezvous.machine.state import CurrentWorld, Job, Member, Phase

NAMED = 5
DONE = "the training has ended: its other workers are done, and nobody is taken in any more"


def view(job: Job, name: str) -> View:
    """All that this member needs to know now."""
    member = job.members[name]
    grace_s = job.expectation.grace_s if job.expectation is not None else 30.0
    told = leaving(job, name)
    why_leaving = told[1] if told is not None else ""
    standing = job.standing
    if job.may_tell_end:
        return View(closed=job.closed, grace_s=grace_s, done=True, leaving=why_leaving)
    if standing is None or member.world != standing.id or member.phase in (Phase.READY, Phase.BOOTING):
        astray = member.phase in (Phase.BOOTING, Phase.RUNNING) and member.generation > 0
        why = f"{name} is leaving ({why_leaving})" if why_leaving else "the world went on without this member"
        return View(
            reform=why if astray else "",
            waiting=waiting(job, member),
            finished=DONE if job.is_done and member.phase is Phase.READY else "",
            leaving=why_leaving,
            grace_s=grace_s,
            done=member.phase is Phase.FINISHED,
            uncounted=share_of(job, name) if job.closed else (),
        )
    draining = job.round is not None and job.round.draining and member.phase is Phase.RUNNING
    return View(
        generation=standing.generation,
        id=standing.id,
        rank=standing.ranks[name],
        size=standing.size,
        store=standing.store,
        reform=clipped(job.round.reason) if draining and job.round is not None else "",
        leaving=why_leaving,
        grace_s=grace_s,
        done=job.is_done,
        peers_finished=name == job.last_at_work,
        uncounted=share_of(job, name),
    )


def waiting(job: Job, member: Member) -> str:
    """Why a member at the barrier is in no world."""
    told = leaving(job, member.name)
    if job.closed:
        return clipped(f"for the controller to write down why the group ends: {job.closed}")
    if job.expectation is None:
        return "for the controller, which has not said yet who is expected"
    if told is not None and member.name not in job.expected:
        return "not expected by the controller (yet)"
    if told is not None:
        return f"leaving ({told[1]})"
    return "for the next world"


def summary(job: Job) -> World:
    """The job as the controller hears of it."""
    standing = job.standing
    forming = job.round is not None and job.round.draining
    stands = standing is not None and not forming and not job.closed
    ended = job.expectation.ended if job.expectation is not None else ()
    return World(
        job=job.uid,
        generation=job.generation if job.expectation is not None else 0,
        phase=_phase(job),
        members=_seats(job, standing) if standing is not None and stands else (),
        waiting=tuple(m.name for m in job.members.values() if m.phase is Phase.READY)[:MAX_MEMBERS],
        leaving=tuple(name for name in job.members if leaving(job, name) is not None)[:MAX_MEMBERS],
        restarts=dict(job.restarts),
        uncounted=uncounted(job) if job.expectation is not None else (),
        explained=tuple(end_id(end) for end in ended if end_id(end) in job.explained),
        fruitless=job.progress.fruitless if job.expectation is not None else None,
        step=job.progress.bar,
        reason=clipped(_reason(job)),
        closed=job.closed,
        rescale=_rescale(job),
        standing=_standing(job, standing) if standing is not None and stands else None,
    )


def _seats(job: Job, standing: CurrentWorld) -> tuple[Seat, ...]:
    here = job.members
    return tuple(
        Seat(name=name, rank=rank, incarnation=here[name].incarnation if name in here else "")
        for name, rank in standing.ranks.items()
        if not job.is_done or name in job.finished
    )


def _standing(job: Job, standing: CurrentWorld) -> Standing:
    return Standing(size=standing.size, age_s=max(0.0, job.now - standing.since), has_stepped=job.progress.here is not None)


def _phase(job: Job) -> str:
    if job.closed:
        return "closed"
    if job.is_done:
        return "finished" if job.is_complete else "finishing"
    if job.standing is None:
        return "forming" if job.members else "empty"
    if job.round is not None and job.round.draining:
        return "re-forming"
    return "running"


def _reason(job: Job) -> str:
    if job.closed:
        return job.closed
    if job.round is None or not job.round.draining:
        return job.standing.reason if job.standing is not None else "no member has come yet"
    here = sum(1 for m in job.members.values() if m.phase is Phase.READY)
    text = f"{job.round.reason}: {here} at the barrier, at least {job.min} needed"
    missing = absent(job)
    if missing:
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        text += f", waiting for {', '.join(missing[:NAMED])}{more}"
    return text


def _rescale(job: Job) -> Rescale | None:
    standing, at = job.standing, job.phases
    if standing is None or at is None:
        return None
    marks = {
        "detect": at.certain - at.sign,
        "notice": at.told - at.certain,
        "drain": at.drained - at.told,
        "round": at.sealed - at.drained,
    }
    if at.started is not None:
        marks["start"] = at.started - at.sealed
        if at.stepped is not None:
            marks["firstStep"] = at.stepped - at.started
    phases = {name: max(0, round(seconds * 1000)) for name, seconds in marks.items()}
    return Rescale(id=standing.id, cause=standing.cause, reason=clipped(standing.reason), phases=phases)
