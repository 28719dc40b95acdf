"""What a host that comes, goes or is killed costs elastic Horovod: stock horovodrun with a discovery script that prints a file, beside
ours with an unmodified program and with one that uses our library, on one machine and in one run. Ratios are to stock, of the medians of
all rounds.

`added` and `removed`: from the change of the list to the first step in the new world. `stands still`: the longest pause between two steps
while a host is added. `killed`: from SIGKILL of one worker to the next step of the others.

    scripts/frameworks horovod && python -m benchmarks.horovod [--rounds 3]
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "integration")]

from horovod_lab import Lab, lab  # noqa: E402

PATIENCE_S = 300.0
ENVIRONMENT = ROOT / ".cache" / "frameworks" / "horovod"
FIGURES = ("added", "stands still", "removed", "killed")
STOCK_FLAGS = ("--network-interface", "lo", "--blacklist-cooldown-range", "1", "60")
"""Without the first it wants two hosts to start; without the second a host whose worker was killed is not used again."""


class Stock:
    """horovodrun as it is; the list of hosts is a file."""

    def __init__(self, one: Lab) -> None:
        self._lab, self._hosts, self._script = one, one.folder / "hosts", one.folder / "discover.sh"
        self._script.write_text(f"#!/bin/sh\ncat {self._hosts}\n")
        self._script.chmod(0o755)

    def list(self, *names: str) -> None:
        draft = self._hosts.with_suffix(".new")
        draft.write_text("".join(f"{name}:1\n" for name in names))
        draft.replace(self._hosts)

    def start(self) -> None:
        program = str(ENVIRONMENT / "bin" / "horovodrun")
        self._lab.run(program, str(self._script), *STOCK_FLAGS, steps=1_000_000, pace_s=0.1, every=1)


class Ours:
    def __init__(self, one: Lab) -> None:
        self._lab = one
        self._there: list[str] = []

    def list(self, *names: str) -> None:
        """A host that goes is said to leave first, as the controller does."""
        gone = tuple(name for name in self._there if name not in names)
        self._lab.expect(*names, *gone, leaving=gone)
        self._there = list(names)

    def start(self) -> None:
        self._lab.start(steps=1_000_000, pace_s=0.1, every=1)


def rounds(one: Lab, side: Stock | Ours, count: int) -> dict[str, list[float]]:
    figures: dict[str, list[float]] = {figure: [] for figure in FIGURES}
    side.list("w0", "w1")
    side.start()
    one.until_step(size=2, patience_s=PATIENCE_S)
    for _ in range(count):
        at = time.time()
        side.list("w0", "w1", "w2")
        step = one.until_step(size=3, after=at, patience_s=PATIENCE_S)
        figures["added"].append(step.at - at)
        times = [at, *(found.at for found in one.steps() if at < found.at <= step.at)]
        figures["stands still"].append(max(after - before for before, after in itertools.pairwise(times)))
        time.sleep(2)
        at = time.time()
        side.list("w0", "w1")
        figures["removed"].append(one.until_step(size=2, after=at, patience_s=PATIENCE_S).at - at)
        time.sleep(2)
        at = one.kill("w1")
        figures["killed"].append(one.until_step(size=1, after=at, patience_s=PATIENCE_S).at - at)
        one.until_step(size=2, after=at, patience_s=PATIENCE_S)
        time.sleep(2)
    return figures


def measured(what: str, library: bool, side: Callable[[Lab], Stock | Ours], count: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder, lab(Path(folder), ENVIRONMENT / "bin" / "python", library=library) as one:
        found = rounds(one, side(one), count)
    print(f"{what}: " + ", ".join(f"{name} {' '.join(f'{value:.1f}' for value in values)} s" for name, values in found.items()), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if not (ENVIRONMENT / "made-from.txt").exists():
        raise SystemExit("there is no Horovod here; make it with: scripts/frameworks horovod")
    stock = measured("stock", False, Stock, options.rounds)
    for what, library in (("ours", False), ("library", True)):
        found = measured(what, library, Ours, options.rounds)
        ratios = {name: statistics.median(stock[name]) / statistics.median(found[name]) for name in FIGURES}
        print(f"  stock / {what}: " + ", ".join(f"{name} {ratio:.1f}" for name, ratio in ratios.items()), flush=True)
    print(f"machine: {os.cpu_count()} cores, load average of the last minute {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
