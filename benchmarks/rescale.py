"""Measure the seconds from an event to the first step of the new world, for a small DDP script under stock torchrun and backend elastic.

Agents are plain processes on loopback, with a real elastic-rendezvous process and without Kubernetes. `--write` puts table and picture into
docs/. By default each setting runs once, which takes about five minutes. `--quick` leaves out torchrun's default flags, whose waits take
most of that time. Run it as `python -m benchmarks.rescale`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.rescaling import report
from benchmarks.rescaling.scenarios import Measured, Sequence
from benchmarks.rescaling.settings import SETTINGS
from elastic.local.etcd import program


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1, help="runs of each setting; medians are shown")
    parser.add_argument("--stock-runs", type=int, help="runs with torchrun's default flags, which take minutes each (default: as --runs)")
    parser.add_argument("--quick", action="store_true", help="one run, without torchrun's default flags")
    parser.add_argument("--settings", default=",".join(setting.name for setting in SETTINGS), help="which settings, by name")
    parser.add_argument("--limit", type=float, default=1800, help="seconds after which no further run begins")
    parser.add_argument("--write", action="store_true", help="write docs/rescale.md and docs/rescale.svg")
    parser.add_argument("--raw", type=Path, help="a JSON file to which every figure is added, and from which earlier ones are taken")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the agents are ended, too

    found = [Measured(**fields) for fields in json.loads(chosen.raw.read_text())] if chosen.raw and chosen.raw.exists() else []
    names = [name for name in chosen.settings.split(",") if not (chosen.quick and name == "stock")]
    in_etcd = {setting.name for setting in SETTINGS if setting.is_in_etcd}
    if in_etcd.intersection(names) and program() is None:
        names = [name for name in names if name not in in_etcd]
        print("without the settings in an etcd: there is no etcd on PATH; install Debian's etcd-server")
    until = time.monotonic() + chosen.limit
    runs = {setting.name: 1 if chosen.quick else chosen.runs for setting in SETTINGS}
    if chosen.stock_runs is not None:
        runs["stock"] = chosen.stock_runs
    for run in range(max(runs.values())):  # in turn, so that a slow moment of the machine meets all of them
        for setting in SETTINGS:
            if setting.name in names and run < runs[setting.name] and time.monotonic() < until:
                found += Sequence(setting, tell=_tell).run()
                if chosen.raw:
                    chosen.raw.write_text(json.dumps([asdict(measured) for measured in found], indent=1))
    print()
    print(report.table(found))
    print()
    print(report.phases(found))
    print()
    print("\n".join(report.verdicts(found)))
    if chosen.write:
        report.write(found, Path(__file__).parent.parent / "docs")


def _tell(measured: Measured) -> None:
    seconds = "lost" if measured.seconds is None else f"{measured.seconds:6.2f} s"
    phases = " ".join(f"{name} {ms}" for name, ms in measured.phases.items())
    print(f"{measured.setting:15} {measured.scenario:8} {seconds:>9}  {phases}{measured.note}", flush=True)


if __name__ == "__main__":
    main()
