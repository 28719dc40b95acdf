"""Make one rank of a training slow in each way, and say whether the control plane names the rank and the kind of its slowness.

Each run is a job of its own: torchrun agents whose workers use `elastic_worker.Run`, and a rendezvous server, all on this machine. A run is
right if the slow rank is named with the right kind, and no other rank is named. A run of `none` is right if nobody is named for 20 windows.

    python -m benchmarks.stragglers                            each kind three times, with windows of 2 s
    python -m benchmarks.stragglers --kinds compute --runs 1   only this kind
    python -m benchmarks.stragglers --window 10 --ranks 4      windows as in a cluster, and so many ranks

`named` is the time from the beginning of the slowness until the server names the rank. `throttled` needs the right to make a control group
with a CPU limit, and `network` limits the rate of the rank's connections. `python -m benchmarks.step_cost --pace` measures the cost.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from elastic.membership.wire import Budget, Expectation
from elastic_training.rendezvous.engine.messages.pace import Slowness, Straggler
from elastic_training.rendezvous.engine.pace_words import sentence

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "integration")]

from throttled_group import NoGroup, limit, limited, python_in  # noqa: E402
from torch_agents import Agents, Server, serving, wait_until  # noqa: E402

SCRIPT = ROOT / "tests/fixtures/stragglers/train.py"
KINDS = {
    "none": (None, ""),
    "compute": (Slowness.COMPUTE, "work 0.1"),
    "sleep": (Slowness.COMPUTE, "compute 0.2"),
    "data": (Slowness.DATA, "data 0.1"),
    "outside": (Slowness.OUTSIDE, "outside 0.2"),
    "throttled": (Slowness.THROTTLED, ""),
    "network": (Slowness.NETWORK, "network 1000000"),
}
"""The kind that must be named, and what is written for the rank."""
CPUS = 0.1
"""CPU limit of the throttled rank."""
START_S = 120.0
CALM_WINDOWS, MOST_WINDOWS = 20, 60


@dataclass(frozen=True)
class Outcome:
    """The result of one run."""

    kind: str
    is_right: bool
    said: str
    """The words of the control plane."""
    seconds: float


class Trial:
    """One job, one of whose ranks becomes slow."""

    def __init__(self, server: Server, folder: Path, kind: str, *, number: int, ranks: int, window_s: float, group: Path | None) -> None:
        """Start the agents of the job. group: the control group of the last rank, if it gets a limit."""
        self._server, self._kind, self._window_s, self._group = server, kind, window_s, group
        python = sys.executable if group is None else python_in(group, folder)
        self._slow = folder / "slow"
        self._slow.mkdir(parents=True)
        self._agents = Agents(folder / "job", server, job=f"{kind}-{number}", script=SCRIPT.read_text())
        self._agents._arguments = [str(self._slow)]
        self._members = tuple(f"train-worker-{index}" for index in range(ranks))
        budget = Budget(max_restarts=0, pace_s=window_s)
        server.expect(self._agents.job, Expectation(members=self._members, min=ranks, max=ranks, budget=budget))
        for name in self._members:
            self._agents._python = python if name == self._members[-1] else sys.executable
            self._agents.start(name)

    def outcome(self) -> Outcome:
        """Make the last rank slow, and wait until a rank is named."""
        wanted, words = KINDS[self._kind]
        try:
            wait_until(lambda: all((self._slow / f"steps-{name}").exists() for name in self._members), what="all train", patience_s=START_S)
            if words:
                (self._slow / "new").write_text(words)
                (self._slow / "new").rename(self._slow / self._members[-1])
            if self._group is not None:
                limit(self._group, CPUS)
            began = time.monotonic()
            until = began + self._window_s * (CALM_WINDOWS if wanted is None else MOST_WINDOWS)
            found: tuple[Straggler, ...] = ()
            while not found and time.monotonic() < until:
                time.sleep(0.1)
                found = self._found()
            named = [(one.member, one.kind) for one in found]
            is_right = named == ([] if wanted is None else [(self._members[-1], wanted)])
            return Outcome(self._kind, is_right, "; ".join(map(sentence, found)) or "nobody is named", time.monotonic() - began)
        finally:
            self._agents.stop()

    def _found(self) -> tuple[Straggler, ...]:
        world = self._server.world(self._agents.job)
        return (world.stragglers or ()) if world is not None else ()


def main() -> None:
    """Run all trials one after the other, and print each outcome."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--runs", type=int, default=3, help="runs of each kind")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--window", type=float, default=2.0, help="seconds of a window")
    given = parser.parse_args()
    outcomes = []
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as server:
        for kind in given.kinds:
            for number in range(given.runs):
                outcome = _run(server, Path(folder) / f"{kind}-{number}", kind, number=number, ranks=given.ranks, window_s=given.window)
                if outcome is not None:
                    outcomes.append(outcome)
                    print(f"{kind:10} {'right' if outcome.is_right else 'WRONG'} {outcome.seconds:5.1f} s: {outcome.said}", flush=True)
    right = sum(outcome.is_right for outcome in outcomes)
    print(f"{right} of {len(outcomes)} right; load {os.getloadavg()[0]:.1f}")
    sys.exit(0 if right == len(outcomes) else 1)


def _run(server: Server, folder: Path, kind: str, *, number: int, ranks: int, window_s: float) -> Outcome | None:
    """Return the outcome of one run; None if this machine cannot do it."""
    folder.mkdir()
    with contextlib.ExitStack() as opened:
        group = None
        if kind == "throttled":
            try:
                group = opened.enter_context(limited(f"elastic-benchmark-{os.getpid()}"))
            except NoGroup as error:
                print(f"{kind:10} not possible here: {error}", flush=True)
                return None
        return Trial(server, folder, kind, number=number, ranks=ranks, window_s=window_s, group=group).outcome()


if __name__ == "__main__":
    main()
