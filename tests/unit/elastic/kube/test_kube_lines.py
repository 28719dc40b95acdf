"""Lines of a log do not depend on the pieces in which it comes, and none is kept whole that does not end."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.kube import lines as module
from elastic.kube.lines import LONGEST, Lines, Text

USUAL = st.text(alphabet="ab\n", max_size=60).map(str.encode)
LOGS = st.text(alphabet="ab\r\n", max_size=60).map(str.encode)


def told(*pieces: bytes) -> list[Text]:
    lines = Lines()
    return [line for piece in pieces for line in lines.of(piece)] + list(lines.last())


@given(log=LOGS, cuts=st.lists(st.integers(0, 60), max_size=8))
def test_the_same_log_gives_the_same_lines_in_any_pieces(log: bytes, cuts: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LONGEST", 4)
        places = [0, *sorted(min(cut, len(log)) for cut in cuts), len(log)]
        assert told(*(log[at:to] for at, to in itertools.pairwise(places))) == told(log)


@given(log=USUAL)
def test_a_log_of_usual_lines_is_told_as_it_is(log: bytes) -> None:
    assert told(log) == [Text(line) for line in log.decode().removesuffix("\n").split("\n")] if log else told(log) == []


def test_a_progress_bar_is_a_line_each_time_and_only_its_last_one_stays() -> None:
    """It came as one line of sixty bars, once all was done."""
    assert told(b"\rstep 1", b"\rstep 2", b"\rstep 3\n") == [Text("step 1", True), Text("step 2", True), Text("step 3")]
    assert told(b"step 1\r", b"step 2\r") == [Text("step 1", True), Text("step 2")], "nothing is written over what stands last"


def test_a_carriage_return_before_the_end_of_a_line_is_part_of_that_end() -> None:
    assert told(b"one\r", b"\ntwo\r\r\n\r\n") == [Text("one"), Text("two"), Text("")]


def test_a_line_that_does_not_end_is_told_in_parts_while_it_comes() -> None:
    """It was kept whole, and copied with each piece: 64 MB of it took half a minute, and a day of it all memory."""
    lines = Lines()
    parts = [part for _ in range(64) for part in lines.of(b"x" * 65536)]
    assert {len(part.text) for part in parts} == {LONGEST}
    assert sum(len(part.text) for part in [*parts, *lines.last()]) == 64 * 65536
