"""Change the world while its processes live on: when that is possible, and how far such a change has come.

A planned change asks the workers to hold, and then to stop after the same step. A loss asks them to abort. All members answer by coming to
the barrier with their processes alive; from there, the rounds of this engine go on as for processes that restart. The sealed world is
formed by the processes. If it cannot be formed three times in a row, all processes restart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from .choose import leave_notice
from .messages.in_place import MOST_DONORS, Change, Stage
from .state import progress
from .state.in_place import InPlace
from .state.job import JobState
from .state.membership import Member, MemberPhase
from .values import replace

ATTEMPTS = 3
FORM_S = 3.0
FORM_S_A_WORKER = 0.05
RECEIVE_S = 5.0
"""A member that receives the state must receive more of it within this time."""
HELLO_S = 120.0
"""Seconds that workers which can change worlds wait for the others to come to their first boundary."""
PLANNED_S = 600.0
"""Seconds that a planned change waits for the end of a step."""
BLIP_STEPS = 10
"""If the communication breaks again within so many steps, though nobody was lost, all processes restart."""


def obstacle(job: JobState) -> str:
    """Return why the next world cannot be formed by living processes; empty if it can."""
    known, group = job.in_place, job.membership
    alive = [member for member in _survivors(job) if member.phase is not MemberPhase.BOOTING and not _has_failed(job, member)]
    able = [member for member in alive if member.workers]
    if group.world is None or not able:
        return "no worker of the world can change worlds in process"
    unable = [member.name for member in alive if not member.workers]
    if unable:
        return f"{unable[0]} cannot change worlds in process"
    if len({member.workers for member in able}) > 1:
        return "its members have different numbers of workers"
    if known.why_plain:
        return known.why_plain
    if job.accounting.hang_reason:
        return "training stands still"
    return ""


def obstacle_to_begin(job: JobState) -> str:
    """Return why a change in process cannot begin; empty if it can."""
    known = job.in_place
    attempts = known.attempts + bool(known.trouble)
    if attempts >= ATTEMPTS:
        return f"{attempts} attempts to form a world in process have failed"
    if _is_blip(job) and known.blip_step is not None and _step(job) < known.blip_step + BLIP_STEPS:
        return "the communication of its workers broke twice within a few steps"
    return obstacle(job)


def begin(job: JobState, *, is_planned: bool) -> JobState:
    """Return the job whose round has just begun to drain, as a change in process."""
    group, known = job.membership, job.in_place
    assert group.round is not None
    until = job.now + PLANNED_S if is_planned else group.round.until
    job = job.with_round(replace(group.round, in_place=True, until=until))
    blip = _step(job) if _is_blip(job) else known.blip_step
    stage = Stage.HOLD if is_planned else Stage.ABORT
    known = replace(_cleared(known), round=known.round + 1, stage=stage, attempts=known.attempts + bool(known.trouble), blip_step=blip)
    return _back_at_work(_without_failed(replace(job, in_place=known)))


def aborted(job: JobState) -> JobState:
    """Return the job whose planned change became a loss. The members' answers to the former round no longer count."""
    round = job.membership.round
    assert round is not None
    return begin(job.with_round(replace(round, until=job.now + job.membership.grace_s + job.limits.drain_s)), is_planned=False)


def settle(job: JobState) -> JobState:
    """Return the job after everything that follows for the change from what its members said, and from time."""
    group = job.membership
    if group.round is not None and group.round.in_place:
        job = _with_progress(job)
    elif job.in_place.stage in (Stage.FORM, Stage.RUN):
        job = _with_formed(job)
    elif group.world is not None and not group.is_draining:
        job = _with_hellos(job)
    return job


def sealed(job: JobState, steps: Mapping[str, int]) -> JobState:
    """Return the job whose new world is formed by living processes. steps: of the members that brought a complete state."""
    world, known = job.membership.world, _cleared(job.in_place)
    assert world is not None
    newest = max(steps.values(), default=0)
    holders = [name for name in world.ranks if steps.get(name) == newest] if steps else list(world.ranks)[:1]
    staying = [name for name in holders if leave_notice(job.membership, name, now=job.now) is None]
    donors = tuple(world.ranks[name] for name in (staying or holders)[:MOST_DONORS])
    known = replace(known, stage=Stage.FORM, world_round=known.round, step=newest, donors=donors, is_adopted=False)
    job = replace(job, progress=progress.with_state_of(job.progress, newest))
    return _without_leavers(replace(job, in_place=replace(known, until=job.now + _form_s(job))))


def restarted(job: JobState) -> JobState:
    """Return the job after a world was sealed in which all processes start again."""
    ranks = job.membership.world.ranks if job.membership.world is not None else {}
    members = {name: replace(member, workers=0) if name in ranks else member for name, member in job.membership.members.items()}
    known = replace(_cleared(job.in_place), stage=None, attempts=0, able_since=None, has_trained=False, why_plain="", blip_step=None)
    return replace(job, in_place=known, membership=replace(job.membership, members=members))


def fallen_back(job: JobState, why: str) -> JobState:
    """Return the job whose change in process is given up: all processes restart."""
    round = job.membership.round
    assert round is not None
    until = job.now + job.membership.grace_s + job.limits.drain_s
    words = f"{round.reason}; all processes restart, because {why}"
    job = _back_at_work(job.with_round(replace(round, reason=words, in_place=False, until=until, notified_at=job.now)))
    return replace(job, in_place=replace(_cleared(job.in_place), stage=None))


def called_off(job: JobState) -> JobState:
    """Return the job whose planned change is no longer wanted: the world trains on."""
    job = _back_at_work(job.with_round(None))
    return replace(job, in_place=replace(_cleared(job.in_place), stage=Stage.RUN))


def awaits(job: JobState) -> bool:
    """Return whether the round waits for members until its deadline.

    A change in process waits for all living processes, because any of them may have the newest state. If all processes restart, the round
    waits for those that had just started in worlds of their own.
    """
    round = job.membership.round
    if round is None or job.now >= round.until:
        return False
    if round.in_place:
        return any(member.phase is MemberPhase.RUNNING for member in _survivors(job))
    return any(member.provisional for member in job.membership.members.values())


def lacks_state(job: JobState, names: Iterable[str]) -> bool:
    """Return whether these members would form a world in process without a state, although training had one."""
    return job.in_place.has_trained and not any(job.membership.members[name].step is not None for name in names)


def change_of(job: JobState, member: Member) -> Change | None:
    """Return the change that this member takes part in."""
    known, world = job.in_place, job.membership.world
    if world is None or not member.workers:
        return None
    is_of_world = member.generation == world.generation and member.name in world.ranks
    if known.stage in (Stage.FORM, Stage.RUN) and not known.is_adopted and is_of_world and member.phase is MemberPhase.RUNNING:
        return Change(stage=known.stage, round=known.round, step=known.step, donors=known.donors if known.stage is Stage.FORM else ())
    if known.stage in (Stage.HOLD, Stage.STOP, Stage.ABORT) and is_of_world:
        return Change(stage=known.stage, round=known.round, step=known.step)
    if known.stage is None and known.why_plain and is_of_world:
        return Change(stage=Stage.PLAIN, why=known.why_plain)
    return None


def has_ended_loops(job: JobState) -> bool:
    """Return whether a member of a world that changes in process has ended its loop: it saves and ends, and is left alone."""
    return job.in_place.stage is not None and any(not member.workers for member in _survivors(job))


def look_again_at(job: JobState) -> float:
    """Return when time alone may change something."""
    known = job.in_place
    if known.stage is None and known.able_since is not None and not known.why_plain:
        return known.able_since + HELLO_S
    return known.until


def _with_progress(job: JobState) -> JobState:
    """Let a change go on: from hold to stop; back to all processes, if nobody is left that lives on."""
    known, group = job.in_place, job.membership
    if known.stage in (Stage.HOLD, Stage.STOP):
        if has_ended_loops(job):
            return called_off(job)
        if group.round is not None and job.now >= group.round.until:
            return fallen_back(job, f"the step did not end within {PLANNED_S:g} s")
    job = _without_failed(job)
    survivors = [member for member in _survivors(job) if member.phase is not MemberPhase.BOOTING]
    if why := obstacle(job):
        return fallen_back(job, why)
    if known.stage is Stage.HOLD and survivors and all(member.name in known.holds for member in survivors):
        return replace(job, in_place=replace(known, stage=Stage.STOP, step=max(known.holds[member.name] for member in survivors)))
    return job


def _without_failed(job: JobState) -> JobState:
    """Do not wait at the barrier for members whose workers have failed: these start again, and come as newcomers."""
    changed = {
        member.name: replace(member, phase=MemberPhase.BOOTING, provisional=True, generation=0, world_id="", workers=0)
        for member in _survivors(job)
        if member.phase is MemberPhase.RUNNING and _has_failed(job, member)
    }
    return replace(job, membership=replace(job.membership, members={**job.membership.members, **changed})) if changed else job


def _with_formed(job: JobState) -> JobState:
    """Let the world train once all have formed it."""
    known, world = job.in_place, job.membership.world
    assert world is not None
    if known.stage is Stage.RUN:
        return job
    if known.formed >= world.ranks.keys() and None not in world.by_rank:
        known = replace(known, stage=Stage.RUN, until=math.inf, donors=(), has_trained=True, is_adopted=False)
        group = replace(job.membership, world=replace(world, heirs=frozenset(world.ranks)))
        return replace(job, in_place=known, membership=group)
    if job.now >= known.until and not known.trouble:
        missing = sorted(world.ranks.keys() - known.formed)
        words = f"{missing[0]} has not entered the world in time" if missing else "a member of the world is missing"
        return replace(job, in_place=replace(known, trouble=words))
    return job


def _with_hellos(job: JobState) -> JobState:
    """Form the world in process once all its workers wait at their first boundary."""
    known, world = job.in_place, job.membership.world
    assert world is not None
    members = [job.membership.members.get(name) if name is not None else None for name in world.by_rank]
    able = [member for member in members if member is not None and member.workers]
    if not able or known.why_plain:
        return job
    if known.able_since is None:
        known = replace(known, able_since=job.now)
        job = replace(job, in_place=known)
    if len({member.workers for member in able}) > 1:
        return replace(job, in_place=replace(known, why_plain="its members have different numbers of workers"))
    unable = [name for name, member in zip(world.by_rank, members) if member is None or not member.workers]
    if unable and job.now < (known.able_since or job.now) + HELLO_S:
        return job
    if unable:
        words = f"the workers of {unable[0]} have not come to a first step within {HELLO_S:g} s"
        return replace(job, in_place=replace(known, why_plain=words))
    job = replace(job, in_place=replace(known, round=known.round + 1))
    return sealed(job, {member.name: member.step for member in able if member.step is not None})


def with_provisional(job: JobState) -> JobState:
    """Let newcomers, whose processes do not run, start them while the world trains; call them back if that is of no use any more."""
    is_wanted = job.changes_in_process
    changed = {}
    for name, member in job.membership.members.items():
        if is_wanted and member.phase is MemberPhase.READY and not member.alive:
            changed[name] = replace(member, phase=MemberPhase.BOOTING, provisional=True, generation=0, workers=0)
        elif not is_wanted and member.phase is MemberPhase.READY and member.alive:
            changed[name] = replace(member, phase=MemberPhase.BOOTING, provisional=True, alive=False)
    if not changed:
        return job
    return replace(job, membership=replace(job.membership, members={**job.membership.members, **changed}))


def _back_at_work(job: JobState) -> JobState:
    """Return the job whose members at the barrier count as at work again: they have not answered the present round."""
    world = job.membership.world
    changed = {
        member.name: replace(member, phase=MemberPhase.RUNNING, world_id=world.id, alive=False)
        for member in _survivors(job)
        if world is not None and member.phase is MemberPhase.READY and member.alive
    }
    return replace(job, membership=replace(job.membership, members={**job.membership.members, **changed}))


def _without_leavers(job: JobState) -> JobState:
    """Send members that had to leave, and are not in the new world, back to the barrier without their processes."""
    group = job.membership
    changed = {
        name: replace(member, phase=MemberPhase.BOOTING, alive=False, workers=0)
        for name, member in group.members.items()
        if member.phase is MemberPhase.READY and member.alive and leave_notice(group, name, now=job.now) is not None
    }
    return replace(job, membership=replace(group, members={**group.members, **changed}))


def _survivors(job: JobState) -> list[Member]:
    group = job.membership
    ranks = group.world.ranks if group.world is not None else {}
    return [group.members[name] for name in ranks if group.survives(name) and group.members[name].phase is not MemberPhase.FINISHED]


def _has_failed(job: JobState, member: Member) -> bool:
    known = job.accounting
    has_failed = any(one.member == member.name and not one.is_replaced for one in known.failures)
    return has_failed or any(one.member == member.name for one in known.losses)


def _is_blip(job: JobState) -> bool:
    """Return whether the communication broke though nobody was lost and nobody failed."""
    known = job.accounting
    return bool(known.alarms) and not known.losses and not known.failures


def _step(job: JobState) -> int:
    return job.progress.step or 0


def _form_s(job: JobState) -> float:
    group = job.membership
    ranks = group.world.ranks if group.world is not None else {}
    return FORM_S + FORM_S_A_WORKER * sum(group.members[name].workers for name in ranks if name in group.members)


def _cleared(known: InPlace) -> InPlace:
    return replace(known, until=math.inf, step=None, donors=(), holds={}, formed=frozenset(), trouble="")
