"""Whether a round begins, goes on, is called off or closes. The one place that decides when a world changes.

A round first gathers (the current world works on while expected newcomers arrive), then drains (its members come to the barrier), then
closes into the next world. It skips the gathering when the current world cannot go on or must give somebody up.
"""

from dataclasses import replace

from elastic.membership.wire import Restart
from rendezvous.machine import reach
from rendezvous.machine.choose import absent, absent_survivors, leave_notice, ranked, state_holders, target, unknown_ranks
from rendezvous.machine.completion import has_finished, with_completion, works_on
from rendezvous.machine.event_handlers import apply_exit_reports, gone
from rendezvous.machine.evictions import taken_away
from rendezvous.machine.progress import hanging_since, in_new_world
from rendezvous.machine.restart_budget import charge_restarts, unacknowledged_restarts, with_loss, with_restarts
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
        job = _with_hang(_drop_absent(job))
    job = apply_exit_reports(job)
    if job.closed:
        return job
    job = _update_round(with_completion(_without_members_that_left(job)))
    if job.round is not None and job.round.draining:
        job = _give_up_late(job)
        job = _close_round(job)
    return job


def _with_hang(job: Job) -> Job:
    """A hang is certain at once. So it is counted at once, and members hold it for the next server."""
    since, world = hanging_since(job), job.world
    if since is None or world is None:
        return job
    reason = f"training reported no further step for {job.budget.hang_s:g} s"
    job = replace(job, hang_reason=reason, trouble=job.trouble or (reason, Cause.HANG.value), first_sign_at=since)
    restart = Restart(id=world.id, generation=world.generation, cause=Cause.HANG.value)
    return replace(with_restarts(job, (restart,)), unacknowledged_restarts=(*job.unacknowledged_restarts, restart))


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
        notice = leave_notice(job, member.name)
        sign_at = member.broken_at if member.broken_at is not None else member.heard_at
        job = replace(job, first_sign_at=min(sign_at, job.first_sign_at) if job.first_sign_at is not None else sign_at)
        job = gone(job, member.name, cause=notice.cause if notice is not None else "", words=words)
    return job


def _without_members_that_left(job: Job) -> Job:
    """After a restart of the server: if all others that may have been in the world are here, the unknown ranks belong to members whose time
    to leave is over, as on a lost node. They are not waited for.
    """
    world, expectation = job.world, job.expectation
    if world is None or not world.adopted or expectation is None or absent_survivors(job):
        return job
    for entry in expectation.leaving:
        is_over = entry.pod_uid and entry.member not in job.members and job.notices[entry.member].by <= job.now
        if is_over and unknown_ranks(world) > len(job.losses):
            words = f"{entry.member} had to leave and is gone"
            job = with_loss(job, Loss(entry.member, entry.pod_uid, entry.cause, words, is_gone=True))
    return job


def _is_overdue(job: Job, member: Member) -> bool:
    if job.now < job.patient_until:
        return False
    if member.broken_at is not None:
        return job.is_settled and job.now >= member.broken_at + job.limits.return_s
    return job.now >= member.heard_at + job.limits.silence_s


def is_whole(job: Job) -> bool:
    """Whether the current world can go on: nobody of it is gone, at the barrier, or failed."""
    world = job.world
    if world is None or job.failures or job.hang_reason:
        return False
    if unknown_ranks(world) and (job.is_settled or unknown_ranks(world) <= len(job.losses)):
        return False
    return all(name in job.members and job.members[name].world_id == world.id for name in world.ranks)


def _update_round(job: Job) -> Job:
    """Begin, continue or cancel a round."""
    if has_finished(job):
        # Who was asked back has stopped its work for that. Nobody else is disturbed: neither by a newcomer nor because a peer is lost.
        is_draining = job.round is not None and job.round.draining
        if job.is_done or (works_on(job) and not is_draining):
            return replace(job, round=None)
    if not is_whole(job):
        return _must_form(job)
    world = job.world
    assert world is not None
    wanted = target(job)
    if not wanted or unknown_ranks(world) or frozenset(wanted) == world.ranks.keys():
        # The members have stopped their work for this round: once it drains it is carried through, though nothing changes any more.
        return job if job.round is not None and job.round.draining else replace(job, round=None)
    going = [name for name in world.ranks if name not in wanted]
    if going:
        return _drain(job, *_why_going(job, going))
    coming = [name for name in wanted if name not in world.ranks]
    reason = f"{_list(coming)} joined"
    if job.round is None:
        gathering = Round(reason, Cause.PLAN.value, job.now, False, job.now + job.limits.straggler_s)
        job = replace(job, round=gathering)
    assert job.round is not None
    if not job.round.draining and absent(job) and len(wanted) < job.max and job.now < job.round.until:
        return job
    return _drain(job, reason, Cause.PLAN.value)


def _why_going(job: Job, going: list[str]) -> tuple[str, str]:
    notice = next((notice for name in going if (notice := leave_notice(job, name)) is not None), None)
    if notice is None:
        return f"{_list(going)} must wait: {len(going)} more than the sizes allow", Cause.PLAN.value
    return f"{_list(going)} {'is' if len(going) == 1 else 'are'} leaving ({notice.cause})", notice.cause


def _must_form(job: Job) -> Job:
    """No world, or one that cannot go on: its members are called at once."""
    if not job.members:
        return replace(job, round=None, min_reached_at=None)
    if job.round is not None and job.round.draining:
        return job
    reason, cause = job.trouble or ("the first members have come", Cause.START.value)
    if job.trouble is None and job.world is not None and job.world.adopted:
        reason, cause = "the rendezvous server restarted while members were missing", Cause.DISRUPTION.value
    if job.failures and not job.losses and works_on(job):
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
    for member in [m for m in job.members.values() if m.phase is Phase.RUNNING and job.world and m.world_id == job.world.id]:
        job = job.change(member.name, phase=Phase.BOOTING, world_id="")
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
    if job.losses and job.round is not None and (job.failures or job.round.cause == Cause.USER):
        loss = job.losses[0]  # found out after the failures that it brought about
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
    missing = bool(away) or unknown_ranks(job.world) > 0
    if not job.is_settled:
        left = {loss.member for loss in job.losses}
        if unknown_ranks(job.world) > len(left) or any(name not in left for name in absent_survivors(job)):
            return True
    survivors = sum(1 for name in chosen if job.world is not None and name in job.world.ranks)
    if survivors >= job.min:
        return False
    assert job.min_reached_at is not None
    return missing and job.now < job.min_reached_at + job.limits.straggler_s


def _seal(job: Job, chosen: tuple[str, ...]) -> Job:
    """The next world."""
    assert job.round is not None
    by_rank = ranked(job, chosen)
    generation = job.generation + 1
    world = CurrentWorld(
        id=f"{generation}-{job.instance}",
        generation=generation,
        by_rank=by_rank,
        store=job.members[by_rank[0]].store,
        reason=f"{job.round.reason}; {len(by_rank)} {'member' if len(by_rank) == 1 else 'members'}",
        cause=job.round.cause,
        since=job.now,
        ranks=ranks_of(by_rank),
        heirs=state_holders(job).intersection(by_rank) or None,
    )
    members = dict(job.members)
    for name in by_rank:
        members[name] = replace(members[name], phase=Phase.RUNNING, world_id=world.id, generation=generation)
    detected = job.round.began
    phases = Phases(
        first_sign=min(job.first_sign_at, detected) if job.first_sign_at is not None else detected,
        detected=detected,
        notified=job.round.notified_at if job.round.notified_at is not None else detected,
        drained=job.min_reached_at if job.min_reached_at is not None else job.now,
        sealed=job.now,
    )
    return replace(
        job,
        members=members,
        world=world,
        unacknowledged_restarts=unacknowledged_restarts(job),
        generation=generation,
        round=None,
        min_reached_at=None,
        trouble=None,
        failures=(),
        losses=(),
        hang_reason="",
        progress=in_new_world(job),
        first_sign_at=None,
        started=frozenset(),
        finished=frozenset(),
        phases=phases,
    )


def _list(names: list[str]) -> str:
    shown = names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
