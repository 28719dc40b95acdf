"""Whether a round begins, goes on, is called off or closes. The one place that decides when a world changes.

A round first gathers (the current world works on while expected newcomers arrive), then drains (its members come to the barrier), then
closes into the next world. It skips the gathering when the current world cannot go on or must give somebody up.
"""

from dataclasses import replace

from elastic.membership.wire import Restart
from rendezvous.machine import reach
from rendezvous.machine.choose import absent, leaving, seats, target, unknown_seats
from rendezvous.machine.completion import has_finished, noted, works_on
from rendezvous.machine.event_handlers import apply_exit_reports, gone
from rendezvous.machine.evictions import taken_away
from rendezvous.machine.progress import in_new_world, stood_still
from rendezvous.machine.restart_budget import booked, charge_restarts, disrupted_by, uncounted
from rendezvous.machine.state import Cause, CurrentWorld, Job, Loss, Member, Phase, Phases, Round, ranks_of


def settle(job: Job, *, let_go: bool) -> Job:
    """Everything that follows from the state as it is now. Only time makes absence certain, so only a tick lets members go."""
    if job.closed:
        return job
    if let_go:
        job = reach.with_doubt(job)
    if job.doubt_since is not None:
        return job
    if let_go:
        job = _held_up(_drop_absent(job))
    job = apply_exit_reports(job)
    if job.closed:
        return job
    job = _turn(noted(_told_and_gone(job)))
    if job.round is not None and job.round.draining:
        job = _give_up_late(job)
        job = _close_round(job)
    return job


def _held_up(job: Job) -> Job:
    """Whether training stands still is certain at once, so that it is in the book at once, and in what members hold."""
    hung = stood_still(job)
    if hung is job:
        return job
    assert hung.standing is not None
    restart = Restart(id=hung.standing.id, generation=hung.standing.generation, cause=Cause.HANG.value)
    return replace(booked(hung, (restart,)), uncounted=(*hung.uncounted, restart))


def _drop_absent(job: Job) -> Job:
    """Let go of members whose connection stayed broken, or who are silent on an open one."""
    limits = job.limits
    spared = reach.perhaps_cut_off(job)
    for member in [m for m in job.members.values() if m.phase is not Phase.FINISHED and m.name not in spared and _is_overdue(job, m)]:
        words = (
            f"the connection to {member.name} broke"
            if member.broken_at is not None
            else f"{member.name} was silent for {limits.silence_s:g} s"
        )
        told = leaving(job, member.name)
        sign = member.broken_at if member.broken_at is not None else member.heard_at
        job = replace(job, sign=min(sign, job.sign) if job.sign is not None else sign)
        job = gone(job, member.name, cause=told[1] if told is not None else "", words=words)
    return job


def _told_and_gone(job: Job) -> Job:
    """After a restart of the server: where all others are here, the seats that nobody takes were of those whose time to leave is over, as
    on a node that is lost. They are not waited for.
    """
    standing, word = job.standing, job.expectation
    if standing is None or not standing.adopted or word is None or absent(job):
        return job
    for told in word.leaving:
        is_over = told.pod_uid and told.member not in job.members and job.leave_by[told.member][0] <= job.now
        if is_over and unknown_seats(standing) > len(job.disrupted):
            words = f"{told.member} had to leave and is gone"
            job = disrupted_by(job, Loss(told.member, told.pod_uid, told.cause, words, is_gone=True))
    return job


def _is_overdue(job: Job, member: Member) -> bool:
    if job.now < job.patient_until:
        return False
    if member.broken_at is not None:
        return job.is_settled and job.now >= member.broken_at + job.limits.return_s
    return job.now >= member.heard_at + job.limits.silence_s


def is_whole(job: Job) -> bool:
    """Whether the current world can go on: nobody of it is gone, at the barrier, or failed."""
    standing = job.standing
    if standing is None or job.failures or job.hung:
        return False
    if unknown_seats(standing) and (job.is_settled or unknown_seats(standing) <= len(job.disrupted)):
        return False
    return all(name in job.members and job.members[name].world == standing.id for name in standing.ranks)


def _turn(job: Job) -> Job:
    """Begin, continue or call off a round."""
    if has_finished(job):
        # Who was asked back has stopped its work for that. Nobody else is disturbed: neither by a newcomer nor because a peer is lost.
        is_draining = job.round is not None and job.round.draining
        if job.is_done or (works_on(job) and not is_draining):
            return replace(job, round=None)
    if not is_whole(job):
        return _must_form(job)
    standing = job.standing
    assert standing is not None
    wanted = target(job)
    if not wanted or unknown_seats(standing) or frozenset(wanted) == standing.ranks.keys():
        # Whoever was told to come has stopped its work for that: a round that drains is carried through, though nothing changes any more.
        return job if job.round is not None and job.round.draining else replace(job, round=None)
    going = [name for name in standing.ranks if name not in wanted]
    if going:
        return _drain(job, *_why_going(job, going))
    coming = [name for name in wanted if name not in standing.ranks]
    reason = f"{_list(coming)} joined"
    if job.round is None:
        gathering = Round(reason, Cause.PLAN.value, job.now, False, job.now + job.limits.straggler_s)
        job = replace(job, round=gathering)
    assert job.round is not None
    if not job.round.draining and absent(job) and len(wanted) < job.max and job.now < job.round.until:
        return job
    return _drain(job, reason, Cause.PLAN.value)


def _why_going(job: Job, going: list[str]) -> tuple[str, str]:
    told = next((leave for leave in (leaving(job, name) for name in going) if leave is not None), None)
    if told is None:
        return f"{_list(going)} must wait: {len(going)} more than the sizes allow", Cause.PLAN.value
    return f"{_list(going)} {'is' if len(going) == 1 else 'are'} leaving ({told[1]})", told[1]


def _must_form(job: Job) -> Job:
    """No world, or one that cannot go on: its members are called at once."""
    if not job.members:
        return replace(job, round=None, min_reached_at=None)
    if job.round is not None and job.round.draining:
        return job
    reason, cause = job.trouble or ("the first members have come", Cause.START.value)
    if job.trouble is None and job.standing is not None and job.standing.adopted:
        reason, cause = "the rendezvous server restarted while members were missing", Cause.DISRUPTION.value
    if job.failures and not job.disrupted and works_on(job):
        until = job.now + job.limits.peers_s
        if job.round is None or job.round.until > until:
            return replace(job, round=Round(reason, cause, job.now, False, until))
        if job.now < job.round.until:
            return job
    return _drain(job, reason, cause)


def _drain(job: Job, reason: str, cause: str) -> Job:
    if job.round is not None and job.round.draining:
        return job
    began = job.round.began if job.round is not None else job.now
    grace_s = job.expectation.grace_s if job.expectation is not None else 30.0
    until = job.now + grace_s + job.limits.drain_s
    return replace(job, round=Round(reason, cause, began, True, until, job.now), min_reached_at=None)


def _give_up_late(job: Job) -> Job:
    """Go on without members that did not come to the barrier in time."""
    assert job.round is not None
    if job.now < job.round.until:
        return job
    for member in [m for m in job.members.values() if m.phase is Phase.RUNNING and job.standing and m.world == job.standing.id]:
        job = job.change(member.name, phase=Phase.BOOTING, world="")
    return job


def _close_round(job: Job) -> Job:
    """Seal the next world if everybody who must be waited for is there."""
    chosen = target(job)
    if not chosen:
        return replace(job, min_reached_at=None) if job.min_reached_at is not None else job
    if any(job.members[name].phase is not Phase.READY or job.members[name].broken_at is not None for name in chosen):
        return job
    if job.min_reached_at is None:
        job = replace(job, min_reached_at=job.now)
    if _waits(job, chosen):
        return job
    job = taken_away(job)
    if job.disrupted and job.round is not None and (job.failures or job.round.cause == Cause.USER):
        loss = job.disrupted[0]  # found out after the failures that it brought about
        job = replace(job, round=replace(job.round, reason=loss.words, cause=loss.cause))
    elif job.failures and job.trouble is not None and job.round is not None:
        reason, cause = job.trouble  # of several failures the first, which may have been heard of last
        job = replace(job, round=replace(job.round, reason=reason, cause=cause))
    job = charge_restarts(job)
    return job if job.closed else _seal(job, chosen)


def _waits(job: Job, chosen: tuple[str, ...]) -> bool:
    """Whether the round stays open for somebody who is not here yet."""
    if len(chosen) >= job.max:
        return False
    away = absent(job)
    missing = bool(away) or unknown_seats(job.standing) > 0
    if not job.is_settled:
        left = {loss.member for loss in job.disrupted}
        if unknown_seats(job.standing) > len(left) or any(name not in left for name in away):
            return True
    survivors = sum(1 for name in chosen if job.standing is not None and name in job.standing.ranks)
    if survivors >= job.min:
        return False
    assert job.min_reached_at is not None
    return missing and job.now < job.min_reached_at + job.limits.straggler_s


def _seal(job: Job, chosen: tuple[str, ...]) -> Job:
    """The next world."""
    assert job.round is not None
    by_rank = seats(job, chosen)
    generation = job.generation + 1
    world = CurrentWorld(
        id=f"{generation}-{job.instance}",
        generation=generation,
        seats=by_rank,
        store=job.members[by_rank[0]].store,
        reason=f"{job.round.reason}; {len(by_rank)} {'member' if len(by_rank) == 1 else 'members'}",
        cause=job.round.cause,
        since=job.now,
        ranks=ranks_of(by_rank),
    )
    members = dict(job.members)
    for name in by_rank:
        members[name] = replace(members[name], phase=Phase.RUNNING, world=world.id, generation=generation)
    certain = job.round.began
    phases = Phases(
        sign=min(job.sign, certain) if job.sign is not None else certain,
        certain=certain,
        told=job.round.told_at if job.round.told_at is not None else certain,
        drained=job.min_reached_at if job.min_reached_at is not None else job.now,
        sealed=job.now,
    )
    return replace(
        job,
        members=members,
        standing=world,
        uncounted=uncounted(job),
        generation=generation,
        round=None,
        min_reached_at=None,
        trouble=None,
        failures=(),
        disrupted=(),
        hung="",
        progress=in_new_world(job),
        sign=None,
        started=frozenset(),
        finished=frozenset(),
        phases=phases,
    )


def _list(names: list[str]) -> str:
    shown = names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
