"""Measure the cost of a host that comes, goes or is killed for elastic Horovod.

Stock horovodrun with a discovery script that prints a file is compared with ours, on one machine and in one run. Ours runs an unmodified
program, and a program that uses our library. Ratios are to stock, of the medians of all rounds.

`added` and `removed` last from a ready host, or the word that a host leaves, to the first step in the new world. `listed` and `delisted`
last to the change of horovodrun's list, which for stock is the file. `stands still` is the longest pause between two steps while a host is
added. `killed` lasts from the SIGKILL of one worker of three to the next step of the others. `starts`, `imports`, `stops` and `meets` are
the parts of `added` with the library: until the new process runs, until it asks for its place, until the others have stopped, and until
the first step.

    scripts/frameworks horovod && python -m benchmarks.horovod [--rounds 3] [--sides stock ours library]
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
OF_THE_LIST = ("listed", "delisted")
PARTS = ("starts", "imports", "stops", "meets")
STOCK_FLAGS = ("--network-interface", "lo", "--blacklist-cooldown-range", "1", "60")
"""Flags of stock horovodrun. The first lets it start with one host. The second lets it use a host again after its worker was killed."""


class Stock:
    """An unchanged horovodrun, whose list of hosts is a file."""

    def __init__(self, one: Lab) -> None:
        self._lab, self._hosts, self._script = one, one.folder / "hosts", one.folder / "discover.sh"
        self._script.write_text(f"#!/bin/sh\ncat {self._hosts}\n")
        self._script.chmod(0o755)

    def list(self, *names: str) -> None:
        draft = self._hosts.with_suffix(".new")
        draft.write_text("".join(f"{name}:1\n" for name in names))
        draft.replace(self._hosts)

    def until_listed(self, *names: str, after: float) -> float | None:
        """Return None, because the file is the only list."""
        return None

    def start(self) -> None:
        program = str(ENVIRONMENT / "bin" / "horovodrun")
        self._lab.run(program, str(self._script), *STOCK_FLAGS, steps=1_000_000, pace_s=0.1, every=1)


class Ours:
    def __init__(self, one: Lab) -> None:
        self._lab = one
        self._there: list[str] = []

    def list(self, *names: str) -> None:
        """Tell the server the hosts. First say that the other hosts leave, as the controller does."""
        gone = tuple(name for name in self._there if name not in names)
        self._lab.expect(*names, *gone, leaving=gone)
        self._there = list(names)

    def until_listed(self, *names: str, after: float) -> float | None:
        return self._lab.until_listed(*names, after=after, patience_s=PATIENCE_S)

    def start(self) -> None:
        self._lab.start(steps=1_000_000, pace_s=0.1, every=1)


def rounds(one: Lab, side: Stock | Ours, count: int) -> dict[str, list[float]]:
    """Add a host in each round, kill the worker of a former host, wait until that has come back, and remove it.

    Every host is killed at most once, and every other time it is the host of rank 0.
    """
    figures: dict[str, list[float]] = {figure: [] for figure in (*FIGURES, *OF_THE_LIST, *PARTS)}
    hosts = ["w0", "w1"]
    side.list(*hosts)
    side.start()
    one.until_steady(size=2, patience_s=PATIENCE_S)
    for number in range(count):
        hosts.append(f"w{number + 2}")
        at = time.time()
        side.list(*hosts)
        step = one.until_step(size=3, after=at, patience_s=PATIENCE_S)
        figures["added"].append(step.at - at)
        if (listed := side.until_listed(*hosts, after=at)) is not None:
            figures["listed"].append(listed - at)
        times = [at, *(found.at for found in one.steps() if at < found.at <= step.at)]
        figures["stands still"].append(max(after - before for before, after in itertools.pairwise(times)))
        for part, seconds in parts(one, hosts[-1], at, step.at).items():
            figures[part].append(seconds)
        one.until_steady(size=3, patience_s=PATIENCE_S)
        victim = hosts.pop(number % 2)
        at = one.kill(victim)
        figures["killed"].append(one.until_met(after=at, patience_s=PATIENCE_S).at - at)
        one.until_steady(size=3, patience_s=PATIENCE_S)
        at = time.time()
        side.list(*hosts)
        figures["removed"].append(one.until_step(size=2, after=at, patience_s=PATIENCE_S).at - at)
        if (delisted := side.until_listed(*hosts, after=at)) is not None:
            figures["delisted"].append(delisted - at)
        one.until_steady(size=2, patience_s=PATIENCE_S)
    return {figure: values for figure, values in figures.items() if values}


def parts(one: Lab, new: str, began: float, ended: float) -> dict[str, float]:
    """Return the parts of the time in which this host was added. Return nothing without the library, because the others stop first."""
    notes = [(float(at), host, word) for at, host, word, *_ in map(str.split, one.lines()) if began < float(at) <= ended]
    moments = [at for at, host, word in notes if (host, word) in ((new, "process"), (new, "asks"))]
    stopped = [at for at, host, word in notes if host != new and word == "meets"]
    if not one.library or len(moments) != 2 or not stopped:
        return {}
    moments = [began, *moments, stopped[0], ended]
    return {part: after - before for part, (before, after) in zip(PARTS, itertools.pairwise(moments), strict=True)}


def measured(what: str, library: bool, side: Callable[[Lab], Stock | Ours], count: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder, lab(Path(folder), ENVIRONMENT / "bin" / "python", library=library) as one:
        found = rounds(one, side(one), count)
    for name, values in found.items():
        each = " ".join(f"{value:.1f}" for value in values)
        print(f"{what:8} {name:12} median {statistics.median(values):5.1f} s, most {max(values):5.1f} s, of {each}", flush=True)
    return found


SIDES: dict[str, tuple[bool, Callable[[Lab], Stock | Ours]]] = {"stock": (False, Stock), "ours": (False, Ours), "library": (True, Ours)}
"""For each side whether the program uses our library, and the class that runs horovodrun."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    options = parser.parse_args()
    if not (ENVIRONMENT / "made-from.txt").exists():
        raise SystemExit("Horovod is not built; build it with: scripts/frameworks horovod")
    found = {what: measured(what, *SIDES[what], options.rounds) for what in options.sides}
    for what in [side for side in found if side != "stock" and "stock" in found]:
        ratios = {name: statistics.median(found["stock"][name]) / statistics.median(found[what][name]) for name in FIGURES}
        print(f"stock / {what}: " + ", ".join(f"{name} {ratio:.1f}" for name, ratio in ratios.items()), flush=True)
    print(f"machine: {os.cpu_count()} cores, load average of the last minute {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
