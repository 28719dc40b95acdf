"""Check the words about a process of the laptop cluster that does not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic.local.children import Child, ChildFailed
from elastic.local.files import MOST_QUOTED, last_line


async def test_a_process_that_ends_at_once_is_quoted(tmp_path: Path) -> None:
    """The error named a log in a temporary folder, which was gone when the user read of it."""
    child = Child(name="holder", module="platform_that_does_not_exist", arguments=(), log=tmp_path / "holder.log", is_ready=lambda: False)
    with pytest.raises(ChildFailed) as failed:
        await child.start()
    said = "No module named platform_that_does_not_exist"
    assert "holder ended with status 1 before it was ready: " in str(failed.value)
    assert f"{said}; see {tmp_path}/holder.log" in str(failed.value)


@pytest.mark.parametrize(
    ("text", "line"), [("", ""), ("one\ntwo\n\n", "two"), ("no end", "no end"), ("x" * 9000, "x" * MOST_QUOTED), ("\xff\n", "\xff")]
)
def test_the_last_line_of_a_log(tmp_path: Path, text: str, line: str) -> None:
    (tmp_path / "log").write_text(text)
    assert last_line(tmp_path / "log") == line


def test_a_line_of_an_earlier_start_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\nafter\n")
    assert (last_line(tmp_path / "log", since=7), last_line(tmp_path / "log", since=13)) == ("after", "")


def test_a_log_that_is_not_there_has_no_line(tmp_path: Path) -> None:
    assert last_line(tmp_path / "log") == ""
