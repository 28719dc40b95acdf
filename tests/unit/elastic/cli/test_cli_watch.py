"""Check what `elastic top --watch` draws, which errors it survives, and how it leaves the terminal."""

from __future__ import annotations

import asyncio
import functools
import io
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click
import pytest
from cli_api import Api, elastic, job, pod, running, served

from elastic.cli import screen
from elastic.cli.jobs import watching
from elastic.cli.jobs.found import NotFound
from elastic.kube.errors import KubeError

PATIENCE_S = 120.0
Read = Callable[[Any, str], Awaitable[str]]


class Cluster:
    def ask(self, act: Read) -> str:
        return asyncio.run(act(None, "default"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    found = Terminal()
    monkeypatch.setattr(screen, "opened", functools.partial(screen.opened, found))
    monkeypatch.setattr(watching, "EVERY_S", 0)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "6")
    return found


def reading(*moments: str | BaseException) -> Read:
    """Return a function that reads these texts, or raises these errors, in turn. At last the user presses Ctrl-C."""
    left = [*moments, KeyboardInterrupt()]

    async def read(kube: Any, namespace: str) -> str:
        found = left.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found

    return read


def pictures(terminal: Terminal) -> list[list[str]]:
    """Return the lines of each picture below its headline."""
    drawn = terminal.getvalue().removeprefix(screen.ENTER).removesuffix(screen.LEAVE).split(screen.HOME)[1:]
    lines = [one.removesuffix(screen.REST_OF_SCREEN).split("\n") for one in drawn]
    return [[line.removeprefix(screen.LINE) for line in one][1:] for one in lines]


def test_it_draws_on_a_screen_of_its_own_and_leaves_none_of_it(terminal: Terminal) -> None:
    watching.watch(Cluster(), reading("one", "two"))  # type: ignore[arg-type]
    assert terminal.getvalue().startswith(screen.ENTER)
    assert terminal.getvalue().endswith(screen.LEAVE)
    assert pictures(terminal) == [["", "one"], ["", "two"]]


def test_lines_that_do_not_fit_are_cut_and_counted(terminal: Terminal) -> None:
    watching.watch(Cluster(), reading("\n".join(["x" * 100, *map(str, range(9))])))  # type: ignore[arg-type]
    assert pictures(terminal) == [["", "x" * 59, "0", "1", "... and 7 more lines"]]


def test_a_server_that_is_away_ends_nothing(terminal: Terminal) -> None:
    away = KubeError(code=0, reason="Unreachable", message="https://a: refused")
    watching.watch(Cluster(), reading("one", away, TimeoutError(), "two"))  # type: ignore[arg-type]
    first, second, third, last = pictures(terminal)
    assert second[0].startswith("the API server cannot be reached: https://a: refused")
    assert third[0].startswith("no answer in time")
    assert (first[-1], second[-1], third[-1], last) == ("one", "one", "one", ["", "two"])


@pytest.mark.parametrize(
    "error",
    [
        NotFound("there is no job train"),
        KubeError(code=403, reason="Forbidden", message="no"),
        click.UsageError("a"),
        RuntimeError("defect"),
    ],
)
def test_a_lasting_error_ends_it_and_the_terminal_is_clean(terminal: Terminal, error: Exception) -> None:
    with pytest.raises(type(error)):
        watching.watch(Cluster(), reading("one", error))  # type: ignore[arg-type]
    assert terminal.getvalue().endswith(screen.LEAVE)


def test_an_error_at_the_first_read_draws_nothing(terminal: Terminal) -> None:
    with pytest.raises(KubeError):
        watching.watch(Cluster(), reading(KubeError(code=0, reason="Unreachable", message="a")))  # type: ignore[arg-type]
    assert terminal.getvalue() == ""


def test_elsewhere_than_on_a_terminal_it_says_so(tmp_path: Path) -> None:
    with served(Api(job(status=running()), pod(0)), tmp_path) as kubeconfig:
        for words in (("--watch",), ("--watch", "-o", "json")):
            said = elastic(kubeconfig, "top", *words)
            assert (said.exit_code, "--watch draws on a terminal" in said.stderr) == (2, True)
            assert elastic(kubeconfig, "get", *words).exit_code == 2
        assert elastic(kubeconfig, "top").stdout.splitlines()[1].split()[:2] == ["JOB", "POD"]


def read_until(terminal: int, words: bytes, seen: bytes = b"") -> bytes:
    end = time.monotonic() + PATIENCE_S
    while words not in seen:
        assert time.monotonic() < end, seen
        seen += os.read(terminal, 65536)
    return seen


def test_ctrl_z_gives_the_shell_its_screen_back_and_fg_draws_again() -> None:
    """The process stops itself. Its parent is in the same session, as a shell is; it sees the stop and lets the process go on."""
    ours, theirs = pty.openpty()
    program = """
import asyncio
from elastic.cli.jobs import watching
async def read(kube, namespace): return "the picture"
class Cluster:
    def ask(self, act): return asyncio.run(act(None, "default"))
watching.EVERY_S = 3600
watching.watch(Cluster(), read)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdin=theirs, stdout=theirs, stderr=theirs, process_group=0)
    os.close(theirs)
    try:
        read_until(ours, b"the picture")
        process.send_signal(signal.SIGTSTP)
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        assert read_until(ours, screen.LEAVE.encode()).endswith(screen.LEAVE.encode())
        process.send_signal(signal.SIGCONT)
        again = read_until(ours, b"the picture")
        assert again.startswith(screen.ENTER.encode())
        process.send_signal(signal.SIGTERM)
        read_until(ours, screen.LEAVE.encode())
        assert process.wait(PATIENCE_S) == 143
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.integration
@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("signal_number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_on_a_terminal_it_is_drawn_again_and_leaves_the_terminal_as_it_was(tmp_path: Path, signal_number: int, code: int) -> None:
    with served(Api(job(status=running()), pod(0)), tmp_path) as kubeconfig:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "elastic.cli", "top", "--watch", "--kubeconfig", str(kubeconfig)]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
        heard = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it, and so would the child
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True)
        signal.signal(signal.SIGINT, heard)
        os.close(theirs)
        try:
            seen = read_until(ours, screen.ENTER.encode())
            for _ in range(2):
                seen = read_until(ours, b"train-worker-0", seen.rpartition(b"train-worker-0")[2])
            process.send_signal(signal_number)
            rest = read_until(ours, screen.LEAVE.encode(), seen)
            assert process.wait(PATIENCE_S) == code
            assert rest.rpartition(screen.LEAVE.encode())[2].strip() == b""
        finally:
            process.kill()
            process.wait()
            os.close(ours)
