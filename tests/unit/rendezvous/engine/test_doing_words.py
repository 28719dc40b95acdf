"""The words about what ranks do while no step comes read as one sentence."""

import pytest

from elastic_training.rendezvous.engine.doing_words import said
from elastic_training.rendezvous.engine.messages.doing import Doing, DoingKind, RanksDoing, Span


@pytest.mark.parametrize(
    ("is_still", "words"),
    [
        (False, "rank 0 waits for its DataLoader at train.py:36, `for batch in data:`; its loader process 23 sleeps at data.py:27"),
        (
            True,
            "rank 0 has been at train.py:36, `for batch in data:`, for at least 31 s: "
            "it waits for its DataLoader; its loader process 23 sleeps at data.py:27",
        ),
    ],
)
def test_the_place_of_a_rank_is_told_before_that_of_its_loader_process(is_still: bool, words: str) -> None:
    """Two places stood in a row: "sleeps at data.py:27 at train.py:36"."""
    doing = Doing(
        kind=DoingKind.OTHER,
        does="waits for its DataLoader; its loader process 23 sleeps at data.py:27",
        place="train.py:36",
        code="for batch in data:",
        for_s=31.0,
        looks=9 if is_still else 1,
    )
    assert said([RanksDoing(spans=(Span(0, 0),), count=1, members=(), doing=doing)]) == words
