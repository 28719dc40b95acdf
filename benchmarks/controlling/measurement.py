"""Make a number of jobs that run, rest and succeed, and say what they cost the controller."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.controlling.kubelets import Kubelets
from benchmarks.controlling.process import Controller
from elastic.kube import connect
from elastic.kube.cache import Cache
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import NAMESPACES
from elastic_training.controller.facts.keys import JOBS

PYTORCH = JOBS["PyTorchJob"]
PATIENCE_S = 1800.0
REST_S = 10.0
QUIET_S = 3.0


@dataclass(frozen=True)
class Load:
    """A number of jobs with a number of pods each. At most `waiting` of them at a time have been created and do not run yet."""

    jobs: int
    pods: int
    waiting: int
    workers: int


def manifest(name: str, pods: int) -> dict[str, Any]:
    def replica(count: int) -> dict[str, Any]:
        container = {"name": "pytorch", "image": "example/train:1", "command": ["python", "train.py"]}
        # There is no scheduler of this name, so no real one writes that it has no nodes.
        spec = {"containers": [container], "schedulerName": "nobody"}
        return {"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": spec}}

    types = {"Master": replica(1), "Worker": replica(pods - 1)}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name}, "spec": {"pytorchReplicaSpecs": types}}


async def measured(kubeconfig: Path, folder: Path, load: Load) -> dict[str, str]:
    controller = Controller(kubeconfig, folder, load.workers)
    namespace = f"bench-{os.getpid()}-{load.jobs}"
    async with connect(kubeconfig) as kube:
        await kube.create(NAMESPACES, {"metadata": {"name": namespace}})
        kubelets = Kubelets(kube, namespace)
        jobs: Cache[str] = Cache(kube, PYTORCH, project=_state, namespace=namespace)
        tasks = [asyncio.create_task(kubelets.run()), asyncio.create_task(jobs.run())]
        try:
            return await _life(controller, kube, kubelets, jobs, namespace=namespace, load=load)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with contextlib.suppress(KubeError):
                await kube.delete(NAMESPACES, namespace)
            controller.stop()


async def _life(controller: Controller, kube: Kube, kubelets: Kubelets, jobs: Cache[str], *, namespace: str, load: Load) -> dict[str, str]:
    cpu, writes, waits, began = controller.cpu_s(), controller.writes(), controller.waits(), time.monotonic()

    def are(word: str) -> int:
        return Counter(jobs.list())[word]

    for number in range(load.jobs):
        await until("a job runs", lambda number=number: number - are("Running") < load.waiting)  # type: ignore[misc]
        await kube.create(PYTORCH, manifest(f"job-{number}", load.pods), namespace=namespace)
    await until("all jobs and pods run", lambda: are("Running") == load.jobs and kubelets.running() == load.jobs * load.pods)
    running_s, running_cpu = time.monotonic() - began, controller.cpu_s() - cpu
    running_writes = controller.writes() - writes
    await asyncio.sleep(QUIET_S)
    rest_writes, rest_cpu, rest_began = controller.writes(), controller.cpu_s(), time.monotonic()
    await asyncio.sleep(REST_S)
    rest_writes, rest_cpu = controller.writes() - rest_writes, (controller.cpu_s() - rest_cpu) / (time.monotonic() - rest_began)
    kubelets.end_all()
    await until("all jobs have succeeded", lambda: are("Succeeded") == load.jobs)
    await asyncio.sleep(QUIET_S)
    all_writes = controller.writes() - writes
    return {
        "jobs x pods": f"{load.jobs} x {load.pods}, at most {load.waiting} waiting for their pods, {load.workers} workers",
        "until all run": f"{running_s:.1f} s",
        "controller CPU": f"{running_cpu:.1f} s until then, {controller.cpu_s() - cpu:.1f} s in all",
        "API writes per job": f"{running_writes / load.jobs:.1f} until then, {all_writes / load.jobs:.1f} in its whole life",
        "longest wait for a round": f"under {_longest(waits, controller.waits())} s",
        "at rest": f"{rest_writes} writes, {rest_cpu * 100:.1f} % of a core",
        "peak memory": f"{controller.peak_mib():.0f} MiB",
    }


async def until(what: str, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end:
            raise SystemExit(f"gave up waiting until {what}")
        await asyncio.sleep(0.02)


def _state(job: dict[str, Any]) -> str:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return str(conditions[-1]["type"]) if conditions else ""


def _longest(before: dict[str, float], after: dict[str, float]) -> str:
    """Return the bound of the bucket that holds every round since then."""
    new = {bound: count - before.get(bound, 0) for bound, count in after.items()}
    everything = max(new.values(), default=0)
    return min((bound for bound, count in new.items() if count == everything), key=float, default="?")
