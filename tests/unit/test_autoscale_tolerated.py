"""What desired_workers answers where a HorizontalPodAutoscaler's tolerance would swallow a step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autoscale.serving.tolerated import Answer, answered, passes

SIZES = st.integers(1, 500)


def test_an_exact_autoscaler_is_told_what_is_wanted() -> None:
    assert answered(11, 10, least=1, most=40, is_exact=True) == Answer(11)
    assert answered(19, 20, least=1, most=40, is_exact=True) == Answer(19)


def test_growth_within_the_tolerance_goes_to_the_next_size_that_passes() -> None:
    found = answered(11, 10, least=1, most=40, is_exact=False)
    assert found.workers == 12
    assert found.words == "the autoscaler tolerates a tenth, so it would not go from 10 to 11; it goes to 12, the next size that it acts on"


def test_growth_waits_where_the_next_size_is_above_the_most() -> None:
    found = answered(11, 10, least=1, most=11, is_exact=False)
    assert found.workers == 10
    assert found.words.endswith("the next size that it would act on is outside of 1 to 11, so it waits")


def test_a_step_back_that_would_come_back_waits() -> None:
    found = answered(19, 20, least=1, most=40, is_exact=False)
    assert found.workers == 20
    assert found.words.endswith("it would go to 17 and not stay there, so it waits")


def test_two_sizes_never_lead_to_each_other() -> None:
    """From 10 to 11 goes to 12; from 12 it must not go to 10, which an answer that looked one step ahead only let happen."""
    assert answered(11, 10, least=1, most=12, is_exact=False).workers == 12
    assert answered(11, 12, least=1, most=12, is_exact=False).workers == 12


def test_steps_outside_the_tolerance_are_told_as_they_are() -> None:
    assert answered(12, 10, least=1, most=40, is_exact=False) == Answer(12)
    assert answered(3, 2, least=1, most=40, is_exact=False) == Answer(3)
    assert answered(5, 0, least=1, most=40, is_exact=False) == Answer(5)


@given(wanted=SIZES, current=SIZES, bounds=st.tuples(SIZES, SIZES))
def test_it_acts_or_waits_within_the_bounds_and_settles(wanted: int, current: int, bounds: tuple[int, int]) -> None:
    least, most = min(bounds), max(bounds)
    wanted, current = min(max(wanted, least), most), min(max(current, least), most)
    found = answered(wanted, current, least=least, most=most, is_exact=False).workers
    assert least <= found <= most
    assert found == current or passes(current, found), "a number that is not the present one is acted upon"
    again = answered(wanted, found, least=least, most=most, is_exact=False).workers
    assert again == found, "the next answer leaves the job where it went"
