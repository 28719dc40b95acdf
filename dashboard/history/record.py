"""Remember one job: its series, its rescales, and how its time was spent. Bounded and pure: `now` and `monotonic` are the caller's."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from elastic.membership.phases import WorldPhase
from elastic.membership.training import TrainingProgress
from elastic_training.autoscale.deciding.training import SAMPLES, TOKENS, Spent, Training, heard
from elastic_training.dashboard.history.series import NOTHING, Row, Series
from elastic_training.dashboard.watching.seen import JobSeen, RescaleSeen

MOST_RESCALES = 100
MOST_GAPS = 8
FRESH_S, LATE_GAPS = 15.0, 2
"""The next step is late after LATE_GAPS times the longest of the newest gaps between steps, but not before FRESH_S."""
LOSS = "loss"
STEPS = "steps"


@dataclass(slots=True)
class JobRecord:
    series: Series = field(default_factory=Series)
    training: Training = field(default_factory=Training)
    rescales: dict[str, RescaleSeen] = field(default_factory=dict)
    """By id, the oldest first."""
    lost_ms: dict[str, int] = field(default_factory=dict)
    """By phase, of all rescales that were seen."""
    rate: float | None = None
    unit: str = STEPS
    """The unit of `rate` in one second: samples, tokens or steps."""
    step: int | None = None
    loss: float | None = None
    percent: int | None = None
    remaining_s: float | None = None
    """The newest values that were reported. They stay if the job is suspended or over."""
    stepped_at: float | None = None
    """When the newest step was reported, in seconds since 1970."""
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_GAPS))
    """Seconds between the newest steps that were heard of; the server does not send each step."""

    @property
    def step_due_s(self) -> float:
        """Return after how many seconds without a step the next one is late."""
        return max(FRESH_S, LATE_GAPS * max(self.gaps, default=0.0))

    def is_late(self, now: float) -> bool:
        """Return whether the next step is late. Then nobody knows how fast training is."""
        return self.stepped_at is not None and now - self.stepped_at > self.step_due_s

    @property
    def world(self) -> int | None:
        """The number of workers in the world, by the rendezvous server; None if it says nothing about the job."""
        progress = self.training.progress
        return progress.size if progress is not None and not progress.forgotten else None

    def hear(self, progress: TrainingProgress, seen: JobSeen | None, *, now: float, monotonic: float) -> None:
        """Take in one message of the stream of progress."""
        if not progress.phase and not progress.forgotten:
            # Only the program of this job reports: nothing is known of its workers, nor of the use of its time.
            self._keep(progress)
            self._write(seen, now)
            return
        before = self.training
        self._note_step(before.progress, progress, now - progress.age_s)
        self.training, rate = heard(before, progress, monotonic)
        if before.size != self.training.size or not progress.size:
            self.rate = None
        if rate is not None and math.isfinite(rate):
            self.unit = self.training.unit if self.training.unit in (SAMPLES, TOKENS) else STEPS
            self.rate = rate / max(1, self.training.size) if self.unit == STEPS else rate
        self._keep(progress)
        self._write(seen, now)

    def see(self, seen: JobSeen, *, now: float) -> None:
        """Take in the job's object as the API has it now."""
        if seen.rescale is not None and seen.rescale != self.rescales.get(seen.rescale.id):
            self._note(seen.rescale)
        self._write(seen, now)

    def forget_training(self, monotonic: float) -> None:
        """Stop counting time, because the rendezvous server no longer knows the job."""
        if self.training.progress is not None:
            self.training, _ = heard(
                self.training, TrainingProgress(job=self.training.progress.job, phase=WorldPhase.CLOSED, forgotten=True), monotonic
            )
        self.rate = None

    def spent(self, monotonic: float) -> dict[str, float]:
        """Return the seconds that were spent on each kind of work and waiting."""
        return {spent.value: seconds for spent, seconds in self.training.spent_until(monotonic).items() if spent is not Spent.OVER}

    def _keep(self, progress: TrainingProgress) -> None:
        """Keep what was reported. A world without steps counts with the highest step so far; a resumed job's world may have none."""
        step = progress.step if progress.step is not None else progress.highest
        self.step = self.step if step is None else step
        loss = _loss(progress)
        self.loss = self.loss if loss is None else loss
        self.percent = self.percent if progress.percent is None else progress.percent
        self.remaining_s = self.remaining_s if progress.remaining_s is None else progress.remaining_s

    def _note_step(self, before: TrainingProgress | None, progress: TrainingProgress, at: float) -> None:
        known = (before.generation, before.step) if before is not None else (None, None)
        if progress.step is None or known == (progress.generation, progress.step):
            return
        if known[0] == progress.generation and known[1] is not None and self.stepped_at is not None:
            self.gaps.append(max(0.0, at - self.stepped_at))
        self.stepped_at = at

    def _note(self, rescale: RescaleSeen) -> None:
        """Add a rescale. Its phases become known one after the other, so it may be seen several times."""
        known = self.rescales.get(rescale.id)
        for phase, ms in rescale.phases.items():
            self.lost_ms[phase] = self.lost_ms.get(phase, 0) + ms - (known.phases.get(phase, 0) if known is not None else 0)
        self.rescales[rescale.id] = rescale
        while len(self.rescales) > MOST_RESCALES:
            del self.rescales[next(iter(self.rescales))]

    def _write(self, seen: JobSeen | None, now: float) -> None:
        world = self.world
        told = seen.summary if seen is not None else None
        if world is None and told is not None:
            world = told.world
        if told is not None and told.is_over:
            world = 0
        row = Row(
            at=now,
            world=_number(world),
            wanted=_number(told.wanted if told is not None else None),
            generation=_number(seen.generation if seen is not None else None),
            step=_number(self.step),
            rate=_number(None if self.is_late(now) else self.rate),
            loss=_number(_loss(self.training.progress) if self.training.progress is not None else self.loss),
            least=_number(world),
        )
        self.series.add(row)


def _loss(progress: TrainingProgress) -> float | None:
    """Return the value `loss`, or the first one whose name ends with it, such as train_loss."""
    if LOSS in progress.values:
        return progress.values[LOSS]
    return next((value for name, value in progress.values.items() if name.endswith(LOSS)), None)


def _number(value: float | None) -> float:
    return NOTHING if value is None else float(value)
