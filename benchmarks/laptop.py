"""Measure the laptop cluster at rest: seconds until it is ready, memory of all its processes, and their share of a core.

It runs API server, scheduler, controllers, node agent, the sandboxes' holder and the supervisor, with one node and without the control
plane. Memory is PSS, so that shared memory is counted once. The machine has to be quiet. With --imports it also prints the modules on
which each process spends its start.

    python -m benchmarks.laptop [--runs 5] [--idle 30] [--sandbox auto] [--imports]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from elastic.local import LocalCluster
from elastic.local.sandbox import linux

READY_S, MEMORY_MB, CORE_PERCENT = 2.0, 200.0, 2.0
CALM_S = 5.0
"""Seconds after the start until a process counts as idle."""
PARTS = ("elastic.local.supervisor", "elastic.local.sandbox.holder", "elastic.local.apiserver.__main__", "elastic.local.agents")
SHOWN = 12


@dataclass(frozen=True)
class Run:
    ready_s: float
    start_cpu_s: dict[str, float]
    """CPU seconds of the start, by process."""
    memory_mb: dict[str, float]
    idle_percent: dict[str, float]
    """Percent of one core, by process."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--idle", type=float, default=30.0, metavar="SECONDS", help="how long each cluster is left alone")
    parser.add_argument("--sandbox", default="auto", choices=["auto", "netns", "loopback"])
    parser.add_argument("--imports", action="store_true")
    options = parser.parse_args()
    runs = [measured(options.sandbox, idle_s=options.idle) for _ in range(options.runs)]
    print("\n".join(report(runs)))
    if options.imports:
        for module in PARTS:
            print("\n".join(slowest_imports(module)))
    return 0


def measured(sandbox: str, *, idle_s: float) -> Run:
    with TemporaryDirectory() as folder:
        began = time.monotonic()
        with LocalCluster(data_dir=Path(folder), sandbox=sandbox, control_plane=False) as cluster:
            ready_s = time.monotonic() - began
            processes = cluster.processes()
            start = {name: cpu_s(pid) for name, pid in processes.items()}
            time.sleep(CALM_S)
            before, since = {name: cpu_s(pid) for name, pid in processes.items()}, time.monotonic()
            time.sleep(idle_s)
            seconds = time.monotonic() - since
            idle = {name: 100 * (cpu_s(pid) - before[name]) / seconds for name, pid in processes.items()}
            return Run(ready_s, start, {name: pss_mb(pid) for name, pid in processes.items()}, idle)


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def pss_mb(pid: int) -> float:
    """Return the memory of a process with its helpers. The holder keeps no pods here."""
    return sum(_pss_kb(each) for each in (pid, *_own_children(pid))) / 1024


def _own_children(pid: int) -> Iterator[int]:
    """Yield the children of a process that are not themselves processes of the cluster."""
    for child, parent in linux.parents().items():
        if parent == pid and b"elastic.local" not in Path(f"/proc/{child}/cmdline").read_bytes():
            yield child


def _pss_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def report(runs: list[Run]) -> list[str]:
    names = list(runs[0].memory_mb)
    ready = [run.ready_s for run in runs]
    lines = [f"{len(runs)} runs, medians; load of the machine now {os.getloadavg()[0]:.1f}", ""]
    lines.append(f"{'process':<12} {'start, CPU s':>13} {'memory, MB':>11} {'idle, % core':>13}")
    for name in names:
        cells = (median(run.start_cpu_s[name] for run in runs), median(run.memory_mb[name] for run in runs))
        lines.append(f"{name:<12} {cells[0]:>13.2f} {cells[1]:>11.1f} {median(run.idle_percent[name] for run in runs):>13.2f}")
    memory, idle = median(sum(run.memory_mb.values()) for run in runs), median(sum(run.idle_percent.values()) for run in runs)
    cpu = median(sum(run.start_cpu_s.values()) for run in runs)
    lines.append(f"{'together':<12} {cpu:>13.2f} {memory:>11.1f} {idle:>13.2f}")
    lines += ["", f"ready after {median(ready):.2f} s ({min(ready):.2f} to {max(ready):.2f}); aim: {READY_S:.0f} s"]
    lines.append(f"memory {memory:.0f} MB; aim: {MEMORY_MB:.0f} MB")
    lines.append(f"idle {idle:.2f} % of a core; aim: {CORE_PERCENT:.0f} %")
    return lines


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def slowest_imports(module: str) -> list[str]:
    """Return lines with the modules that take the most time of this module's import themselves."""
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", f"import {module}"], capture_output=True, text=True, check=True)
    rows = [line.removeprefix("import time:").split("|") for line in done.stderr.splitlines() if line.startswith("import time:")][1:]
    costs = sorted(((int(own) / 1000, int(total) / 1000, name.strip()) for own, total, name in rows), reverse=True)
    whole = next(total for _, total, name in costs if name == module)
    return ["", f"import {module}: {whole:.0f} ms", *(f"  {own:7.1f} ms  {name}" for own, _, name in costs[:SHOWN])]


if __name__ == "__main__":
    sys.exit(main())
