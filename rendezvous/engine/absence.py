"""Decide when a silent member, or one whose connection broke, counts as gone."""

from __future__ import annotations

from . import reach
from .choose import absent_survivors, leave_notice
from .handlers.leaving_world import gone_as_told, with_loss
from .state.accounting import Loss
from .state.job import JobState
from .state.membership import Member, MemberPhase
from .values import replace


def without_absent(job: JobState) -> JobState:
    """Return the job without members whose connection stayed broken, or that are silent on an open one."""
    spared = reach.perhaps_cut_off(job)
    members = job.membership.members.values()
    for member in [m for m in members if m.phase is not MemberPhase.FINISHED and m.name not in spared and _is_overdue(job, m)]:
        words, sign_at = f"the connection to {member.name} broke", member.broken_at
        if sign_at is None:
            words, sign_at = f"{member.name} was silent for {job.limits.silence_s:g} s", member.heard_at
        first = job.timings.first_sign_at
        job = replace(job, timings=replace(job.timings, first_sign_at=min(sign_at, first) if first is not None else sign_at))
        job = _as_silent(gone_as_told(job, member.name, words=words), member)
    return job


def _as_silent(job: JobState, member: Member) -> JobState:
    """Note since when this member is silent, if the controller expects it: its pod may look healthy."""
    group = job.membership
    if member.name not in group.expected or leave_notice(group, member.name, now=job.now) is not None:
        return job
    return replace(job, membership=replace(group, silent={**group.silent, member.name: member.heard_at}))


def without_left(job: JobState) -> JobState:
    """Drop unknown ranks after a restart of the server.

    If all others that may have been in the world are here, the unknown ranks belong to members whose time to leave has passed, as on a lost
    node. They are not waited for.
    """
    group = job.membership
    expectation = group.expectation
    if group.world is None or not group.world.adopted or expectation is None or absent_survivors(group):
        return job
    for entry in expectation.leaving:
        is_over = entry.pod_uid and entry.member not in group.members and group.notices[entry.member].by <= job.now
        if is_over and group.unknown_ranks > len(job.accounting.losses):
            words = f"{entry.member} had to leave and is gone"
            job = with_loss(job, Loss(entry.member, entry.pod_uid, entry.cause, words, is_gone=True))
    return job


def _is_overdue(job: JobState, member: Member) -> bool:
    if job.now < job.timings.patient_until:
        return False
    if member.broken_at is not None:
        return job.is_settled and job.now >= given_up_at(job, member.name, member.broken_at)
    return job.now >= member.heard_at + job.limits.silence_s


def given_up_at(job: JobState, name: str, broken_at: float) -> float:
    """Return when a member whose connection broke then counts as gone."""
    limits = job.limits
    return broken_at + (return_amid_failure_s(job) if job.accounting.shows_loss_beside(name) else limits.return_s)


def return_amid_failure_s(job: JobState) -> float:
    """Return how long a broken connection has to come back once other members have shown signs of a loss.

    While the processes of the others live on, they stand still and wait for this.
    """
    return job.limits.return_amid_failure_s if job.in_place.stage is None else job.limits.return_in_process_s
