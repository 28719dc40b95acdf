"""Apply the controller's reports of ended containers, each as soon as it is clear which loss it explains."""

from __future__ import annotations

from ..handlers.leaving_world import gone, with_loss
from ..messages.bounds import MAX_MEMBERS
from ..messages.controller import Ended
from ..restart_budget import with_known_cause, with_lone_restart
from ..state.accounting import Loss, is_accounted, is_lost
from ..state.job import JobState
from ..state.membership import Member
from ..values import replace
from ..words import Cause

EXPLAINED_KEPT = 2 * MAX_MEMBERS


def apply_exit_reports(job: JobState) -> JobState:
    """Account for the ends that the controller reported, each as soon as it is clear which loss it explains."""
    expectation = job.membership.expectation
    known = job.accounting.explained
    explained = dict(known)
    for end in expectation.ended if expectation is not None else ():
        if end_id(end) not in explained and _is_clear(job, end):
            job = _explain(job, end)
            explained[end_id(end)] = None
    if len(explained) == len(known):
        return job
    return replace(job, accounting=replace(job.accounting, explained=dict.fromkeys(list(explained)[-EXPLAINED_KEPT:])))


def end_id(end: Ended) -> str:
    return f"{end.pod_uid}/{end.run}"


def _is_clear(job: JobState, end: Ended) -> bool:
    """Return whether it is clear which loss this end explains.

    It is not clear while the connection of a finished pod still stands, because that connection will break. It is not clear either while
    members of a world that an earlier server sealed may be missing because of this end.
    """
    if end.is_last and (member := _here(job, end)) is not None and member.broken_at is None:
        return False
    return job.is_settled or (job.membership.world is not None and not job.membership.unknown_ranks)


def _explain(job: JobState, end: Ended) -> JobState:
    """Account for the end of a container with the cause that the controller reports.

    If the member's connection still stands, or the member is unknown here, an earlier run of the container ended, and no loss is explained.
    The report then changes nothing. If the whole pod ended, or its agent could not start, the end is charged even for an unknown member.
    """
    if end.usage_error:
        return _by_itself(job, end, words=f"the container of {end.member} ended before it came to the rendezvous ({end.cause})")
    words = f"the container of {end.member} ended ({end.cause})"
    member = _here(job, end)
    group = job.membership
    had_rank = group.world is not None and end.member in group.world.ranks
    if member is not None and member.broken_at is not None:
        job = gone(job, end.member, cause=end.cause, words=words)
        return with_known_cause(job, end, words=words) if had_rank else _by_itself(job, end, words=words)
    if not had_rank and group.unknown_ranks > len(job.accounting.losses):
        return with_loss(job, Loss(end.member, end.pod_uid, end.cause, words))
    if is_lost(job.accounting, end.pod_uid):
        return with_known_cause(job, end, words=words)
    return _by_itself(job, end, words=words) if member is None else job


def _here(job: JobState, end: Ended) -> Member | None:
    """Return the member whose container belongs to the very pod that ended; None if another pod has its place."""
    member = job.membership.members.get(end.member)
    return member if member is not None and member.pod == end.pod_uid else None


def _by_itself(job: JobState, end: Ended, *, words: str) -> JobState:
    is_charged = (end.is_last or end.usage_error) and end.member not in job.membership.notices and end.cause != Cause.DISRUPTION
    is_charged = is_charged and not is_accounted(job.accounting, end)
    return with_lone_restart(job, end, words=words) if is_charged else job
