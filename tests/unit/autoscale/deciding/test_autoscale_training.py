"""Check the autoscaler's figures from a job's progress: its throughput, the use of its time, and the cost of a rescale."""

import pytest

from elastic.membership.training import TrainingProgress
from elastic_training.autoscale.deciding.training import WINDOW_S, Spent, Training, heard


class Told:
    """A job that sends messages."""

    def __init__(self, **options: bool) -> None:
        self.now = 1000.0
        self.known = Training()
        self.rates: list[float] = []
        self.options = options
        self.highest: int | None = None

    def says(
        self, after_s: float, step: int | None, *, size: int = 2, generation: int = 1, phase: str = "running", **values: float
    ) -> "Told":
        self.now += after_s
        if step is not None:
            self.highest = max(step, self.highest or 0)
        progress = TrainingProgress(
            job="job", generation=generation, phase=phase, size=size, step=step, highest=self.highest, values=dict(values)
        )
        self.known, rate = heard(self.known, progress, self.now, **self.options)
        if rate is not None:
            self.rates.append(rate)
        return self


def test_the_throughput_is_that_of_a_window_and_begins_after_the_first_step() -> None:
    job = Told().says(0, None).says(60, 1).says(5, 11).says(5, 21)
    assert job.rates == [pytest.approx(4.0)], "two steps a second by two workers"
    assert job.known.unit == "steps times workers"


def test_samples_count_if_they_are_reported() -> None:
    job = Told().says(0, 1, samples=100.0).says(WINDOW_S, 11, samples=740.0)
    assert job.rates == [64.0]
    assert job.known.unit == "samples"


def test_steps_count_as_they_are_if_a_step_is_the_same_work_with_any_number_of_workers() -> None:
    job = Told(counts_steps=True).says(0, 1).says(WINDOW_S, 21)
    assert job.rates == [2.0]


@pytest.mark.parametrize("nonsense", [-5.0, 1e300])
def test_samples_that_cannot_be_are_left_out(nonsense: float) -> None:
    job = Told().says(0, 1, samples=nonsense).says(WINDOW_S, 11, samples=nonsense)
    assert job.known.unit == "steps times workers"


def test_work_that_becomes_less_measures_nothing() -> None:
    job = Told().says(0, 1, samples=1e6).says(WINDOW_S, 2, samples=5.0).says(1, 3, samples=6.0)
    assert job.rates == []


def test_nothing_is_measured_over_a_change_of_the_world() -> None:
    job = Told().says(0, 1).says(5, 11).says(5, 12, generation=2, size=3).says(5, 20, generation=2, size=3)
    assert job.rates == []
    job.says(WINDOW_S, 30, generation=2, size=3)
    assert len(job.rates) == 1


def test_nothing_is_measured_from_the_last_step_of_one_world_to_the_first_of_the_next() -> None:
    """The new world is known before its first step. The time until that step counted as training, and a worker's steps as those of two."""
    job = Told().says(0, 40, size=1).says(WINDOW_S, 60, size=1)
    assert job.rates == [2.0]
    job.says(1, None, size=0, phase="re-forming").says(4, None, generation=2).says(8, 61, generation=2)
    assert job.rates == [2.0]
    job.says(WINDOW_S, 81, generation=2)
    assert job.rates == [2.0, 4.0]


def test_each_second_goes_to_what_the_job_was_doing() -> None:
    job = Told().says(0, None, size=0, phase="forming").says(7, None).says(0, 1).says(10, 11)
    job.says(0, 11, size=0, phase="re-forming").says(3, None, generation=2).says(4, 5, generation=2).says(2, 11, generation=2)
    spent = job.known.spent_until(job.now + 10)
    assert spent[Spent.WAITING] == 7
    assert spent[Spent.RENDEZVOUS] == 3
    assert spent[Spent.RESTART] == 4
    assert spent[Spent.ROLLBACK] == 2, "steps that were done before"
    assert spent[Spent.TRAINING] == 20
    assert job.known.rescale_s == 9


def test_a_world_that_stands_and_makes_no_steps_has_stalled() -> None:
    job = Told().says(0, 1).says(1, 2)
    job.now += 100
    job.known, _ = heard(
        job.known, TrainingProgress(job="job", generation=1, phase="running", size=2, step=2, age_s=100, highest=2), job.now
    )
    assert job.known.spent is Spent.STALLED


def test_a_finished_job_loses_no_more_time() -> None:
    job = Told().says(0, 1).says(5, 2, phase="finished")
    assert job.known.spent_until(job.now + 1000) == {Spent.TRAINING: 5}


def test_a_job_that_reports_nothing_is_known_to() -> None:
    job = Told().says(0, None).says(100, None)
    assert not job.known.reports(job.now)
    assert job.known.spent is Spent.TRAINING
    assert job.says(0, 1).known.reports(job.now)
    assert not job.known.reports(job.now + 61)
