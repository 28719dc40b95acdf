"""Follow a job's progress: its speed with its present number of workers, the use of its time, and the cost of a rescale.

`now` is the caller's monotonic clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from elastic.membership.phases import WorldPhase
from elastic.membership.training import TrainingProgress

WINDOW_S = 10.0
"""Seconds over which a throughput is measured at least."""
STALLED_AFTER = 20.0
"""Times the usual time between steps."""
LEAST_STALL_S = 60.0
SILENT_S = 60.0
"""Seconds after which a silent job counts as a job without reports."""
SAMPLES, TOKENS = "samples", "tokens"
OVER = (WorldPhase.FINISHING, WorldPhase.FINISHED, WorldPhase.CLOSED)
FORMING = (WorldPhase.EMPTY, WorldPhase.FORMING, "")


class Spent(StrEnum):
    """The use of a job's time."""

    TRAINING = "training"
    WAITING = "waiting"  # for workers
    RENDEZVOUS = "rendezvous"  # its workers meet
    RESTART = "restart"  # from the world until its first step
    ROLLBACK = "rollback"  # steps that were done before
    STALLED = "stalled"  # no steps, in a world that stands
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Mark:
    """How much work was done at a time by which world, and in which unit it is counted."""

    at: float
    work: float
    unit: str
    step: int
    world: tuple[int, int]
    """Generation and number of workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The news of one job so far."""

    progress: TrainingProgress | None = None
    heard_at: float = 0.0
    spent: Spent = Spent.WAITING
    seconds: Mapping[Spent, float] = field(default_factory=dict)
    first: Mark | None = None
    last: Mark | None = None
    step_s: float | None = None
    outage_s: float = 0.0
    rescale_s: float | None = None

    @property
    def size(self) -> int:
        return self.progress.size if self.progress is not None else 0

    @property
    def unit(self) -> str:
        return self.last.unit if self.last is not None else ""

    def reports(self, now: float) -> bool:
        return self.last is not None and now - self.last.at < max(SILENT_S, STALLED_AFTER * (self.step_s or 0.0))

    def spent_until(self, now: float) -> dict[Spent, float]:
        """Return the spent time, including the time since the last message."""
        found = dict(self.seconds)
        if self.progress is not None:
            found[self.spent] = found.get(self.spent, 0.0) + max(0.0, now - self.heard_at)
        found.pop(Spent.OVER, None)
        return found


def heard(known: Training, progress: TrainingProgress, now: float, *, counts_steps: bool = False) -> tuple[Training, float | None]:
    """Return the state after this message, and the throughput if enough time has passed to measure it.

    counts_steps: a step is the same work with any number of workers.
    """
    mark, last = _mark(progress, now, counts_steps=counts_steps), known.last
    known = _booked(known, progress, now)
    if mark is None:
        return replace(known, first=None), None
    if last is None or last.world != mark.world or last.unit != mark.unit or mark.work < last.work:
        # The first step of a world waits for compilers and caches: measuring begins at the next one.
        return replace(known, first=None, last=mark), None
    if mark.step > last.step and mark.at > last.at:
        known = replace(known, step_s=(mark.at - last.at) / (mark.step - last.step))
    first = known.first or last
    rate = None
    if mark.at - first.at >= WINDOW_S and mark.work > first.work and known.spent in (Spent.TRAINING, Spent.ROLLBACK):
        rate = (mark.work - first.work) / (mark.at - first.at)
        first = mark
    return replace(known, first=first, last=mark), rate


def _mark(progress: TrainingProgress, now: float, *, counts_steps: bool) -> Mark | None:
    if progress.step is None or progress.size < 1:
        return None
    at, world = now - progress.age_s, (progress.generation, progress.size)
    if not counts_steps:
        for unit in (SAMPLES, TOKENS):
            work = progress.values.get(unit)
            if work is not None and 0 <= work < 1e18:
                return Mark(at, work, unit, progress.step, world)
    work = float(progress.step) * (1 if counts_steps else progress.size)
    return Mark(at, work, "steps" if counts_steps else "steps times workers", progress.step, world)


def _booked(known: Training, progress: TrainingProgress, now: float) -> Training:
    """Return the state with the time since the last message booked on the job's use of it."""
    spent = _spent(progress, known, now)
    if known.progress is None:
        return replace(known, progress=progress, heard_at=now, spent=spent)
    passed = max(0.0, now - known.heard_at)
    seconds = {**known.seconds, known.spent: known.seconds.get(known.spent, 0.0) + passed}
    outage_s = known.outage_s + passed if known.spent in (Spent.RENDEZVOUS, Spent.RESTART, Spent.ROLLBACK) else known.outage_s
    rescale_s = known.rescale_s
    if spent is Spent.TRAINING and outage_s > 0:
        rescale_s = outage_s if rescale_s is None else 0.7 * rescale_s + 0.3 * outage_s
        outage_s = 0.0
    return replace(known, progress=progress, heard_at=now, spent=spent, seconds=seconds, outage_s=outage_s, rescale_s=rescale_s)


def _spent(progress: TrainingProgress, known: Training, now: float) -> Spent:
    if progress.phase in OVER:
        return Spent.OVER
    if progress.size == 0:
        return Spent.WAITING if progress.phase in FORMING else Spent.RENDEZVOUS
    if progress.highest is None:
        return Spent.TRAINING  # it reports nothing
    if progress.step is None:
        return Spent.RESTART
    if progress.age_s > max(LEAST_STALL_S, STALLED_AFTER * (known.step_s or 0.0)):
        return Spent.STALLED
    return Spent.ROLLBACK if progress.step < progress.highest else Spent.TRAINING
