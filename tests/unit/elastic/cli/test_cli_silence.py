"""Check when a waiting command says what it waits for."""

from itertools import pairwise

from elastic.cli.jobs.following import LOOK_EVERY_S
from elastic.cli.silence import AT_MOST_S, QUIET_S, Silence


def moments(words: list[str]) -> list[float]:
    """Return the times at which these words are said. There is one for each half second."""
    silence = Silence(now=0.0)
    return [number / 2 for number, found in enumerate(words) if silence.is_to_say(found, number / 2)]


def test_the_first_words_come_within_seconds_and_later_ones_at_growing_distances() -> None:
    said = moments(["room"] * 400)
    assert said[:4] == [QUIET_S, 2 * QUIET_S, 4 * QUIET_S, 8 * QUIET_S]
    assert max(after - before for before, after in pairwise(said)) == AT_MOST_S


def test_other_words_are_said_at_once_and_none_are_never() -> None:
    assert moments(["room"] * 10 + ["an image"] * 2 + [""] * 50) == [QUIET_S, 5.0]


def test_after_something_else_was_said_it_is_quiet_for_a_while() -> None:
    silence = Silence(now=0.0)
    silence.hear(4.0)
    assert not silence.is_to_say("room", 5.0)
    assert silence.is_to_say("room", 4.0 + QUIET_S)


def test_a_silent_wait_is_told_within_five_seconds() -> None:
    """Even a command that looks for the reason only each second tells it in time."""
    assert QUIET_S + LOOK_EVERY_S < 5.0
