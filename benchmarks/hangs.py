"""Provoke hangs and work that takes long, and say whether the control plane tells them apart.

Each run is a job of its own: torchrun agents with warm workers, and a rendezvous server, all on this machine. A hang is right if it is
suspected and the right rank is named with what it does. Work that takes long is right if it is never suspected until it has ended.

    python -m benchmarks.hangs                                 each hang five times, each kind of long work twenty times
    python -m benchmarks.hangs --ways sleep loop --runs 1      only these
    python -m benchmarks.hangs --at-once 3 --seconds 75        so many jobs at once; work that takes so long

`suspected` is the time from the beginning of the standstill until the server suspects a hang.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from elastic.membership.wire import Budget, Expectation, WorldReport
from elastic_training.rendezvous.engine.doing_words import sentence
from elastic_training.rendezvous.engine.messages.doing import DoingKind, HangState

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "integration")]

from torch_agents import Agents, Server, serving  # noqa: E402

SCRIPT = ROOT / "tests/fixtures/hangs/train.py"
BACKWARD = "wait in backward for the gradients of other ranks"
HANGS = {
    "sleep": (DoingKind.OTHER, "sleeps", "time.sleep(LONG_S)"),
    "loop": (DoingKind.OTHER, "computes", "re.match("),
    "loader": (DoingKind.OTHER, "waits for its DataLoader; its loader process", "DataLoader("),
    "read": (DoingKind.OTHER, "waits to read", "os.read("),
    "stopped": (DoingKind.STOPPED, "is stopped by a signal", ""),
    "mismatch": (DoingKind.COLLECTIVE, "waits in barrier", ""),
    "deadlock": (DoingKind.COLLECTIVE, "waits in recv", ""),
}
"""The kind, the words and the code by which the last rank must be described."""
LONG_WORK = ("save", "evaluate", "compile", "first_step")
START_S = 240.0
SUSPECTED_WITHIN_S = 240.0
ENDED_WITHIN_S = 400.0
PAUSE_S = 1.0


@dataclass(frozen=True)
class Outcome:
    """The result of one run."""

    way: str
    is_right: bool
    said: str
    """The words of the control plane."""
    seconds: float = 0.0


class Trial:
    """One job that comes to a standstill."""

    def __init__(self, server: Server, folder: Path, way: str, *, number: int, size: int, seconds: float, is_warm: bool) -> None:
        """Start the agents of the job."""
        self._server, self._folder, self._way, self._size = server, folder, way, size
        library = folder / "library" if is_warm else None
        self._agents = Agents(folder, server, job=f"{way}-{number}", script=SCRIPT.read_text(), library=library)
        self._agents._arguments = [way, str(folder), "100"]
        members = tuple(f"train-worker-{index}" for index in range(size))
        expectation = Expectation(members=members, min=size, max=size, budget=Budget(max_restarts=0))
        server.expect(self._agents.job, expectation)
        for name in members:
            self._agents.start(name, nnodes=f"{size}:{size}", SLOW_S=str(seconds))

    def outcome(self) -> Outcome:
        """Run the job to its verdict."""
        last = self._size - 1
        if not self._wait(lambda: self._is_marked(f"at-{last}"), START_S):
            return Outcome(self._way, False, f"it never came to its standstill: {self._agents.describe()[-600:]}")
        if self._way == "stopped":
            os.kill(int((self._folder / f"at-{last}").read_text()), signal.SIGSTOP)
        began = time.monotonic()
        if self._way in HANGS:
            found = self._wait(lambda: self._state() is HangState.SUSPECTED, SUSPECTED_WITHIN_S)
            return Outcome(self._way, bool(found) and self._is_named(last), self._words(), time.monotonic() - began)
        suspected = self._wait(lambda: self._state() is HangState.SUSPECTED or self._is_marked(f"done-{last}"), ENDED_WITHIN_S)
        is_right = bool(suspected) and self._is_marked(f"done-{last}")
        return Outcome(self._way, is_right, self._words(), time.monotonic() - began)

    def stop(self) -> None:
        """Kill the job."""
        self._agents.stop()

    def _wait(self, holds: object, within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        assert callable(holds)
        while not holds():
            if time.monotonic() > deadline:
                return False
            time.sleep(PAUSE_S)
        return True

    def _is_marked(self, name: str) -> bool:
        return (self._folder / name).exists()

    def _world(self) -> WorldReport | None:
        return self._server.world(self._agents.job)

    def _state(self) -> HangState | None:
        world = self._world()
        return world.hang.state if world is not None and world.hang is not None else None

    def _words(self) -> str:
        world = self._world()
        if world is None or world.hang is None:
            return "nothing" if world is None or world.phase != "failed" else world.reason
        return sentence(world.hang)

    def _is_named(self, last: int) -> bool:
        """Return whether the last rank is described as it must be, and before the ranks that wait for it."""
        world = self._world()
        if world is None or world.hang is None:
            return False
        kind, does, code = HANGS[self._way]
        groups = world.hang.groups
        own = [group for group in groups if any(span.first <= last <= span.last for span in group.spans)]
        if len(own) != 1 or own[0].doing.kind is not kind or not own[0].doing.does.startswith(does) or code not in own[0].doing.code:
            return False
        others = [group.doing.kind for group in groups if group is not own[0]]
        return set(others) <= {DoingKind.COLLECTIVE} and (kind is DoingKind.COLLECTIVE or groups[0] is own[0])


@contextmanager
def trial(server: Server, way: str, number: int, given: argparse.Namespace) -> Iterator[Trial]:
    """Run one job for a block of code."""
    with tempfile.TemporaryDirectory(prefix="hang-", ignore_cleanup_errors=True) as folder:
        one = Trial(server, Path(folder), way, number=number, size=given.size, seconds=given.seconds, is_warm=not given.plain)
        try:
            yield one
        finally:
            one.stop()


def main() -> int:
    """Run what the options name, and return 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=[*HANGS, *LONG_WORK], default=[*HANGS, *LONG_WORK])
    parser.add_argument("--runs", type=int, help="runs of each way; by default 5 of a hang and 20 of long work")
    parser.add_argument("--at-once", type=int, default=3, help="jobs that run at the same time")
    parser.add_argument("--size", type=int, default=2, help="ranks of each job")
    parser.add_argument("--seconds", type=float, default=75.0, help="how long the long work takes; the first step takes 60")
    parser.add_argument("--plain", action="store_true", help="without warm workers")
    given = parser.parse_args()
    wanted = [(way, number) for way in given.ways for number in range(given.runs or (5 if way in HANGS else 20))]
    outcomes: list[Outcome] = []

    def run(way: str, number: int) -> None:
        with trial(server, way, number, given) as one:
            outcome = one.outcome()
        outcomes.append(outcome)
        mark = "right" if outcome.is_right else "WRONG"
        print(f"{mark} {way:10} {outcome.seconds:5.0f} s  load {os.getloadavg()[0]:.1f}  {outcome.said}", flush=True)

    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder)) as server,
        server.listening(),
        ThreadPoolExecutor(given.at_once) as pool,
    ):
        for future in [pool.submit(run, way, number) for way, number in wanted]:
            future.result()
    for way in given.ways:
        own = [outcome for outcome in outcomes if outcome.way == way]
        seconds = sorted(outcome.seconds for outcome in own if outcome.is_right)
        when = f"suspected after {seconds[0]:.0f} to {seconds[-1]:.0f} s" if way in HANGS and seconds else ""
        print(f"{way:10} {sum(outcome.is_right for outcome in own)} of {len(own)} right  {when}")
    return 0 if all(outcome.is_right for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
