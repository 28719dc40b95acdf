"""Replay slices of a trace with real processes: a node is a torchrun agent on this machine, and the settings take turns.

At a notice, our server hears who leaves, as the controller tells it; torchrun hears nothing. At the loss, all processes of the node are
killed. The first node is never lost, because torch's store lives there.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.rescaling.agents import Agents, Lost
from benchmarks.rescaling.server import Server
from benchmarks.rescaling.settings import SETTINGS, Setting
from benchmarks.spot.trace import Trace
from elastic_worker.startup.deliver import deliver

SCRIPTS = Path(__file__).parent
LIBRARY = Setting(name="library", words="elastic, in process", colour="#1d3f5e", is_ours=True, is_warm=True, patience_s=60.0)
"""The script uses the library, so its processes go on through each change."""
START_S = 300.0
LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Slice:
    """The result of one slice."""

    setting: str
    goodput: float
    """Node-seconds of steps, each counted once, divided by the available node-seconds."""
    steps: int
    changes: int
    load: float
    """Mean load of the machine at the start, at each change and at the end."""


@dataclass(frozen=True, slots=True, order=True)
class _Event:
    at: float
    what: str
    count: int


def events(trace: Trace, *, notice_s: float, kills: float = 0.0) -> list[_Event]:
    """Return the nodes that come, notices of losses, and losses, in order. kills: the share of losses that come without a notice."""
    found, killed = [], 0.0
    for before, change in itertools.pairwise(trace.changes):
        more = change.nodes - before.nodes
        if more > 0:
            found.append(_Event(change.at, "gain", more))
            continue
        killed += kills
        if killed >= 1.0:
            killed -= 1.0
            found.append(_Event(change.at, "kill", -more))
        else:
            found.append(_Event(max(0.0, change.at - notice_s), "notice", -more))
            found.append(_Event(change.at, "loss", -more))
    return sorted(found)


def play(name: str, trace: Trace, *, most: int, notice_s: float, kills: float = 0.0) -> Slice:
    """Play a slice under one setting, and return what came of it."""
    setting = replace(next(one for one in (*SETTINGS, LIBRARY) if one.name == name), most=most)
    script = SCRIPTS / ("library_training.py" if name == LIBRARY.name else "training.py")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spot-", ignore_cleanup_errors=True)))
        server = stack.enter_context(Server(folder)) if setting.is_ours else None
        library = folder / "library"
        deliver(str(library))
        agents = Agents(setting, folder, server=server, library=library, script=script)
        stack.callback(agents.stop)
        job = _Job(setting, agents, server, most=most, notice_s=notice_s)
        job.start(trace.changes[0].nodes)
        began = _first_step(folder)
        loads = [os.getloadavg()[0]]
        for event in events(trace, notice_s=notice_s, kills=kills):
            time.sleep(max(0.0, began + event.at - time.time()))
            job.take(event)
            loads.append(os.getloadavg()[0])
        time.sleep(max(0.0, began + trace.length_s - time.time()))
        loads.append(os.getloadavg()[0])
        return _of(setting.name, trace, folder / "work", began=began, load=statistics.mean(loads))


class _Job:
    """The nodes that are there, in order of age, and the nodes with a notice."""

    def __init__(self, setting: Setting, agents: Agents, server: Server | None, *, most: int, notice_s: float) -> None:
        self._setting, self._agents, self._server = setting, agents, server
        self._most, self._notice_s = most, notice_s
        self._here: list[str] = []
        self._doomed: list[str] = []
        self._made = 0

    def start(self, count: int) -> None:
        new = [f"worker-{self._made + index}" for index in range(count)]
        self._made += count
        self._here += new
        self._say()
        for name in new:
            self._agents.start(name)

    def take(self, event: _Event) -> None:
        match event.what:
            case "gain":
                self.start(event.count)
            case "notice":
                self._doomed += self._untold()[-event.count :]
                self._say()
            case "loss" | "kill":
                for name in self._lost(event.count) if event.what == "loss" else self._untold()[-event.count :]:
                    self._here.remove(name)
                    self._agents.kill(name)
                self._say()

    def _untold(self) -> list[str]:
        """Return the nodes without a notice, except the first."""
        return [name for name in self._here[1:] if name not in self._doomed]

    def _lost(self, count: int) -> list[str]:
        """Return the nodes that had a notice, then the newest: a node that came after the notice for its loss had none."""
        told, self._doomed = self._doomed[:count], self._doomed[count:]
        untold = [name for name in self._untold() if name not in told]
        return [*told, *untold[max(0, len(untold) - (count - len(told))) :]]

    def _say(self) -> None:
        if self._server is not None:
            staying = tuple(name for name in self._here if name not in self._doomed)
            self._server.expect(staying, leaving=tuple(self._doomed), by_s=self._notice_s, most=self._most)


def _first_step(folder: Path) -> float:
    until = time.time() + START_S
    while time.time() < until:
        if (folder / "work").exists() and (lines := (folder / "work").read_text().splitlines()):
            return float(lines[0].split()[0])
        time.sleep(LOOK_S)
    raise Lost(f"no step within {START_S:g} s")


def _of(name: str, trace: Trace, work: Path, *, began: float, load: float) -> Slice:
    lines = [line.split() for line in work.read_text().splitlines()]
    done = [(float(at), int(step), int(size)) for at, step, size in (words for words in lines if len(words) == 3)]
    inside = [one for one in done if began < one[0] <= began + trace.length_s]
    return Slice(name, _goodput(inside, trace), len({step for _, step, _ in inside}), len(trace.changes) - 1, load)


def _goodput(done: list[tuple[float, int, int]], trace: Trace) -> float:
    """Return the goodput. A step counts as long as it takes if nothing disturbs it."""
    gaps = [after[0] - one[0] for one, after in itertools.pairwise(done) if after[1] == one[1] + 1 and after[2] == one[2]]
    if not gaps:
        return 0.0
    once: dict[int, int] = {}
    for _, step, size in done:
        once.setdefault(step, size)
    return sum(once.values()) * statistics.median(gaps) / trace.node_s
