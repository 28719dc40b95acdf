"""Keep what programs report of jobs that have no members here: other kinds, and jobs with another rendezvous.

Only a real job has a token, so the jobs are real. Nobody says when such a job ends, so it is forgotten after a time without a report.
"""

from collections.abc import Callable
from dataclasses import dataclass

from elastic.membership.training import TrainingProgress
from elastic_training.rendezvous.server.metered import Rate
from elastic_training.rendezvous.server.trainer_status import A_SECOND, AT_ONCE, Told, TrainerStatus, told_now

KEPT_S = 3600.0
MOST_JOBS = 20_000


@dataclass(slots=True)
class _Other:
    told: Told
    rate: Rate
    at: float


class OtherJobs:
    """The newest report of each of these jobs, the job that was silent for longest first."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._jobs: dict[str, _Other] = {}

    def may_report(self, uid: str) -> bool:
        """Return whether the program of this job may report again now."""
        return uid not in self._jobs or self._jobs[uid].rate.allows_message()

    def take(self, uid: str, status: TrainerStatus) -> bool:
        """Keep a report. Return whether it is the first one that says that training is complete."""
        now = self._clock()
        other = self._jobs.pop(uid, None) or _Other(Told(), Rate(self._clock, messages_per_s=A_SECOND, burst=AT_ONCE), now)
        before, other.at = other.told, now
        other.told = told_now(before, status, generation=0, now=now)
        self._jobs[uid] = other
        return other.told.is_complete and not before.is_complete

    def expire(self) -> list[str]:
        """Drop the jobs that have been silent for too long, and the oldest ones if there are too many. Return their uids."""
        gone, oldest = [], self._clock() - KEPT_S
        while self._jobs and (self._jobs[uid := next(iter(self._jobs))].at < oldest or len(self._jobs) > MOST_JOBS):
            del self._jobs[uid]
            gone.append(uid)
        return gone

    def drop(self, uid: str) -> None:
        """Drop this job, because its members have come or it is gone."""
        self._jobs.pop(uid, None)

    def progress(self, uid: str) -> TrainingProgress | None:
        """Return the progress of this job, which has no phase: nothing is known of its workers."""
        if (other := self._jobs.get(uid)) is None:
            return None
        told = other.told
        return TrainingProgress(
            job=uid,
            step=told.step,
            highest=told.step,
            age_s=told.age_s(self._clock()),
            values=told.values,
            percent=told.percent,
            remaining_s=told.remaining_s,
        )
