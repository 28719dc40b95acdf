"""Read logs as kubectl asks for them: the last lines, some bytes, since a time, with the time of each line, and followed."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.local.agent.logs import Wanted, read, shown, start_of_line
from elastic.local.agent.logtimes import ENTRY, LogClock, Times, beside


async def text_of(path: Path, wanted: Wanted) -> bytes:
    """Return the log of a container that has ended."""
    return b"".join([chunk async for chunk in read(path, wanted, running=lambda: False)])


def written(path: Path, *parts: tuple[float, bytes]) -> Path:
    """Write a log whose parts have these times."""
    path.write_bytes(b"".join(part for _, part in parts))
    ends, end = [], 0
    for at, part in parts:
        end += len(part)
        ends.append(ENTRY.pack(end, at))
    beside(path).write_bytes(b"".join(ends))
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return written(tmp_path / "0.log", (10.0, b"one\ntwo\nth"), (20.5, b"ree\n"), (30.0, b"four\nfive"))


def test_since_gives_the_lines_that_were_finished_later(log: Path) -> None:
    unfinished = b"five"
    for since, expected in ((0, b"one\ntwo\nthree\nfour\nfive"), (15, b"three\nfour\nfive"), (25, b"four\nfive"), (31, unfinished)):
        assert asyncio.run(text_of(log, Wanted(since=since))) == expected


def test_since_and_tail_hold_together(log: Path) -> None:
    assert asyncio.run(text_of(log, Wanted(since=15, tail_lines=1))) == b"five"
    assert asyncio.run(text_of(log, Wanted(since=25, tail_lines=4))) == b"four\nfive"


def test_each_line_carries_the_time_at_which_it_was_finished(log: Path) -> None:
    expected = [b"1970-01-01T00:00:10.000000000Z one", b"1970-01-01T00:00:10.000000000Z two", b"1970-01-01T00:00:20.500000000Z three"]
    assert asyncio.run(text_of(log, Wanted(timestamps=True))).splitlines()[:3] == expected
    assert asyncio.run(text_of(log, Wanted(timestamps=True, limit_bytes=34))) == expected[0]


def test_a_log_without_times_counts_as_written_now(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(b"a\n")
    assert asyncio.run(text_of(path, Wanted(since=1e9))) == b"a\n"
    assert asyncio.run(text_of(path, Wanted(timestamps=True))) > b"2026"


@given(st.binary(max_size=200).map(lambda b: b.replace(b"a", b"\n")), st.integers(0, 200))
def test_a_line_begins_after_the_newline_before_it(text: bytes, offset: int) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(text)
        file.flush()
        offset = min(offset, len(text))
        assert start_of_line(file.fileno(), offset) == text.rfind(b"\n", 0, offset) + 1


def test_times_are_noted_while_a_log_grows_and_gone_on_with_by_the_next_process(tmp_path: Path) -> None:
    path, now = tmp_path / "0.log", [100.0]

    async def grown(text: bytes) -> None:
        clock = LogClock(lambda: now[0])
        clock.follow(path)
        with path.open("ab") as file:
            file.write(text)
        async with asyncio.timeout(60):
            while True:
                if Times(path).ends[-1:] == [path.stat().st_size]:
                    break
                await asyncio.sleep(0.005)
        clock.forget(path)
        clock.close()

    asyncio.run(grown(b"one\n"))
    with beside(path).open("ab") as file:
        file.write(b"torn")
    now[0] = 200.0
    asyncio.run(grown(b"two\n"))
    times = Times(path)
    assert (times.of(0, now=0), times.of(4, now=0), times.of(8, now=7.0)) == (100.0, 200.0, 7.0)
    assert asyncio.run(text_of(path, Wanted(since=150))) == b"two\n"


def test_a_followed_line_is_told_once_it_is_whole(tmp_path: Path) -> None:
    path = written(tmp_path / "0.log", (1.0, b"begun"))

    looks = 0

    def running() -> bool:
        nonlocal looks
        looks += 1
        if looks == 3:
            written(path, (1.0, b"begun"), (2.0, b" and ended\nmore"))
        return looks < 4

    async def followed() -> list[bytes]:
        return [chunk async for chunk in read(path, Wanted(follow=True, timestamps=True), running=running)]

    assert asyncio.run(followed()) == [shown(2.0) + b"begun and ended\n", shown(2.0) + b"more"]
