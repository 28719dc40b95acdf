"""Numbers of things in sentences."""

import pytest

from elastic.api.counting import counted


@pytest.mark.parametrize(("number", "words"), [(0, "0 workers are"), (1, "1 worker is"), (2, "2 workers are")])
def test_one_thing_is_singular_and_so_is_its_verb(number: int, words: str) -> None:
    assert counted(number, "worker", "is", "are") == words
    assert counted(number, "worker") == words.rpartition(" ")[0]
