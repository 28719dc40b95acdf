"""SIGTERM and Ctrl-C end a command in order, wherever it just is."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from elastic.cli import main
from elastic.cli.interrupts import Left, cancelled_by_sigterm, until_interrupted

up = importlib.import_module("elastic.cli.up")


def test_sigterm_cancels_the_run_and_not_what_the_loop_just_does() -> None:
    """A KeyboardInterrupt out of a callback ended the loop, and the job that the run had made was left behind."""
    done: list[str] = []

    def callback() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        done.append("the callback was left alone")

    async def run() -> None:
        with cancelled_by_sigterm():
            asyncio.get_running_loop().call_soon(callback)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(0)
                done.append("deleted")
                raise

    former = signal.getsignal(signal.SIGTERM)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert done == ["the callback was left alone", "deleted"]
    assert signal.getsignal(signal.SIGTERM) is former


def test_ctrl_c_stops_the_cluster_as_soon_as_it_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """While `elastic up` told how to use it, Ctrl-C ended the command with 130, and the cluster only some seconds later."""
    stopped = []

    class Cluster:
        data_dir = tmp_path

        def start(self, **options: object) -> None: ...

        def stop(self) -> None:
            stopped.append(True)

    def interrupted(cluster: object, data_dir: Path) -> None:
        raise KeyboardInterrupt

    former = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(up, "LocalCluster", lambda **options: Cluster())
    monkeypatch.setattr(up, "_tell_how_to_use", interrupted)
    try:
        said = CliRunner().invoke(main, ["up", "--data-dir", str(tmp_path)])
    finally:
        signal.signal(signal.SIGTERM, former)
    assert (said.exit_code, said.stdout, stopped) == (0, "stopping\n", [True])


class Terminal:
    """Standard input of a user who types `line` once asked; None types nothing, and "" ends the input."""

    def __init__(self, line: str | None) -> None:
        self._line = line
        self.closed = threading.Event()

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        if self._line is None:
            self.closed.wait()
            return ""
        return self._line


async def interrupted(
    monkeypatch: pytest.MonkeyPatch, *, asks: bool, typed: str | None = None, then: Callable[[], None] = lambda: None
) -> tuple[str, list[str]]:
    """Press Ctrl-C while a job runs, do something once the command has asked, and return what became of the job."""
    terminal, said = Terminal(typed), []
    monkeypatch.setattr(sys, "stdin", terminal)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)

    def say(words: str) -> None:
        said.append(words)
        asyncio.get_running_loop().call_soon(then)

    ended = asyncio.Event()
    ENDINGS.append(ended.set)

    async def work() -> str:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
        await ended.wait()
        return "ended"

    try:
        async with asyncio.timeout(20):
            return await until_interrupted(work(), asks=asks, say=say), said
    except Left:
        return "left", said
    except asyncio.CancelledError:
        return "deleted", said
    finally:
        terminal.closed.set()
        ENDINGS.clear()


ENDINGS: list[Callable[[], None]] = []
"""Ends the job of the test that runs."""


def send(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


async def test_ctrl_c_leaves_the_job_and_asks_nothing_if_the_cluster_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C once more deleted a job that had trained for hours."""
    assert await interrupted(monkeypatch, asks=False) == ("left", [])


@pytest.mark.parametrize(
    ("typed", "then", "became"),
    [
        pytest.param("d\n", None, "deleted", id="d"),
        pytest.param("\n", None, "left", id="Enter"),
        pytest.param("yes\n", None, "left", id="another word"),
        pytest.param("", None, "left", id="end of input"),
        pytest.param(None, send(signal.SIGINT), "left", id="Ctrl-C again"),
        pytest.param(None, send(signal.SIGTERM), "deleted", id="SIGTERM"),
        pytest.param(None, lambda: ENDINGS[0](), "ended", id="the job ends"),
    ],
)
async def test_only_d_deletes_if_the_cluster_ends_with_the_command(
    monkeypatch: pytest.MonkeyPatch, typed: str | None, then: Callable[[], None] | None, became: str
) -> None:
    what, said = await interrupted(monkeypatch, asks=True, typed=typed, then=then or (lambda: None))
    assert what == became
    assert said == ["interrupted: d and Enter deletes the job and stops the cluster; Enter, or Ctrl-C again, leaves both running"]


async def test_between_the_question_and_its_answer_nothing_else_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    @contextmanager
    def held() -> Iterator[None]:
        said.append("held")
        yield
        said.append("let go")

    monkeypatch.setattr(sys, "stdin", Terminal("\n"))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
    with pytest.raises(Left):
        await until_interrupted(asyncio.sleep(20), asks=True, say=lambda words: said.append(words.partition(":")[0]), held=held)
    assert said == ["interrupted", "held", "let go"]


async def test_a_termination_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("\n"))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
    said: list[str] = []
    with pytest.raises(asyncio.CancelledError):
        await until_interrupted(asyncio.sleep(20), asks=True, say=said.append)
    assert said == []


async def test_elsewhere_nothing_is_asked() -> None:
    assert not sys.stdin.isatty()
    assert await until_interrupted(asyncio.sleep(0, "done"), asks=True, say=pytest.fail) == "done"
