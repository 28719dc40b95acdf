"""A fork server for warm workers beside a process that stands for torchrun's agent, and workers started through it or plainly."""

import os
import shlex
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import elastic_worker

LAUNCH = Path(elastic_worker.__file__).parent / "warm" / "launch.py"
PATIENCE_S = 90.0


@dataclass(frozen=True)
class End:
    status: int
    out: str
    error: str


class Warm:
    """A fork server beside a process that stands for torchrun's agent."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.agent = subprocess.Popen(["/bin/sleep", "600"])
        clean = {name: value for name, value in os.environ.items() if name not in ("PYTHON_EXEC", "ELASTIC_WARM", "ELASTIC_WARM_START")}
        self.environment = clean | {"TMPDIR": str(folder), "OMP_NUM_THREADS": "1"} | environment
        command = [sys.executable, "-IS", str(LAUNCH), str(self.agent.pid), "torchrun"]
        printed = subprocess.run(command, env=self.environment, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout
        self.exported = dict(word.split("=", 1) for word in shlex.split(printed)[1:])
        self.python = self.exported.get("PYTHON_EXEC", sys.executable)

    def start(self, *command: str, cwd: Path | None = None, **options: object) -> "subprocess.Popen[str]":
        extra = options.pop("environment", {})
        assert isinstance(extra, dict)
        environment = self.environment | self.exported | {"RANK": "1"} | extra
        return self._start(self.python, command, cwd or self.folder, environment, options)

    def start_plainly(self, *command: str, cwd: Path | None = None, **options: object) -> "subprocess.Popen[str]":
        extra = options.pop("environment", {})
        assert isinstance(extra, dict)
        return self._start(sys.executable, command, cwd or self.folder, self.environment | {"RANK": "1"} | extra, options)

    @staticmethod
    def _start(
        python: str, command: tuple[str, ...], cwd: Path, environment: dict[str, str], options: dict[str, object]
    ) -> "subprocess.Popen[str]":
        pipes: dict[str, object] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([python, "-u", *command], cwd=cwd, env=environment, start_new_session=True, **(pipes | options))  # type: ignore[call-overload,no-any-return]

    def server(self) -> int:
        """The pid of the fork server."""
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


def end_of(process: "subprocess.Popen[str]", say: str = "") -> End:
    out, error = process.communicate(say, timeout=PATIENCE_S)
    return End(process.returncode, out, error)


def until(holds: Callable[[], bool], what: str) -> None:
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < PATIENCE_S, what
        time.sleep(0.02)


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
