"""What every process's main does: it ends when it is told to or when a part ends, and leaves nothing running."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from elastic.runtime.process import Parts, stop_on_signals, write_ready


async def until_cancelled(ended: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append("ended")


async def test_a_process_that_is_told_to_stop_ends_its_parts() -> None:
    ended: list[str] = []
    stop = stop_on_signals()
    async with Parts([until_cancelled(ended), until_cancelled(ended)]) as running:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(10):
            await running.wait_for_end(stop)
        assert ended == []
    assert ended == ["ended", "ended"]


async def test_a_part_that_breaks_breaks_the_process_and_ends_the_others() -> None:
    async def broken() -> None:
        raise ValueError("a part is broken")

    ended: list[str] = []
    with pytest.raises(ValueError, match="a part is broken"):
        async with Parts([until_cancelled(ended), broken()]) as running:
            await running.wait_for_end(asyncio.Event())
    assert ended == ["ended"]


def test_the_ready_file_is_whole_or_not_there(tmp_path: Path) -> None:
    write_ready(tmp_path / "ready")
    assert [path.name for path in tmp_path.iterdir()] == ["ready"]
    assert (tmp_path / "ready").read_text() == "ready\n"
