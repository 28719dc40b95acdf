"""Check the curve of a job's throughput: measured means, their bounds, and the model between and beyond them."""

import itertools
import math
import random

import pytest
from autoscale_jobs import NOON, measured
from hypothesis import given
from hypothesis import strategies as st

from elastic_training.autoscale.deciding.curve import MOST_EFFICIENCY, Curve, speedup
from elastic_training.autoscale.deciding.measures import LEAST_COUNT, MOST_SIZES, SHIFTED_AFTER, Sizes, with_rate


def fed(rates: list[float], *, size: int = 4, known: Sizes = ()) -> Sizes:
    for rate in rates:
        known = with_rate(known, size=size, rate=rate, now=NOON + 1)
    return known


def test_nothing_follows_from_one_measurement():
    assert not Curve(fed([100.0] * (LEAST_COUNT - 1)), least=1, now=NOON).is_known
    assert Curve(fed([100.0] * LEAST_COUNT), least=1, now=NOON).knows(4)


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -1.0, 0.0])
def test_a_rate_that_is_no_positive_number_changes_nothing(nonsense: float):
    known = fed([100.0] * 5)
    assert with_rate(known, size=4, rate=nonsense, now=NOON) == known


def test_the_mean_and_its_bounds_hold_the_truth():
    draw = random.Random(1)
    (found,) = fed([draw.gauss(100, 10) for _ in range(200)])
    rate = Curve((found,), least=1, now=NOON).rate(4)
    assert rate.low < 100 < rate.high
    assert rate.high - rate.low < 40


def test_a_pause_for_a_checkpoint_changes_nothing():
    before = fed([100.0, 101.0, 99.0, 100.0, 100.0, 101.0])
    after = fed([3.0], known=before)
    assert after[0].rate == before[0].rate


def test_when_the_work_itself_changes_all_sizes_move_with_it():
    known = (*measured({2: 60.0}), *fed([100.0] * 10, size=4))
    moved = {one.size: one for one in fed([50.0] * 6, size=4, known=known)}
    assert moved[4].rate == pytest.approx(50, rel=0.05)
    assert moved[2].rate == pytest.approx(30, rel=0.05)
    assert moved[2].count <= LEAST_COUNT


def test_the_sizes_that_were_measured_least_are_forgotten_first():
    known: Sizes = ()
    for size in range(1, 30):
        known = with_rate(known, size=size, rate=float(size), now=NOON)
    assert len(known) <= MOST_SIZES
    assert known[-1].size == 29


def test_beyond_what_was_measured_nothing_low_is_certain_and_linear_is_the_most():
    rate = Curve(measured({2: 20.0}), least=1, now=NOON).rate(4)
    assert rate.low == 0
    assert rate.high == pytest.approx(40, rel=0.05)
    assert rate.low <= rate.mid <= rate.high


def test_two_sizes_bound_the_next_by_their_slope():
    rate = Curve(measured({1: 10.0, 2: 12.0}), least=1, now=NOON).rate(3)
    assert rate.high == pytest.approx(14, rel=0.05)


def test_the_model_finds_a_curve_with_contention():
    truth = {n: 100 * n / (1 + 0.1 * (n - 1)) for n in range(1, 17)}
    curve = Curve(measured({n: truth[n] for n in (1, 2, 4)}), least=1, now=NOON)
    assert curve.rate(8).mid == pytest.approx(truth[8], rel=0.1)
    assert curve.efficiency(4) == pytest.approx(truth[4] / 4 / truth[1], rel=0.02)


def test_a_curve_that_falls_is_found_to_fall():
    truth = {n: 100 * n / (1 + 0.05 * (n - 1) + 0.05 * n * (n - 1)) for n in range(1, 17)}
    curve = Curve(measured({n: truth[n] for n in (1, 2, 3, 4)}), least=1, now=NOON)
    assert curve.rate(12).mid < curve.rate(4).mid


SILENT = Curve((), least=1, now=NOON)


@pytest.mark.parametrize("least", [1, 4])
def test_without_reports_each_further_worker_speeds_a_job_up_by_less(least: int):
    gains = [speedup(SILENT, size, least) for size in range(1, 50)]
    assert gains[:least] == [1 / least] * least, "up to the minimum they count alike, and are the whole of it together"
    assert all(0 < later < earlier for earlier, later in itertools.pairwise(gains[least - 1 :]))
    assert sum(gains[:10]) == pytest.approx((10 / 1.45) / (least / (1 + 0.05 * (least - 1)))), "ten do the work of seven"


def test_a_workers_speedup_is_what_it_adds_to_the_throughput_at_the_least_size():
    curve = Curve(measured({8: 800.0, 9: 895.0}), least=8, now=NOON)
    assert speedup(curve, 9, 8) == pytest.approx(0.95 / 8)


NONSENSE = [{1: 1e-3, 2: 1e9, 3: 1e14}, {1: 1.0, 2: 2.01 * MOST_EFFICIENCY}, {1: 100.0, 2: 200.0, 4: 1e6}]


@pytest.mark.parametrize("rates", NONSENSE)
def test_a_job_whose_workers_are_said_to_do_the_impossible_counts_as_one_that_reports_nothing(rates: dict[int, float]):
    """A job that reported more than a linear speed-up came before all jobs that told the truth."""
    curve = Curve(measured(rates), least=1, now=NOON)
    for size in range(1, 9):
        assert speedup(curve, size, 1) == speedup(SILENT, size, 1)


def test_a_job_with_somewhat_more_than_linear_speedup_is_believed_and_counts_as_linear():
    curve = Curve(measured({1: 100.0, 2: 250.0, 4: 380.0}), least=1, now=NOON)
    assert speedup(curve, 2, 1) == 1
    assert speedup(curve, 4, 1) < 0.7


def test_measures_below_the_minimum_say_nothing_against_a_job():
    curve = Curve(measured({1: 100.0, 8: 200.0, 9: 220.0}), least=8, now=NOON)
    assert speedup(curve, 9, 8) == pytest.approx(0.1)


rates = st.dictionaries(st.integers(1, 64), st.floats(1e-6, 1e12), max_size=8)


@given(rates, st.floats(0, 3), st.integers(1, 200))
def test_bounds_are_bounds_for_any_measures(found: dict[int, float], spread: float, size: int):
    curve = Curve(measured(found, spread=spread), least=1, now=NOON)
    if curve.is_known:
        rate = curve.rate(size)
        assert 0 <= rate.low <= rate.mid <= rate.high
        assert math.isfinite(rate.mid)
        assert curve.share > 0


def test_rates_that_cannot_be_true_leave_no_size_beyond_what_numbers_hold() -> None:
    """A job may report anything with any number of workers, and its figures are computed together with all other jobs' figures."""
    known: Sizes = ()
    for turn in range(60):
        size, rate = (1, 1e-9) if turn % 2 else (2, 1e15)
        for _ in range(4 * SHIFTED_AFTER):
            known = with_rate(known, size=size, rate=rate, now=NOON + turn)
            curve = Curve(known, least=1, now=NOON)
            assert math.isfinite(curve.rate(3).mid)
            assert math.isfinite(curve.gain(1, 4).mid)
    for rate in (1e-300, 5e-324, 1e300, math.inf, math.nan, -1.0, 0.0):
        assert with_rate((), size=1, rate=rate, now=NOON) == ()


def test_rates_so_far_apart_that_no_curve_fits_end_no_round() -> None:
    """Rounding left nothing of a divisor, and the reports of one job broke off each round of decisions about all jobs."""
    curve = Curve(measured({1: 1e-7, 2: 0.1, 3: 1e5}, at=0.0), least=1, now=NOON)
    assert all(math.isfinite(curve.rate(size).mid) for size in range(1, 9))
