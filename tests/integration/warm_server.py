"""Run a fork server for warm workers, a process that plays torchrun's agent, and workers that start through the server or plainly."""

import json
import os
import select
import shlex
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from process_wait import Wait

import elastic_worker

LAUNCH = Path(elastic_worker.__file__).parent / "warm" / "launch.py"


@dataclass(frozen=True)
class End:
    status: int
    out: str
    error: str


AGENT = """
warm=$("$0" -IS {launch} $$ "$@") && eval "$warm"
printf '%s\\n%s\\n' "$PYTHON_EXEC" "$ELASTIC_WARM" > {told}.new && mv {told}.new {told}
exec "$@"
"""
"""The shell script of the agent, which starts the server as the wrapper around a container's command does."""
TORCHRUN = """
import json, os, sys, time
facts = dict(argv=sys.argv, orig=sys.orig_argv, name=__name__, file=__file__, path=sys.path, cwd=os.getcwd(), environment=dict(os.environ),
             main=sys.modules['__main__'].__dict__ is globals(), parent=os.getppid(), title=open('/proc/self/cmdline').read())
with open('facts.new', 'w') as file:
    json.dump(facts, file)
os.rename('facts.new', 'facts.json')
time.sleep(600)
"""
"""A stand-in for torchrun, which would want to train. It tells what it finds, and stays."""


class Worker(subprocess.Popen[str]):
    """A worker or its stub, with its server's temporary folder."""

    folder: Path


class Warm:
    """A fork server, and a process that plays the agent. If that process is torchrun itself, it shares the server's interpreter."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str], *, is_torchrun: bool = False, preexec_fn: Callable[[], None] | None = None
    ) -> None:
        self.folder = folder
        clean = {name: value for name, value in os.environ.items() if name not in ("PYTHON_EXEC", "ELASTIC_WARM", "ELASTIC_WARM_START")}
        self.environment = clean | {"TMPDIR": str(folder), "OMP_NUM_THREADS": "1"} | environment
        told = folder / "told"
        script = AGENT.format(launch=shlex.quote(str(LAUNCH)), told=shlex.quote(str(told)))
        command = [str(self._torchrun()), "a b", "--flag"] if is_torchrun else ["/bin/sleep", "600"]
        self.agent = subprocess.Popen(
            ["/bin/sh", "-c", script, sys.executable, *command], env=self.environment, cwd=folder, preexec_fn=preexec_fn
        )
        self.until(told.exists, "the launcher has run")
        exported = zip(("PYTHON_EXEC", "ELASTIC_WARM"), told.read_text().splitlines(), strict=True)
        self.exported = {name: value for name, value in exported if value}
        self.python = self.exported.get("PYTHON_EXEC", sys.executable)
        server = Path(self.exported.get("ELASTIC_WARM", "/nowhere"))
        self.until(lambda: (server / "socket").exists() or not server.exists(), "the server listens, or there is none")

    def facts(self) -> dict[str, object]:
        """Return what the played torchrun found."""
        path = self.folder / "facts.json"
        self.until(path.exists, "torchrun runs")
        found: dict[str, object] = json.loads(path.read_text())
        path.unlink()
        return found

    def _torchrun(self) -> Path:
        path = self.folder / "bin" / "torchrun"
        path.parent.mkdir()
        path.write_text(f"#!{sys.executable}\n{TORCHRUN}")
        path.chmod(0o755)
        return path

    def start(self, *command: str, cwd: Path | None = None, **options: object) -> Worker:
        extra = options.pop("environment", {})
        assert isinstance(extra, dict)
        environment = self.environment | self.exported | {"RANK": "1"} | extra
        return self._start(self.python, command, cwd or self.folder, environment, options)

    def start_plainly(self, *command: str, cwd: Path | None = None, **options: object) -> Worker:
        extra = options.pop("environment", {})
        assert isinstance(extra, dict)
        return self._start(sys.executable, command, cwd or self.folder, self.environment | {"RANK": "1"} | extra, options)

    def _start(self, python: str, command: tuple[str, ...], cwd: Path, environment: dict[str, str], options: dict[str, object]) -> Worker:
        pipes: dict[str, object] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        worker = Worker([python, "-u", *command], cwd=cwd, env=environment, start_new_session=True, **(pipes | options))  # type: ignore[call-overload]
        worker.folder = self.folder
        return worker  # type: ignore[no-any-return]

    def until(self, holds: Callable[[], bool], what: str) -> None:
        wait = Wait(self.folder, what)
        while not holds():
            wait.check()
            time.sleep(0.02)

    def server(self) -> int:
        """Return the pid of the fork server, or 0."""
        title = f"elastic_worker: fork server of {self.agent.pid}"
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if title == (entry / "cmdline").read_text().rstrip("\0"):
                        return int(entry.name)
                except OSError:
                    continue
        return 0

    def stop(self) -> None:
        self.agent.kill()
        self.agent.wait()


def line_of(worker: Worker) -> str:
    """Return the next line on the worker's standard output."""
    assert worker.stdout is not None
    line, wait = b"", Wait(worker.folder, "the worker prints a line")
    while not line.endswith(b"\n"):
        if select.select([worker.stdout], [], [], 0.2)[0]:
            letter = os.read(worker.stdout.fileno(), 1)  # one byte only, because `communicate` reads on
            assert letter, f"its output ends after {line!r}"
            line += letter
        else:
            wait.check()
    return line.decode()


def end_of(worker: Worker, say: str = "") -> End:
    wait = Wait(worker.folder, "the worker ends")
    given: str | None = say
    while True:
        try:
            out, error = worker.communicate(given, timeout=0.5)
            return End(worker.returncode, out, error)
        except subprocess.TimeoutExpired:
            given = None
            wait.check()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return name
