"""The pauses of all that is tried again: after refusals, losses and whole restarts."""

from datetime import UTC, datetime, timedelta

from elastic_training.controller.deciding.pauses import SKEW, next_pause_s, pause_end, start_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_each_pause_is_twice_the_one_before_up_to_the_longest() -> None:
    pauses = [0]
    for _ in range(6):
        pauses.append(next_pause_s(pauses[-1], first_s=2, longest_s=20))
    assert pauses == [0, 2, 4, 8, 16, 20, 20]


def test_a_pause_in_the_status_that_is_too_small_or_too_large_does_not_stay() -> None:
    assert next_pause_s(-5, first_s=2, longest_s=20) == 2
    assert next_pause_s(10**9, first_s=2, longest_s=20) == 20


def test_a_pause_ends_with_its_time() -> None:
    assert pause_end(NOW, 8, now=NOW + timedelta(seconds=7)) == NOW + timedelta(seconds=8)
    assert pause_end(NOW, 8, now=NOW + timedelta(seconds=8)) is None


def test_a_pause_that_began_in_the_future_ends_once_that_is_more_than_the_skew_of_two_clocks() -> None:
    assert pause_end(NOW, 8, now=NOW - SKEW) is not None
    assert pause_end(NOW, 8, now=NOW - SKEW - timedelta(seconds=1)) is None


def test_a_pause_that_began_in_the_future_stays_over_when_that_time_comes() -> None:
    now = NOW - timedelta(seconds=60)
    start = start_of(NOW, 8, now=now)
    assert all(pause_end(start, 8, now=now + timedelta(seconds=later)) is None for later in range(100))
    assert start_of(NOW, 8, now=NOW - SKEW) == NOW
