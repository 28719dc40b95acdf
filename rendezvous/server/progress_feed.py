"""Find the jobs whose progress has changed since an autoscaler last heard of it.

A change of the world counts at once, a step only now and then: an autoscaler measures over many seconds, and thousands of jobs share one
stream.
"""

import itertools
from collections.abc import Callable

import msgspec

from elastic.membership.hosts import MAX_VALUES
from elastic.membership.training import Report, TrainingProgress, TrainingSignal
from elastic_training.rendezvous.engine.state.job import JobState
from elastic_training.rendezvous.engine.views import summary
from elastic_training.rendezvous.server.news import News
from elastic_training.rendezvous.server.other_jobs import OtherJobs
from elastic_training.rendezvous.server.trainer_status import Told, TrainerStatus

LEAST_GAP_S = 5.0
MOST_A_SECOND = 200.0
"""Lines for steps; with more jobs each has fewer."""


class ProgressFeed:
    """The news of all jobs' progress."""

    def __init__(self, *, clock: Callable[[], float], most_forgotten: int) -> None:
        self._clock = clock
        self._news = News(most_forgotten=most_forgotten)
        self._stepped_at: dict[str, float] = {}
        self._held: set[str] = set()
        """Jobs with a step that came too soon after the last news."""
        self._last: dict[str, Told] = {}
        """The last reports of programs whose jobs are gone."""
        self._most_forgotten = most_forgotten
        self.others = OtherJobs(clock)
        self.world_changed = self._news.publish
        self.since = self._news.since
        self.wait_newer = self._news.wait_newer

    @property
    def version(self) -> int:
        return self._news.version

    def stepped(self, uid: str) -> None:
        """Note a step of the job. It is published at once if the last published step is long enough ago."""
        self._held.add(uid)
        self._publish_if_due(uid, self._clock())

    def publish_due(self) -> None:
        """Publish steps that were held back: without this, the last step before a standstill would never be news."""
        now = self._clock()
        for uid in tuple(self._held):
            self._publish_if_due(uid, now)

    def _publish_if_due(self, uid: str, now: float) -> None:
        gap_s = max(LEAST_GAP_S, len(self._news) / MOST_A_SECOND)
        if now - self._stepped_at.get(uid, -gap_s) >= gap_s:
            self._stepped_at[uid] = now
            self._held.discard(uid)
            self._news.publish(uid)

    def gone(self, uid: str) -> TrainingProgress:
        """Return the last message about a job that is gone."""
        told = self._last.get(uid, Told())
        return TrainingProgress(
            job=uid, forgotten=True, step=told.step, values=told.values, percent=told.percent, remaining_s=told.remaining_s
        )

    def reported(self, uid: str, *, is_end: bool) -> None:
        """Note a report of the job's program. The end of training is news at once."""
        self.stepped(uid)
        if is_end:
            self.world_changed(uid)

    def take_status(self, uid: str, status: TrainerStatus) -> None:
        """Take the report of a job that has no members here."""
        self.reported(uid, is_end=self.others.take(uid, status))
        for gone in self.others.expire():
            self.forget(gone)

    def forget(self, uid: str, told: Told | None = None) -> None:
        """Note that the job is gone, and keep the last report of its program for the listeners that have not heard it."""
        self.others.drop(uid)
        self._held.discard(uid)
        if uid in self._news:
            self._last.pop(uid, None)
            if told is not None and told.percent is not None:
                self._last[uid] = told
            if len(self._last) > self._most_forgotten:
                del self._last[next(iter(self._last))]
            self._stepped_at.pop(uid, None)
            self._news.forget(uid)


def progress_of(job: JobState, reports: dict[str, tuple[Report, float]], told: Told, now: float) -> TrainingProgress:
    """Return the report with the highest step of the present world. Other reports are of workers that lag, or of a former world.

    `told` is what the program reports in the form of Kubeflow Trainer. Its step counts if no worker reports one.
    """
    seen = summary(job)
    size = seen.standing.size if seen.standing is not None else 0
    zero = job.membership.world.by_rank[0] if size and job.membership.world is not None else None
    known = TrainingProgress(
        job=job.uid,
        generation=seen.generation,
        phase=seen.phase,
        size=size,
        highest=job.progress.step,
        rank_zero=zero or "",
        percent=told.percent,
        remaining_s=told.remaining_s,
    )
    here = [(report, at) for report, at in reports.values() if size and report.generation == seen.generation and report.step is not None]
    # A program that does not meet here never has a world. Its values are those of generation 0.
    is_told = told.generation == seen.generation and bool(size or not seen.generation)
    if not here and not is_told:
        return known
    if not here:
        return msgspec.structs.replace(known, step=told.step, age_s=told.age_s(now), values=told.values)
    newest, at = max(here, key=lambda one: (one[0].step or 0, -one[1]))
    values = dict(itertools.islice({**newest.values, **told.values, **newest.values}.items(), MAX_VALUES)) if is_told else newest.values
    return msgspec.structs.replace(known, step=newest.step, age_s=max(0.0, round(now - at, 3)), values=values)


def signals_of(reports: dict[str, tuple[Report, float]], now: float) -> list[TrainingSignal]:
    """Return the newest report of each worker."""
    return [
        TrainingSignal(member=name, age_s=round(now - at, 3), generation=report.generation, step=report.step, values=report.values)
        for name, (report, at) in reports.items()
    ]
