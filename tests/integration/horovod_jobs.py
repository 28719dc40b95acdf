"""Run the job of examples/horovod-elastic on a laptop cluster, for tests that disturb it while it trains."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from example_jobs import NAMESPACE, ROOT, Outcome, read, resource

from elastic.kube.client import Kube, Patch
from elastic.kube.errors import KubeError
from elastic.kube.resources import PODS, Object

PATIENCE_S = 300.0
STEP = re.compile(r"step (\d+) in a world of (\d+)")
PROGRAM = "examples/horovod-elastic/train.py"
SLOWEST_START_S = "240"
"""Seconds after which a slow new worker ends all others if the library is absent. A loaded machine may need more than the default 60 s."""
LIBRARY = {
    "import horovod.torch as hvd\n": "import horovod.torch as hvd\nfrom elastic_worker import horovod as elastic\n",
    "hvd.init()": "elastic.init(hvd)",
    "train(hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0), truth)": (
        "train(elastic.state(hvd, hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)), truth)"
    ),
}
"""The lines that docs/horovod.md changes in a program."""
SSHD = "mkdir -p /run/sshd && exec /usr/sbin/sshd -D -e -f /dev/null -o HostKey=/root/.ssh/id_rsa -o StrictModes=no -o PidFile=none"
"""The command of a worker that runs sshd, as in examples/mpi-ssh."""

has_sshd = shutil.which("sshd") is not None and os.getuid() == 0
SSH = pytest.param("SSH", marks=pytest.mark.skipif(not has_sshd, reason="sshd of openssh-server is needed, and root to run it"))
BOTH_WAYS = pytest.mark.parametrize("transport", ["Exec", SSH])


class Running:
    """A job that trains, as its launcher's log tells."""

    def __init__(self, kube: Kube, job: dict[str, Any]) -> None:
        self.kube, self.job, self.name = kube, job, job["metadata"]["name"]

    @property
    def launcher(self) -> str:
        return f"{self.name}-launcher"

    async def steps(self) -> list[tuple[int, int]]:
        """Return every step of the launcher's present run and the size of its world, in the order of the log."""
        chunks = []
        with contextlib.suppress(KubeError):  # a launcher that does not run yet has no log
            chunks = [chunk async for chunk in self.kube.logs(self.launcher, namespace=NAMESPACE, container="mpi")]
        return [(int(step), int(size)) for step, size in STEP.findall(b"".join(chunks).decode(errors="replace"))]

    async def until_world(self, size: int, *, after: int = 0) -> int:
        """Wait until a world of this size made a step later than `after`, and return the newest such step."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = [step for step, world in await self.steps() if world == size and step > after]
                if found:
                    return found[-1]
                await asyncio.sleep(0.2)

    async def scale(self, workers: int) -> None:
        body = {"spec": {"replicas": workers}}
        await self.kube.patch(resource(self.job), self.name, body, namespace=NAMESPACE, kind=Patch.MERGE, subresource="scale")

    async def pods(self, type: str = "worker") -> dict[str, Object]:
        labels = f"training.kubeflow.org/job-name={self.name},training.kubeflow.org/replica-type={type}"
        return {pod["metadata"]["name"]: pod for pod in (await self.kube.list(PODS, namespace=NAMESPACE, labels=labels)).items}

    async def workers(self) -> list[str]:
        return sorted(await self.pods())

    async def until_workers(self, *names: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await self.workers() != list(names):  # noqa: ASYNC110
                await asyncio.sleep(0.2)

    async def evict(self, pod: str) -> None:
        """Evict a pod as soon as the disruption budget allows it."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await self.kube.create(PODS, body, namespace=NAMESPACE, name=pod, subresource="eviction")
                    return
                except KubeError as error:
                    if error.code != 429:
                        raise
                await asyncio.sleep(0.2)


def example(name: str, *, steps: int, workers: int = 1, program: str = PROGRAM, transport: str = "Exec") -> dict[str, Any]:
    job = read("horovod-elastic")
    job["metadata"]["name"] = name
    specs = job["spec"]["mpiReplicaSpecs"]
    specs["Worker"]["replicas"] = workers
    launcher, worker = (specs[type]["template"]["spec"]["containers"][0] for type in ("Launcher", "Worker"))
    launcher["env"] = [{"name": "STEPS", "value": str(steps)}]
    launcher["args"] = ["python", program]
    if program == PROGRAM:
        launcher["command"] += ["--gloo-timeout-seconds", SLOWEST_START_S]
    if transport == "SSH":
        job["spec"]["mpiTransport"] = "SSH"
        worker["command"], worker["args"] = ["sh", "-c"], [SSHD]
    return job


def without_library(job: dict[str, Any]) -> dict[str, Any]:
    """Return the job without the library: its launcher asks for the hosts by the script, with the user's own flags."""
    job["spec"]["elasticPolicy"]["workerLibrary"] = "None"
    launcher = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    launcher["command"] += ["--network-interface", "eth0", "--blacklist-cooldown-range", "1", "60"]
    return job


def with_library(folder: Path) -> str:
    """Write the example's program with the changes that docs/horovod.md names, and return its path."""
    text = (ROOT / PROGRAM).read_text()
    for before, after in LIBRARY.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    path = folder / "train.py"
    path.write_text(text)
    return str(path)


def training(worker: str) -> list[int]:
    """Return the running training processes that horovodrun has started in this worker. Over ssh the worker's name has a domain."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has just ended
            command, environment = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
            is_training = command.endswith(b"train.py\0") and b"python" in command.split(b"\0")[0]
            if is_training and re.search(rb"\0HOROVOD_HOSTNAME=" + worker.encode() + rb"[.\0]", b"\0" + environment):
                found.append(int(folder.name))
    return found


def kill_training(worker: str) -> None:
    """Kill the training processes that horovodrun started in this worker."""
    pids = training(worker)
    assert pids, f"no training runs in {worker}"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def losses(outcome: Outcome, name: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", outcome.logs[f"{name}-launcher"])]
