"""Play one sequence of events on a job, and measure each from the event to the new world's first step on all its members."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.rescaling.agents import Agents, Lost
from benchmarks.rescaling.etcd import Etcd
from benchmarks.rescaling.server import Server
from benchmarks.rescaling.settings import Setting
from elastic_worker.startup.deliver import deliver

SETTLE_S = 2.0
"""Seconds of training before the next event, so that the effects of the last event have ended."""
OURS = ("detect", "notice", "drain", "round")

SCENARIOS = {
    "start": "start 2 of at most 3",
    "crash": "a worker crashes, 2 of 3 there",
    "add": "add a third",
    "sigterm": "SIGTERM to one of 3",
    "sigkill": "SIGKILL of one of 3",
    "host": "SIGKILL of the first of 3, which hosts the store",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One event: seconds until the new world's first step, or None if the job was lost, and the rendezvous' own phases in ms."""

    setting: str
    scenario: str
    seconds: float | None
    phases: dict[str, int] = field(default_factory=dict)
    note: str = ""

    @property
    def rest_ms(self) -> int:
        """Return the time outside the rendezvous: processes, imports, the first step."""
        return round((self.seconds or 0) * 1000) - sum(self.phases.values())

    @property
    def ours_s(self) -> float | None:
        """Return the control plane's own time: detect, notice, drain and round."""
        return sum(self.phases.get(name, 0) for name in OURS) / 1000 if self.phases else None


class Sequence:
    """One job under one setting, from its start to the loss of its first member."""

    def __init__(self, setting: Setting, *, tell: Callable[[Measured], None]) -> None:
        self._setting = setting
        self._tell = tell

    def run(self) -> list[Measured]:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rescale-", ignore_cleanup_errors=True)))
            self._server = self._meeting(folder, stack) if self._setting.is_ours else None
            library = folder / "library"
            deliver(str(library))
            self._agents = Agents(self._setting, folder, server=self._server, library=library)
            stack.callback(self._agents.stop)
            self._found: list[Measured] = []
            try:
                self._all()
            except Lost as lost:
                print(f"{self._setting.name}: {lost}\n{self._agents.tails()}")
            return self._found

    def _meeting(self, folder: Path, stack: ExitStack) -> Server | Etcd:
        return stack.enter_context(Etcd(folder)) if self._setting.is_in_etcd else stack.enter_context(Server(folder))

    def _all(self) -> None:
        agents = self._agents
        agents.expect("worker-0", "worker-1")
        self._measure("start", 2, self._start)
        self._measure("crash", 2, lambda: agents.crash("worker-1"))
        self._measure("add", 3, self._add)
        self._measure("sigterm", 2, lambda: agents.terminate("worker-2"))
        agents.expect("worker-0", "worker-1")
        self._measure("add", 3, self._add)
        self._measure("sigkill", 2, lambda: agents.kill("worker-2"))
        agents.expect("worker-0", "worker-1")
        self._measure("add", 3, self._add)
        self._measure("host", 2, lambda: agents.kill("worker-0"))

    def _start(self) -> None:
        for name in ("worker-0", "worker-1"):
            self._agents.start(name)

    def _add(self) -> None:
        self._agents.start("worker-2")
        self._agents.expect("worker-0", "worker-1", "worker-2")

    def _measure(self, scenario: str, size: int, act: Callable[[], object]) -> None:
        time.sleep(SETTLE_S if self._found else 0)
        began = time.time()
        act()
        if scenario == "crash":
            began = self._agents.time_of("crash", after=began)
        try:
            ended = self._agents.wait_for_world(size, after=began, patience_s=self._setting.patience_s)
        except Lost as lost:
            self._note(Measured(self._setting.name, scenario, None, note=str(lost)))
            raise
        plain = self._agents.starts(after=began, before=ended).count(False)
        note = f"{plain} plain starts" if plain and self._setting.is_warm else ""
        self._note(Measured(self._setting.name, scenario, ended - began, phases=self._phases(), note=note))

    def _phases(self) -> dict[str, int]:
        world = self._server.world() if self._server is not None else None
        return dict(world.rescale.phases) if world is not None and world.rescale is not None else {}

    def _note(self, measured: Measured) -> None:
        self._found.append(measured)
        self._tell(measured)
