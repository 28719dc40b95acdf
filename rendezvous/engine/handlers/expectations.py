"""The controller's expectation of a job: which one is the newest, and what the job is with it."""

from __future__ import annotations

from collections.abc import Mapping

from .. import presented, reach
from ..messages.controller import Expectation, Restart
from ..restart_budget import with_presented, with_recorded
from ..restart_log import RestartLog
from ..state import accounting, progress
from ..state.job import JobState
from ..state.membership import LeaveNotice
from ..values import replace


def expect(job: JobState, expectation: Expectation) -> JobState:
    """Return the job with the controller's new expectation. Ignore one of an older leader, and an older one of the same leader."""
    if is_stale(job.membership.expectation, expectation):
        return job
    presented_before: tuple[Restart, ...] = ()
    job = reach.heard(job)
    if presented.is_far_from(job, expectation):
        job = _without_claims(job)
    if job.membership.expectation is None:
        presented_before = tuple(job.accounting.known_restarts.values())
        job = replace(
            job,
            progress=progress.from_status(job.progress, expectation),
            accounting=accounting.from_status(expectation, job.accounting, now=job.now),
        )
    group = replace(
        job.membership,
        expectation=expectation,
        expected=dict.fromkeys(expectation.members),
        silent=_still_expected(job.membership.silent, expectation),
        notices={entry.member: LeaveNotice(job.now + entry.by_s, entry.cause, entry.when_replaced) for entry in expectation.leaving},
        generation=max(job.membership.generation, expectation.floor),
    )
    recorded = RestartLog(expectation.restarts, expectation.unsettled, expectation.settled_to)
    job = with_recorded(replace(job, membership=group), recorded)
    if expectation.closed and not job.accounting.closed:
        return replace(job, accounting=replace(job.accounting, closed=expectation.closed)).with_round(None)
    return with_presented(job, presented.with_room(job, presented_before)) if presented_before else job


def _still_expected(silent: Mapping[str, float], expectation: Expectation) -> Mapping[str, float]:
    """Return the silent members that are still expected. A worker that must leave, or whose pod has yet to start, is no longer missed."""
    if not silent:
        return silent
    left = {entry.member for entry in expectation.leaving}.union(expectation.pending)
    expected = set(expectation.members) - left
    return {name: at for name, at in silent.items() if name in expected}


def _without_claims(job: JobState) -> JobState:
    """Return the job without its members' claims, which cannot be true. The members are cut off, so that they present themselves again."""
    group = replace(job.membership.in_world(None), members={}, generation=0, round=None)
    return replace(job, membership=group, accounting=accounting.without_claims(job.accounting))


def is_stale(known: Expectation | None, new: Expectation) -> bool:
    """Return whether a newer expectation is known. If two processes lead the same term, believe the one that spoke last."""
    if known is None or new.term != known.term:
        return known is not None and new.term < known.term
    return new.speaker == known.speaker and new.number < known.number
