"""Kill a worker under stock torchrun or NVRx, and measure until every rank has made its first step again.

Stock torchrun starts all processes again, with the world's former size. NVRx goes on with one process fewer, and it must not lose rank 0,
which hosts its store.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elastic.local.ports import free_port

SCRIPT = Path(__file__).parent / "peer_training.py"
PATIENCE_S = 180.0
LOOK_S = 0.005
STEADY_S = 1.0
"""Seconds of training before the kill, so that it meets ordinary steps."""
HOW = {
    "nvrx": "NVRx is not measured: pass --nvrx PYTHON, the interpreter of a venv in which `pip install nvidia-resiliency-ext` was done",
    "torchft": "torchft is not measured: its replica groups are whole torchrun jobs, so a world of single processes has no counterpart",
}
"""Why a peer has no row."""


class Lost(Exception):
    """The peer did not come back in time."""


@dataclass(frozen=True)
class First:
    """A process's first step of a world."""

    at: float
    pid: int
    size: int


class Peer:
    """The processes of a peer."""

    def __init__(self, folder: Path, size: int, processes: list[subprocess.Popen[bytes]]) -> None:
        self._folder = folder
        self._processes = processes
        self.size = size

    def wait(self, size: int, *, after: float = 0.0) -> list[First]:
        """Return the first steps of all ranks of a world of this size which began after this time."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            firsts = {one.pid: one for one in self._firsts() if one.at > after and one.size == size}
            if len(firsts) >= size:
                return sorted(firsts.values(), key=lambda one: one.at)
            if all(process.poll() is not None for process in self._processes):
                break
            time.sleep(LOOK_S)
        raise Lost(f"no world of {size} came within {PATIENCE_S:g} s\n{self._errors()}")

    @property
    def last(self) -> int:
        """Return the process that was started last: never rank 0."""
        return self._processes[-1].pid if len(self._processes) > 1 else max(one.pid for one in self._firsts())

    def _firsts(self) -> list[First]:
        path = self._folder / "first"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [First(float(words[0]), int(words[1]), int(words[2])) for words in lines if len(words) == 3]

    def _errors(self) -> str:
        return (self._folder / "errors").read_text(errors="replace")[-2000:]


def kill(kind: str, folder: Path, size: int, *, step_ms: float, python: str = sys.executable) -> float:
    """Return the milliseconds from the kill of a worker until every rank has made its first step again."""
    with _started(kind, folder, size, step_ms, python) as peer:
        peer.wait(size)
        victim = peer.last
        time.sleep(STEADY_S)
        began = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        firsts = peer.wait(size if kind == "stock" else size - 1, after=began)
        return 1000 * (firsts[-1].at - began)


@contextlib.contextmanager
def _started(kind: str, folder: Path, size: int, step_ms: float, python: str) -> Iterator[Peer]:
    folder.mkdir()
    arguments = [str(SCRIPT), kind, str(folder), f"{step_ms:g}"]
    stray = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHONPATH")
    environment = {**{name: value for name, value in os.environ.items() if name not in stray}, "OMP_NUM_THREADS": "1"}
    processes: list[subprocess.Popen[bytes]] = []
    with (folder / "errors").open("ab") as log:
        if kind == "stock":
            options = ["--standalone", f"--nproc-per-node={size}", "--max-restarts=100", "--monitor-interval=0.1"]
            commands = [([python, "-m", "torch.distributed.run", *options, *arguments], environment)]
        else:
            meeting = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
            commands = [([python, *arguments], {**environment, **meeting, "RANK": str(rank)}) for rank in range(size)]
        try:
            for command, own in commands:
                processes.append(subprocess.Popen(command, env=own, stdout=log, stderr=log, start_new_session=True))
            yield Peer(folder, size, processes)
        finally:
            (folder / "stop").touch()
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM if kind == "stock" else signal.SIGKILL)
            for process in processes:
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
