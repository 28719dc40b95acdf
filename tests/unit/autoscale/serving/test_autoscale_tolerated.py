"""Check the answer of desired_workers if a HorizontalPodAutoscaler's tolerance would swallow a step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastic_training.autoscale.deciding.signals import Bounds
from elastic_training.autoscale.serving.tolerated import ToleratedSize, answered, passes

MOST = 300


def told(
    wanted: int, current: int, *, most: int = 40, allowed: tuple[int, ...] = (), step: int = 1, is_exact: bool = False
) -> ToleratedSize:
    least = min(allowed, default=step)
    bounds = Bounds(least, most, allowed, step)
    return answered(wanted, current, bounds=bounds, least=least, most=most, is_exact=is_exact)


def test_an_exact_autoscaler_is_told_what_is_wanted() -> None:
    assert told(11, 10, is_exact=True) == ToleratedSize(11)
    assert told(19, 20, is_exact=True) == ToleratedSize(19)


def test_growth_within_the_tolerance_goes_to_the_next_size_that_passes() -> None:
    found = told(11, 10)
    assert found.workers == 12
    assert found.words == (
        "the autoscaler tolerates a tenth, so it would not go from 10 to 11; it goes to 12, the next size that the job may have and that "
        "it acts on"
    )


def test_growth_waits_if_the_next_size_is_above_the_most() -> None:
    found = told(11, 10, most=11)
    assert found.workers == 10
    assert found.words.endswith("the job may not have a size from 1 to 11 that it would act on, so it waits")


def test_a_step_back_that_would_come_back_waits() -> None:
    found = told(19, 20)
    assert found.workers == 20
    assert found.words.endswith("it would go to 17 and not stay there, so it waits")


def test_two_sizes_never_lead_to_each_other() -> None:
    """A step from 10 to 11 goes to 12. From 12 it must not go to 10, which an answer that looked only one step ahead let happen."""
    assert told(11, 10, most=12).workers == 12
    assert told(11, 12, most=12).workers == 12


def test_a_size_that_the_job_may_not_have_is_no_next_one() -> None:
    """It went from 20 to 23 with allowedSizes 20, 22, 24 and from 60 to 67 with a sizeStep of 4. The surplus workers stayed idle."""
    assert told(22, 20, allowed=(20, 22, 24)).workers == 24
    assert told(64, 60, most=100, step=4).workers == 68


def test_growth_waits_if_the_next_size_that_the_job_may_have_is_too_far() -> None:
    found = told(22, 20, allowed=(20, 22, 30))
    assert found.workers == 20
    assert found.words.endswith("it would go to 30 and not stay there, so it waits")


def test_steps_outside_the_tolerance_are_told_as_they_are() -> None:
    assert told(12, 10) == ToleratedSize(12)
    assert told(3, 2) == ToleratedSize(3)
    assert told(5, 0) == ToleratedSize(5)


@st.composite
def bounds_of_jobs(draw: st.DrawFn) -> Bounds:
    if draw(st.booleans()):
        allowed = tuple(draw(st.lists(st.integers(1, MOST), min_size=1, max_size=40, unique=True)))
        return Bounds(min(allowed), draw(st.integers(min(allowed), MOST)), allowed)
    step = draw(st.integers(1, 40))
    least = step * draw(st.integers(1, MOST // step))
    return Bounds(least, draw(st.integers(least, MOST)), (), step)


@given(bounds=bounds_of_jobs(), data=st.data())
def test_it_acts_or_waits_within_what_the_job_may_have_and_settles(bounds: Bounds, data: st.DataObject) -> None:
    sizes = [size for size in range(bounds.least, bounds.most + 1) if bounds.allows(size)]
    wanted, current = data.draw(st.sampled_from(sizes)), data.draw(st.sampled_from(sizes) | st.integers(1, MOST))
    least, most = data.draw(st.tuples(st.integers(1, bounds.least), st.integers(bounds.least, bounds.most)))

    def told_at(size: int) -> int:
        return answered(wanted, size, bounds=bounds, least=least, most=most, is_exact=False).workers

    found = told_at(current)
    assert found == current or bounds.allows(found)
    assert found in (current, wanted) or least <= found <= most
    assert found == current or passes(current, found), "a number that is not the present one is acted upon"
    assert told_at(found) == found, "the next answer leaves the job where it went"
    between = range(min(wanted, found), max(wanted, found) + 1)
    nearer = [size for size in between if size != found and bounds.allows(size) and passes(current, size)]
    assert found == current or not nearer, "it does not go past a size that would do"
