"""Measure the cost of the controller: API writes per job, time until many jobs run, CPU seconds and memory.

    python -m benchmarks.controller                          on the laptop cluster's API server, and on a real one if
                                                             KUBEBUILDER_ASSETS names a folder with etcd and kube-apiserver
    python -m benchmarks.controller --kubeconfig FILE        on any API server that has the CRDs
    python -m benchmarks.controller --jobs 1000 --waiting 32 other numbers than a job of 5 pods and 100 jobs of 10

A small stand-in for kubelets sets every pending pod to running, and to succeeded when told. Times are wall-clock, and depend on the
machine and on the API server. Writes and CPU seconds are the controller's own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from control_plane import api_server, install_crds  # noqa: E402
from real_servers import ControlPlane  # noqa: E402

from benchmarks.controlling.measurement import Load, measured  # noqa: E402


@contextlib.contextmanager
def laptop(folder: Path) -> Iterator[Path]:
    with api_server(folder) as kubeconfig:
        asyncio.run(install_crds(kubeconfig))
        yield kubeconfig


@contextlib.contextmanager
def real(folder: Path, assets: Path) -> Iterator[Path]:
    with ControlPlane(assets, folder) as plane:
        asyncio.run(install_crds(plane.kubeconfig))
        yield plane.kubeconfig


def show(title: str, kubeconfig: Path, folder: Path, loads: list[Load]) -> None:
    for load in loads:
        print(f"\n{title}", flush=True)
        for what, figure in asyncio.run(measured(kubeconfig, folder, load)).items():
            print(f"{what:32} {figure}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="What the controller costs.")
    parser.add_argument("--kubeconfig", type=Path)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--pods", type=int, default=10)
    parser.add_argument("--waiting", type=int, help="number of jobs that are created ahead of the running ones; by default all")
    parser.add_argument("--workers", type=int, default=16)
    args = parser.parse_args()
    loads = [Load(1, 5, 1, args.workers), Load(args.jobs, args.pods, args.waiting or args.jobs, args.workers)]
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.kubeconfig:
            show(str(args.kubeconfig), args.kubeconfig, folder, loads)
        else:
            with laptop(folder) as kubeconfig:
                show("on the laptop cluster's API server", kubeconfig, folder, loads)
            if assets:
                with real(folder, Path(assets)) as kubeconfig:
                    show("on a real API server", kubeconfig, folder, loads)
    own = resource.getrusage(resource.RUSAGE_SELF)
    print(f"\n(the benchmark itself: {own.ru_utime + own.ru_stime:.1f} CPU seconds)")


if __name__ == "__main__":
    main()
