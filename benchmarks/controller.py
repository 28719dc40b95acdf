"""What the controller costs: API writes per job, time until many jobs run, CPU seconds and memory.

    python benchmarks/controller.py                          on the laptop cluster's API server
    python benchmarks/controller.py --kubeconfig FILE        on any API server that has the CRDs and no nodes
    python benchmarks/controller.py --jobs 100 --pods 10

There are no nodes: a small stand-in for kubelets sets every pending pod to running, and to succeeded when told. Times are wall-clock and
depend on the machine and on the API server; writes and CPU seconds of the controller are its own.
"""

import argparse
import asyncio
import contextlib
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from control_plane import api_server, install_crds, wait_for  # noqa: E402

from controller.keys import JOBS  # noqa: E402
from elastic.kube import connect  # noqa: E402
from elastic.kube.cache import Cache, Change  # noqa: E402
from elastic.kube.client import Kube  # noqa: E402
from elastic.kube.errors import KubeError  # noqa: E402
from elastic.kube.resources import NAMESPACES, PODS  # noqa: E402

PYTORCH = JOBS["PyTorchJob"]
PATIENCE_S = 600.0
AT_ONCE = 16


class Kubelets:
    """Every pod runs as soon as it is there, and ends well once `finish` is set."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self.kube = kube
        self.namespace = namespace
        self.finish = False
        self.phases: dict[str, str] = {}
        self._due: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._pods = Cache(kube, PODS, project=lambda pod: pod["status"].get("phase", "Pending"), namespace=namespace)

    async def run(self) -> None:
        self._pods.subscribe(self._changed)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pods.run())
            for _ in range(AT_ONCE):
                tasks.create_task(self._work())

    def end_all(self) -> None:
        self.finish = True
        for name in self.phases:
            self._due.put_nowait((name, "Succeeded"))

    def _changed(self, change: Change[str]) -> None:
        name = change.key[1]
        if change.new is None:
            self.phases.pop(name, None)
            return
        self.phases[name] = change.new
        if change.new == "Pending":
            self._due.put_nowait((name, "Running"))

    async def _work(self) -> None:
        while True:
            name, phase = await self._due.get()
            ready = [{"type": "Ready", "status": str(phase == "Running")}]
            with contextlib.suppress(KubeError):
                await self.kube.patch(
                    PODS, name, {"status": {"phase": phase, "conditions": ready}}, namespace=self.namespace, subresource="status"
                )

    def running(self) -> int:
        return sum(phase == "Running" for phase in self.phases.values())


def manifest(name: str, pods: int) -> dict[str, Any]:
    def replica(count: int) -> dict[str, Any]:
        container = {"name": "pytorch", "image": "example/train:1", "command": ["python", "train.py"]}
        return {"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": {"containers": [container]}}}

    types = {"Master": replica(1), "Worker": replica(pods - 1)}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name}, "spec": {"pytorchReplicaSpecs": types}}


class Controller:
    """The controller's process, its metrics and what the kernel counted for it."""

    def __init__(self, kubeconfig: Path, folder: Path, workers: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log, ready = folder / "controller.log", folder / "controller.ready"
        ready.unlink(missing_ok=True)
        flags = ["--kubeconfig", str(kubeconfig), "--ready-file", str(ready), "--metrics-port", str(self.port), "--workers", str(workers)]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen([sys.executable, "-m", "controller.main", *flags], stdout=output, stderr=output, cwd=ROOT)
        wait_for(ready, self.process, self.log)

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mib(self) -> float:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

    def writes(self) -> int:
        return sum(int(v) for name, v in self._metrics().items() if "api_requests_total" in name and 'method="GET"' not in name)

    def latest_wait_s(self) -> str:
        """The longest wait for a round, as the bucket that holds them all."""
        buckets = {n: v for n, v in self._metrics().items() if "wait_seconds_bucket" in n}
        total = max(buckets.values(), default=0)
        return next((n.partition('le="')[2].partition('"')[0] for n, v in buckets.items() if v == total), "?")

    def _metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))}

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)


async def until(what: str, holds: Any) -> float:
    began = time.monotonic()
    while not await holds() if asyncio.iscoroutinefunction(holds) else not holds():
        if time.monotonic() - began > PATIENCE_S:
            raise SystemExit(f"gave up waiting until {what}")
        await asyncio.sleep(0.05)
    return time.monotonic() - began


async def state_of_all(kube: Kube, namespace: str) -> list[str]:
    listing = await kube.list(PYTORCH, namespace=namespace)
    return [((item.get("status") or {}).get("conditions") or [{"type": ""}])[-1]["type"] for item in listing.items]


async def measure(kubeconfig: Path, folder: Path, *, jobs: int, pods: int, workers: int) -> dict[str, str]:
    """Creates the jobs, waits until all run, rests, lets all succeed."""
    namespace = f"bench-{os.getpid()}-{jobs}"
    controller = Controller(kubeconfig, folder, workers)
    async with connect(kubeconfig) as kube:
        await kube.create(NAMESPACES, {"metadata": {"name": namespace}})
        kubelets = Kubelets(kube, namespace)
        task = asyncio.create_task(kubelets.run())
        try:
            cpu, writes, began = controller.cpu_s(), controller.writes(), time.monotonic()
            gate = asyncio.Semaphore(AT_ONCE)

            async def make(number: int) -> None:
                async with gate:
                    await kube.create(PYTORCH, manifest(f"job-{number}", pods), namespace=namespace)

            await asyncio.gather(*(make(n) for n in range(jobs)))
            await until("all pods run", lambda: kubelets.running() == jobs * pods)

            async def all_are(word: str) -> bool:
                states = await state_of_all(kube, namespace)
                return len(states) == jobs and set(states) == {word}

            async def all_run() -> bool:
                return await all_are("Running")

            async def all_succeeded() -> bool:
                return await all_are("Succeeded")

            await until("all jobs are Running", all_run)
            running_s, running_cpu = time.monotonic() - began, controller.cpu_s() - cpu
            await asyncio.sleep(3)
            rest_writes, rest_cpu = controller.writes(), controller.cpu_s()
            await asyncio.sleep(10)
            rest_writes, rest_cpu = controller.writes() - rest_writes, controller.cpu_s() - rest_cpu
            kubelets.end_all()
            await until("all jobs have succeeded", all_succeeded)
            await asyncio.sleep(2)
            return {
                "jobs x pods": f"{jobs} x {pods}",
                "until all run": f"{running_s:.1f} s",
                "controller CPU until then": f"{running_cpu:.1f} s",
                "API writes per job, whole life": f"{(controller.writes() - writes) / jobs:.1f}",
                "longest wait for a round": f"under {controller.latest_wait_s()} s",
                "at rest": f"{rest_writes} writes, {rest_cpu * 10:.1f} % of a core",
                "peak memory": f"{controller.peak_mib():.0f} MiB",
            }
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            with contextlib.suppress(KubeError):
                await kube.delete(NAMESPACES, namespace)
            controller.stop()


@contextlib.contextmanager
def server(given: Path | None, folder: Path) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    with api_server(folder) as kubeconfig:
        asyncio.run(install_crds(kubeconfig))
        yield kubeconfig


def main() -> None:
    parser = argparse.ArgumentParser(description="What the controller costs.")
    parser.add_argument("--kubeconfig", type=Path)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--pods", type=int, default=10)
    parser.add_argument("--workers", type=int, default=8)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, server(args.kubeconfig, Path(name)) as kubeconfig:
        for jobs, pods in ((1, 5), (args.jobs, args.pods)):
            print()
            for what, figure in asyncio.run(measure(kubeconfig, Path(name), jobs=jobs, pods=pods, workers=args.workers)).items():
                print(f"{what:32} {figure}")
    own = resource.getrusage(resource.RUSAGE_SELF)
    print(f"\n(the benchmark itself: {own.ru_utime + own.ru_stime:.1f} CPU seconds)")


if __name__ == "__main__":
    main()
