"""Decide whether a round begins, goes on, is called off or closes. Nothing else decides when a world changes.

A round first gathers (the current world works on while expected newcomers arrive), then drains (its members come to the barrier), then
closes into the next world. It skips the gathering when the current world cannot go on or must give somebody up.
"""

from __future__ import annotations

from . import broken_communication, early_ends, in_place, leavers, reach, stragglers
from .absence import without_absent, without_left
from .choose import absent, absent_survivors, awaits_state, leave_notice, ranked, state_holders, target, with_state
from .completion import has_finished, with_completion, works_on
from .evictions import taken_away
from .handlers.exit_reports import apply_exit_reports
from .hang import with_hang
from .messages.bounds import MOST_COUNTED
from .messages.in_place import Rung, Stage
from .restart_budget import charge_restarts
from .state import progress
from .state.accounting import OF_FAILURES, held
from .state.job import JobState
from .state.membership import CurrentWorld, MemberPhase, Membership, Round, ranks_of
from .state.timings import Phases
from .values import replace
from .words import UNEXPLAINED, Cause


def settle(job: JobState, *, let_go: bool) -> JobState:
    """Return the job after everything that follows from its state. Only time makes absence certain, so only a tick drops members."""
    if job.accounting.closed:
        return job
    if let_go:
        job = reach.with_doubt(job)
    if job.timings.doubt_since is not None or reach.awaits_word(job):
        return job
    if let_go:
        job = stragglers.kept(with_hang(without_absent(job)))
    job = apply_exit_reports(job)
    if job.accounting.closed:
        return job
    job = _update_round(with_completion(without_left(in_place.settle(early_ends.noted(job)))))
    if job.membership.is_draining:
        job = _close_round(_give_up_late(job))
    return in_place.with_provisional(job)


def is_whole(job: JobState) -> bool:
    """Return whether the current world can go on: no member of it is gone, at the barrier, or failed."""
    group, known = job.membership, job.accounting
    world, unknown = group.world, group.unknown_ranks
    if world is None or known.failures or known.hang_reason or job.in_place.trouble:
        return False
    if (known.alarms and job.in_place.stands) or any(loss.by_library for loss in known.losses):
        return False
    if unknown and (job.is_settled or unknown <= len(known.losses)):
        return False
    return all(name in group.members and group.members[name].world_id == world.id for name in world.ranks)


def _update_round(job: JobState) -> JobState:
    """Begin, continue or cancel a round."""
    job = leavers.with_early_end(job)
    group = job.membership
    # Once the members have stopped their work for a round, it is carried through, though nothing changes any more.
    if has_finished(group) and (job.is_done or (works_on(job) and not group.is_draining)):
        return job.with_round(None)  # nobody else is disturbed: neither by a newcomer nor because a peer is lost
    if not is_whole(job):
        return _must_form(job)
    world, wanted = group.world, target(job)
    assert world is not None
    if not wanted or group.unknown_ranks or frozenset(wanted) == world.ranks.keys() or in_place.has_ended_loops(job):
        if group.is_draining:
            return in_place.called_off(job) if job.in_place.stage is Stage.HOLD else job
        return job.with_round(None)
    if job.in_place.stage is Stage.FORM:
        return job  # a world that does not stand yet could not train on if the change were called off
    going = [name for name in world.ranks if name not in wanted]
    if going:
        return _drain(job, *_why_going(job, going))
    coming = [name for name in wanted if name not in world.ranks]
    reason = f"{_list(coming)} joined"
    round = group.round or Round(reason, Cause.PLAN.value, job.now, False, job.now + job.limits.straggler_s)
    job = job.with_round(round)
    if not round.draining and absent(group) and len(wanted) < group.max and job.now < round.until:
        return job
    return _drain(job, reason, Cause.PLAN.value)


def _why_going(job: JobState, going: list[str]) -> tuple[str, str]:
    notices = (leave_notice(job.membership, name, now=job.now) for name in going)
    notice = next((notice for notice in notices if notice is not None), None)
    if notice is None:
        return f"{_list(going)} must wait: {len(going)} more than the sizes allow", Cause.PLAN.value
    return f"{_list(going)} {'is' if len(going) == 1 else 'are'} leaving ({notice.cause})", notice.cause


def _must_form(job: JobState) -> JobState:
    """Call the members at once, because there is no world, or it cannot go on."""
    group, known = job.membership, job.accounting
    if not group.members:
        return _with_min_reached(job.with_round(None), at=None)
    if group.is_draining:
        return in_place.aborted(job) if job.in_place.stage in (Stage.HOLD, Stage.STOP) and _is_broken(job) else job
    trouble = (job.in_place.trouble, Cause.DISRUPTION.value) if job.in_place.trouble else None
    reason, cause = known.trouble or _alarm(job) or trouble or ("the first members have come", Cause.START.value)
    if known.trouble is None and group.world is not None and group.world.adopted:
        reason, cause = "the rendezvous server restarted while members were missing", Cause.DISRUPTION.value
    until = leavers.awaited_until(job)
    if until is not None and job.now < until:
        return job.with_round(Round(reason, cause, group.round.began if group.round is not None else job.now, False, until))
    if until is not None:
        job = leavers.given_up(job)
        reason, cause = job.accounting.trouble or (reason, cause)
    elif (pause_s := broken_communication.pause_s(job)) or (_may_be_explained(job) and works_on(job)):
        until = job.now + max(job.limits.peers_s, pause_s)
        if group.round is None or group.round.until > until:
            return job.with_round(Round(reason, cause, job.now, False, until))
        if job.now < group.round.until:
            return job
    return _drain(job, reason, cause)


def _is_broken(job: JobState) -> bool:
    """Return whether the current world lost a member, or its communication broke."""
    group, known = job.membership, job.accounting
    ranks = group.world.ranks if group.world is not None else {}
    return known.is_world_broken or bool(known.alarms) or any(name not in group.members for name in ranks)


def _may_be_explained(job: JobState) -> bool:
    """Return whether a moment may show what broke the world.

    A worker that fails may have ended because its peers just finished. In a world that changes in process, a worker that has ended its loop
    says so before; there, only broken communication is unexplained.
    """
    known = job.accounting
    if known.losses or (known.failures and not in_place.obstacle(job)):
        return False
    return bool(known.failures or known.alarms)


def _alarm(job: JobState) -> tuple[str, str] | None:
    """Return reason and cause of a round that begins because members could not communicate, though their processes live."""
    names = list(job.accounting.alarms)
    return (f"{_list(names)} could not reach a peer", Cause.DISRUPTION.value) if names else None


def _drain(job: JobState, reason: str, cause: str) -> JobState:
    group = job.membership
    if group.is_draining:
        return job
    began = group.round.began if group.round is not None else job.now
    until = job.now + group.grace_s + job.limits.drain_s
    is_planned = is_whole(job)
    job = _with_min_reached(job.with_round(Round(reason, cause, began, True, until, job.now)), at=None)
    why = in_place.obstacle_to_begin(job)
    if why:
        return in_place.fallen_back(job, why) if job.in_place.stage is not None else job
    return in_place.begin(job, is_planned=is_planned)


def _with_min_reached(job: JobState, *, at: float | None) -> JobState:
    return replace(job, timings=replace(job.timings, min_reached_at=at))


def _give_up_late(job: JobState) -> JobState:
    """Go on without members that did not come to the barrier in time."""
    group = job.membership
    assert group.round is not None
    if job.now < group.round.until or group.world is None:
        return job
    for member in [m for m in group.members.values() if m.phase is MemberPhase.RUNNING and m.world_id == group.world.id]:
        job = job.change(member.name, phase=MemberPhase.BOOTING, world_id="")
    return job


def _close_round(job: JobState) -> JobState:
    """Seal the next world if everybody who must be waited for is there."""
    group = job.membership
    chosen = target(job)
    if not chosen:
        return _with_min_reached(job, at=None)
    if any(group.members[name].phase is not MemberPhase.READY or group.members[name].broken_at is not None for name in chosen):
        return job
    reached_at = job.timings.min_reached_at if job.timings.min_reached_at is not None else job.now
    job = _with_min_reached(job, at=reached_at)
    if _waits(job, chosen, since=reached_at) or awaits_state(job, chosen):
        return job
    if group.round is not None and group.round.in_place and in_place.lacks_state(job, chosen):
        return in_place.fallen_back(job, "no worker has a complete state of training")
    job = charge_restarts(_with_best_reason(taken_away(job)))
    return job if job.accounting.closed else _seal(job, chosen)


def _with_best_reason(job: JobState) -> JobState:
    """Return the job whose round has the best reason that is known by now."""
    round, known, alarm = job.membership.round, job.accounting, _alarm(job)
    assert round is not None
    if known.losses and (known.failures or alarm is not None or round.cause in OF_FAILURES):
        loss = known.losses[0]  # found out after the failures that it brought about
        return job.with_round(replace(round, reason=loss.words, cause=loss.cause))
    if known.failures and known.trouble is not None:
        reason, cause = known.trouble  # of several failures the first, which may have been heard of last
        if early := early_ends.in_words(job):
            reason, cause = early, Cause.COLLATERAL.value  # as it is counted
        return job.with_round(replace(round, reason=reason, cause=cause))
    if alarm is not None and not known.losses:
        reason, cause = alarm
        return job.with_round(replace(round, reason=f"{reason}, and {UNEXPLAINED}", cause=cause))
    return job


def _waits(job: JobState, chosen: tuple[str, ...], *, since: float) -> bool:
    """Return whether the round stays open for members that are not here yet."""
    group = job.membership
    if in_place.awaits(job):
        return True
    if len(chosen) >= group.max:
        return False
    away, unknown = absent(group), group.unknown_ranks
    if not job.is_settled:
        left = {loss.member for loss in job.accounting.losses}
        if unknown > len(left) or any(name not in left for name in absent_survivors(group)):
            return True
    survivors = sum(1 for name in chosen if group.survives(name))
    if survivors >= group.min:
        return False
    return (bool(away) or unknown > 0) and job.now < since + job.limits.straggler_s


def _seal(job: JobState, chosen: tuple[str, ...]) -> JobState:
    """Seal the next world."""
    group = job.membership
    round = group.round
    assert round is not None
    by_rank = ranked(job, chosen)
    steps = {name: step for name in by_rank if (step := group.members[name].step) is not None and group.survives(name)}
    generation = group.generation + 1
    holders, former = state_holders(job), group.world
    world = CurrentWorld(
        id=f"{generation}-{job.instance}",
        generation=generation,
        by_rank=by_rank,
        store=group.members[by_rank[0]].store,
        reason=f"{round.reason}; {len(by_rank)} {'member' if len(by_rank) == 1 else 'members'}",
        cause=round.cause,
        since=job.now,
        ranks=ranks_of(by_rank),
        heirs=holders.intersection(by_rank) or None,
        lost_state=bool(with_state(job)) and holders.isdisjoint(by_rank),
        rung=_rung(group, round, by_rank),
        killed=min(round.killed, MOST_COUNTED),
        began_unseen=former is not None and former.adopted and job.progress.step is not None and job.progress.step_in_world is None,
    )
    members = dict(group.members)
    for name in by_rank:
        entered = replace(members[name], phase=MemberPhase.RUNNING, world_id=world.id, generation=generation, step=None)
        members[name] = replace(entered, alive=False, provisional=False, left=None)
    job = replace(
        job,
        membership=replace(group.in_world(world), members=members, generation=generation, round=None),
        accounting=held(job.accounting.in_new_world()),
        progress=progress.in_new_world(job.progress, now=job.now),
        timings=replace(job.timings, min_reached_at=None, first_sign_at=None, phases=_phases(job, round)),
    )
    return in_place.sealed(job, steps) if round.in_place else in_place.restarted(job)


def _rung(group: Membership, round: Round, by_rank: tuple[str, ...]) -> str:
    """Return how processes of the current world come into the next one."""
    if group.world is None:
        return ""
    if round.in_place:
        return Rung.IN_PROCESS
    return Rung.PLAIN if any(group.survives(name) for name in by_rank) else Rung.NEW_PODS


def _phases(job: JobState, round: Round) -> Phases:
    """Return the times of the steps up to the world's sealing."""
    detected, timings = round.began, job.timings
    return Phases(
        first_sign=min(timings.first_sign_at, detected) if timings.first_sign_at is not None else detected,
        detected=detected,
        notified=round.notified_at if round.notified_at is not None else detected,
        drained=timings.min_reached_at if timings.min_reached_at is not None else job.now,
        sealed=job.now,
    )


def _list(names: list[str]) -> str:
    shown = names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
