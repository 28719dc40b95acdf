"""Check that every process's main ends when it is told to or when a part ends, and leaves nothing running."""

import asyncio
import logging
import os
import signal
from pathlib import Path

import pytest

from elastic.runtime import process
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


class Listing:
    """A cluster whose two resources can be listed only after two waits."""

    def __init__(self) -> None:
        self.waits = 0

    def lacking(self) -> list[str]:
        return ["jobs", "pods"]

    async def wait_synced(self) -> None:
        self.waits += 1
        if self.waits < 3:
            await asyncio.Event().wait()


async def test_a_resource_that_cannot_be_listed_is_named_until_it_can(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process, "BLIND_S", 0.01)
    async with asyncio.timeout(10):
        await process.wait_listed(Listing(), logging.getLogger("test"), remedy="install them")
    assert [record.getMessage() for record in caplog.records] == ["some resources cannot be listed: install them; grant list and watch"] * 2
    assert vars(caplog.records[0])["lacking"] == ["jobs", "pods"]
