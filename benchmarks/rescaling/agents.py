"""Run torchrun agents as plain processes on loopback, and read their workers' notes. Each agent stands for one pod."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.rescaling.etcd import Etcd
from benchmarks.rescaling.server import JOB, Server
from benchmarks.rescaling.settings import Setting
from elastic.local.ports import free_port
from elastic_training.rendezvous.c10d import PROGRAM
from elastic_training.rendezvous.delivery import WRAPPER

FOLDER = Path(__file__).parent
LOOK_S = 0.01
STRAY_PREFIXES = ("PET_", "ELASTIC_", "TORCHELASTIC_", "TORCH_", "BENCH_", "PYTHON_EXEC", "OMP_")


class Lost(Exception):
    """The job did not come back."""


class Agents:
    """The agents of one job under one setting. The first one started hosts torch's own store."""

    def __init__(self, setting: Setting, folder: Path, *, server: Server | Etcd | None, library: Path, script: Path | None = None) -> None:
        self._setting = setting
        self._script = script or FOLDER / setting.script
        self._folder = folder
        self._server = server
        self._library = library
        self._port = free_port()
        self._mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._store = self._start_store() if setting.has_store_pod else None

    def expect(self, *names: str) -> None:
        if self._server is not None:
            self._server.expect(names)

    def start(self, name: str) -> None:
        setting = self._setting
        options = setting.command(is_host=not self._processes, port=self._port)
        command = [sys.executable, "-m", "torch.distributed.run", *options, str(self._script), str(self._folder)]
        if setting.is_ours:
            command = ["/bin/sh", "-c", WRAPPER, "elastic", *command]
        with (self._folder / f"{name}.out").open("ab") as log:
            self._processes[name] = subprocess.Popen(command, env=self._environment(name), stdout=log, stderr=log, start_new_session=True)

    def terminate(self, name: str) -> None:
        """Signal the agent's first process, as a kubelet does."""
        self._processes[name].terminate()

    def crash(self, name: str) -> None:
        (self._folder / f"crash-{name}").touch()

    def kill(self, name: str) -> None:
        """Kill all processes of this agent at once, as the loss of a node does."""
        mark = f"BENCH_MARK={self._mark}-{name}".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        os.kill(int(entry.name), signal.SIGKILL)
        self._processes[name].wait()

    def stop(self) -> None:
        for name in self._processes:
            self.kill(name)
        if self._store is not None:
            self._store.kill()
            self._store.wait()

    def wait_for_world(self, size: int, *, after: float, patience_s: float) -> float:
        """Wait until all of a world of this size took their first step after this moment, and return the last one's time."""
        until = time.monotonic() + patience_s
        while True:
            entered = {agent: at for at, what, agent, count in self._log() if what == "first" and count == size and at > after}
            if len(entered) >= size:
                return max(entered.values())
            if all(process.poll() is not None for process in self._processes.values()):
                raise Lost("all agents ended")
            if time.monotonic() > until:
                raise Lost(f"no world of {size} within {patience_s:g} s")
            time.sleep(LOOK_S)

    def time_of(self, what: str, *, after: float, patience_s: float = 10.0) -> float:
        """Wait until a worker wrote this, and return when."""
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            for at, written, _, _ in self._log():
                if written == what and at > after:
                    return at
            time.sleep(LOOK_S)
        raise Lost(f"no worker wrote {what}")

    def starts(self, *, after: float, before: float) -> list[bool]:
        """Return for each worker that began between two moments whether it was warm."""
        return [bool(is_warm) for at, what, _, is_warm in self._log() if what == "script" and after < at < before]

    def tails(self) -> str:
        texts = ((name, (self._folder / f"{name}.out").read_text(errors="replace")[-1500:]) for name in self._processes)
        return "\n".join(f"--- {name}\n{text}" for name, text in texts)

    def _log(self) -> list[tuple[float, str, str, int]]:
        path = self._folder / "steps"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(float(words[0]), words[1], words[2], int(words[3])) for words in lines if len(words) == 4]

    def _start_store(self) -> subprocess.Popen[bytes]:
        """Start the program of the store pod, which is there before any worker comes."""
        environment = os.environ | {"ELASTIC_POD_IP": "127.0.0.1", "ELASTIC_STORE_PORT": str(self._port), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen([sys.executable, "-u", "-c", PROGRAM], env=environment, stdout=subprocess.PIPE)
        assert process.stdout is not None
        if not process.stdout.readline():
            raise Lost("the store did not start")
        return process

    def _environment(self, name: str) -> dict[str, str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(STRAY_PREFIXES)}
        environment |= {"OMP_NUM_THREADS": "1", "BENCH_AGENT": name, "BENCH_MARK": f"{self._mark}-{name}", "LOGLEVEL": "INFO"}
        server = self._server
        if server is not None:
            environment |= server.environment() | {
                "PET_RDZV_ID": JOB,
                "PET_MAX_RESTARTS": "1000000",
                "ELASTIC_MEMBER": name,
                "ELASTIC_POD_UID": f"uid-{name}",
                "ELASTIC_POD_IP": "127.0.0.1",
                "ELASTIC_JOB_UID": JOB,
                "ELASTIC_LIBRARY": str(self._library),
                "ELASTIC_TERMINATION_LOG": os.devnull,
            }
        return environment | dict(self._setting.environment)
