"""Counts within a window against a plain list of all that happened."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from elastic_training.rendezvous.engine.window import PARTS, Dated, Dates, added, counted, taken_back

WINDOW_S = 320.0
PART_S = WINDOW_S / PARTS
happenings = st.lists(st.tuples(st.sampled_from(["user", "hang"]), st.floats(0, 400), st.integers(1, 3)), max_size=80)


def dates_of(happened: list[tuple[str, float, int]]) -> tuple[Dates, list[tuple[str, float, int]], float]:
    """Return the dates, everything with its time, and the time at the end; each happening comes with the pause before it."""
    dates: Dates = ()
    now, log = 1000.0, []
    for what, pause_s, count in happened:
        now += pause_s
        log.append((what, now, count))
        dates = added(dates, what, count=count, now=now, window_s=WINDOW_S)
    return dates, log, now


@given(happenings, st.floats(0, 500))
def test_events_inside_the_window_count_and_older_ones_do_not(happened: list[tuple[str, float, int]], later_s: float) -> None:
    dates, log, now = dates_of(happened)
    now += later_s
    seen = counted(dates, now=now, window_s=WINDOW_S)
    for what in ("user", "hang"):
        at_most = sum(count for name, at, count in log if name == what and now - at < WINDOW_S)
        at_least = sum(count for name, at, count in log if name == what and now - at < WINDOW_S - PART_S)
        assert at_least <= seen[what] <= at_most


@given(happenings)
def test_memory_is_bounded_however_much_happens(happened: list[tuple[str, float, int]]) -> None:
    dates, _, _ = dates_of(happened)
    assert max(Counter(dated.what for dated in dates).values(), default=0) <= PARTS + 1


@given(happenings, st.lists(st.floats(-1000, 1000), min_size=1, max_size=40))
def test_a_clock_that_is_set_back_and_forth_makes_nothing_endless(happened: list[tuple[str, float, int]], jumps: list[float]) -> None:
    dates, _, now = dates_of(happened)
    for jump in jumps:
        now += jump
        dates = added(dates, "user", count=1, now=now, window_s=WINDOW_S)
    assert len(dates) <= 2 * (PARTS + 1)
    assert counted(dates, now=now, window_s=WINDOW_S)["user"] >= 1
    assert not counted(dates, now=now + 2 * WINDOW_S + 1000 * len(jumps), window_s=WINDOW_S)


def test_the_newest_event_is_taken_back() -> None:
    dates = (Dated("user", 1.0, 2), Dated("hang", 2.0), Dated("user", 50.0))
    assert taken_back(dates, "user") == (Dated("user", 1.0, 2), Dated("hang", 2.0))
    assert taken_back(dates[:1], "user") == (Dated("user", 1.0),)
    assert taken_back(dates, "plan") == dates
