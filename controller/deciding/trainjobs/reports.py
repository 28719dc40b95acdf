"""Write a TrainJob's trainerStatus from the progress of its job. It holds the newest report, and changes at most once in a while.

The program reports through Kubeflow's callback or SDK, or by `elastic_worker.report`. Both arrive as one Progress.
"""

from datetime import datetime, timedelta

from msgspec.structs import replace

from elastic.api.trainer.train_job import Metric, TrainerStatus
from elastic.membership.training import TrainingProgress

LEAST_GAP = timedelta(seconds=10)
"""Time between two writes of a TrainJob that trains."""
STEP = "current_step"
"""The name of the step in transformers, too."""
FORMAT = "%Y-%m-%dT%H:%M:%SZ"
MOST_SECONDS = 2**31 - 1
WHOLE = 2.0**53
"""Every whole number below is exact."""


def trainer_status(known: TrainerStatus | None, progress: TrainingProgress | None, *, now: datetime) -> TrainerStatus | None:
    """Return the status that the newest report makes. It is the known one if the report says nothing new."""
    before = known or TrainerStatus()
    if progress is None:
        return known
    left_s = progress.remaining_s
    new = TrainerStatus(
        progress_percentage=before.progress_percentage if progress.percent is None else progress.percent,
        estimated_remaining_seconds=before.estimated_remaining_seconds if left_s is None else min(int(left_s), MOST_SECONDS),
        metrics=_metrics(progress) or before.metrics,
        last_updated_time=before.last_updated_time,
    )
    return known if new == before else replace(new, last_updated_time=now.strftime(FORMAT))


def next_write(known: TrainerStatus | None, *, now: datetime) -> datetime:
    """Return when the status of a TrainJob that trains may change again. A time that cannot be read, or lies ahead, delays nothing."""
    try:
        last = datetime.strptime((known.last_updated_time or "") if known is not None else "", FORMAT).replace(tzinfo=now.tzinfo)
    except ValueError:
        return now
    return last + LEAST_GAP if last <= now else now


def _metrics(progress: TrainingProgress) -> tuple[Metric, ...]:
    """Return the metrics, with the step as the last one. A world that has not made a step may have none."""
    values = {name: value for name, value in progress.values.items() if name}
    if progress.step is not None:
        values[STEP] = float(progress.step)
    return tuple(Metric(name=name, value=_text(value)) for name, value in values.items())


def _text(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < WHOLE else repr(value)
