"""The job as others see it: the view of one member, and the world that the controller hears of."""

from __future__ import annotations

from itertools import islice

from . import failing_saves, in_place, stragglers
from .choose import absent, awaits_state, leave_notice, target
from .handlers.exit_reports import end_id
from .messages.bounds import MAX_MEMBERS, MOST_SECONDS, clipped
from .messages.controller import MOST_SILENT, RankedMember, RescaleReport, SilentMember, StandingWorld, WorldReport
from .messages.doing import Hang
from .messages.in_place import Rung
from .messages.member import View
from .presented import share_of
from .reach import awaits_word
from .state.job import JobState
from .state.membership import CurrentWorld, Member, MemberPhase, Membership
from .values import replace
from .words import WorldPhase

NAMED = 5
DONE = "the training has ended: its other workers are done, and nobody is taken in any more"


def view(job: JobState, name: str) -> View:
    """Return everything that this member needs to know now."""
    group = job.membership
    member, world, grace_s = group.members[name], group.world, group.grace_s
    notice = leave_notice(group, name, now=job.now)
    why_leaving = notice.cause if notice is not None else ""
    if job.may_tell_end:
        return View(closed=job.accounting.closed, grace_s=grace_s, done=True, leaving=why_leaving)
    if world is None or member.world_id != world.id or member.phase in (MemberPhase.READY, MemberPhase.BOOTING):
        is_newcomer = member.generation == 0
        starts = member.provisional and is_newcomer and job.changes_in_process
        astray = member.phase in (MemberPhase.BOOTING, MemberPhase.RUNNING) and (member.provisional if is_newcomer else True) and not starts
        why = "the world went on without this member" if not is_newcomer else "all processes of the job restart"
        if why_leaving:
            why = f"{name} is leaving ({why_leaving})"
        return View(
            reform=why if astray else "",
            waiting=waiting(job, member),
            finished=DONE if job.is_done and member.phase is MemberPhase.READY else "",
            leaving=why_leaving,
            grace_s=grace_s,
            done=member.phase is MemberPhase.FINISHED,
            unacknowledged_restarts=share_of(job, name) if job.accounting.closed else (),
            change=in_place.change_of(job, member),
            provisional=starts,
        )
    draining = group.is_draining and member.phase is MemberPhase.RUNNING and not (group.round is not None and group.round.in_place)
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
        pace_s=stragglers.window_s(job),
    )


def in_all_views(job: JobState) -> tuple[object, ...]:
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


def waiting(job: JobState, member: Member) -> str:
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


def is_news(before: JobState, after: JobState) -> bool:
    """Return whether the controller must hear of the job again. The age of a world alone is no news."""
    timings = replace(before.timings, reached_at=after.timings.reached_at)
    before = replace(before, now=after.now, timings=timings)
    if before == after:
        return False  # most ticks end here, because summaries of thousands of members take long
    if not _has_same_ranks(before, after):
        return summary(before) != summary(after)
    return _summary(before, members=()) != _summary(after, members=())


def _has_same_ranks(before: JobState, after: JobState) -> bool:
    """Return whether the summaries of both name the same members, so that nobody needs to make and compare the lists."""
    was, group = before.membership, after.membership
    if was.world is not group.world or before.is_done != after.is_done or was.finished != group.finished:
        return False
    if was.members is group.members or group.world is None:
        return True
    return all(_incarnation(was, name) == _incarnation(group, name) for name in group.world.ranks)


def _incarnation(group: Membership, name: str) -> str:
    member = group.members.get(name)
    return member.incarnation if member is not None else ""


def summary(job: JobState) -> WorldReport:
    """Return the job as the controller hears of it."""
    world = _shown_world(job)
    return _summary(job, members=_ranked_members(job, world) if world is not None else ())


def _shown_world(job: JobState) -> CurrentWorld | None:
    return job.membership.world if not job.membership.is_draining and not job.accounting.closed else None


def _summary(job: JobState, *, members: tuple[RankedMember, ...]) -> WorldReport:
    group, known, expectation = job.membership, job.accounting, job.membership.expectation
    world = _shown_world(job)
    ended = expectation.ended if expectation is not None else ()
    return WorldReport(
        job=job.uid,
        generation=group.generation if expectation is not None else 0,
        phase=_phase(job),
        members=members,
        waiting=tuple(m.name for m in group.members.values() if m.phase is MemberPhase.READY or m.provisional)[:MAX_MEMBERS],
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
        ended_early=known.ended_early,
        failing_saves=failing_saves.told(job),
        silent=tuple(
            SilentMember(name=name, ago_s=min(MOST_SECONDS, max(0.0, job.now - at)))
            for name, at in islice(group.silent.items(), MOST_SILENT)
        ),
    )


def _ranked_members(job: JobState, world: CurrentWorld) -> tuple[RankedMember, ...]:
    group = job.membership
    return tuple(
        RankedMember(name=name, rank=rank, incarnation=_incarnation(group, name))
        for name, rank in world.ranks.items()
        if not job.is_done or name in group.finished
    )


def _standing(job: JobState, world: CurrentWorld) -> StandingWorld:
    return StandingWorld(size=world.size, age_s=max(0.0, job.now - world.since), has_stepped=job.progress.step_in_world is not None)


def _phase(job: JobState) -> WorldPhase:
    group = job.membership
    if job.accounting.closed:
        return WorldPhase.CLOSED
    if job.is_done:
        return WorldPhase.FINISHED if job.progress.is_complete else WorldPhase.FINISHING
    if group.world is None:
        return WorldPhase.FORMING if group.members else WorldPhase.EMPTY
    return WorldPhase.RE_FORMING if group.is_draining else WorldPhase.RUNNING


def _reason(job: JobState) -> str:
    group = job.membership
    if job.accounting.closed:
        return job.accounting.closed
    if group.round is None or not group.round.draining:
        return group.world.reason if group.world is not None else "no member has come yet"
    here = sum(1 for m in group.members.values() if m.phase is MemberPhase.READY)
    text = f"{group.round.reason}: {here} at the barrier, at least {group.min} needed"
    missing = absent(group)
    if missing:
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        text += f", waiting for {', '.join(missing[:NAMED])}{more}"
    if group.expectation is not None and group.expectation.awaited and (chosen := target(job)) and awaits_state(job, chosen):
        text += "; none of them has the state of training, and a worker that has it may come back"
    return text


def _hang(job: JobState) -> Hang | None:
    found = job.hang_watch.found
    return replace(found, ago_s=max(0.0, job.now - job.hang_watch.found_at)) if found is not None else None


def _rung(job: JobState, world: CurrentWorld) -> str:
    """Return how the processes came into this world. Agents say whether the fork server started them."""
    group = job.membership
    if world.rung != Rung.PLAIN or not group.started >= world.ranks.keys():
        return world.rung
    return Rung.WARM if group.warm >= world.ranks.keys() else Rung.PLAIN


def _rescale(job: JobState) -> RescaleReport | None:
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
    return RescaleReport(
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
