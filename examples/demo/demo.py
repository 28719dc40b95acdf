"""The main job on one machine: an elastic PyTorchJob starts at one worker, is scaled to three, loses one to SIGKILL, trains on, succeeds.

Everything is real: the API server over HTTPS, the controller, the rendezvous server, torchrun, DDP on gloo. Exits 0 only when every step
happened and nothing is left running.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pathlib
import signal
import sys
import tempfile
from typing import Any

import yaml
from story import MissingStep, Story, Training

from elastic.api.kinds import KINDS
from elastic.kube import connect
from elastic.kube.client import Kube, Patch
from elastic.kube.following import JobKey, Outcome, follow, resource_of
from elastic.local import LocalCluster

ROOT = pathlib.Path(__file__).resolve().parents[2]
JOB_FILE = ROOT / "examples/pytorch-elastic/job.yaml"
NAMESPACE = "default"
LEAST_STEPS = 100  # far more than the loss needs to fall to a hundredth
PYTORCH = KINDS["PyTorchJob"]
JOBS = resource_of(PYTORCH)


async def scale(kube: Kube, name: str, replicas: int) -> None:
    """What `kubectl scale pytorchjob NAME --replicas N` does."""
    await kube.patch(JOBS, name, {"spec": {"replicas": replicas}}, namespace=NAMESPACE, kind=Patch.MERGE, subresource="scale")


async def watch(kube: Kube, job: JobKey, training: Training) -> None:
    training.end(await follow(kube, job, training.hear))


def job_that_trains_until(told: pathlib.Path) -> dict[str, Any]:
    """The job of the file, with a training that goes on until that file is there: however slow this machine is, no scene comes too late,
    and however quick it is, nobody waits for steps after the last one."""
    job: dict[str, Any] = yaml.safe_load(JOB_FILE.read_text())
    worker = job["spec"][PYTORCH.replica_key]["Worker"]["template"]["spec"]["containers"][0]
    others = [entry for entry in worker["env"] if entry["name"] != "STEPS"]
    worker["env"] = [*others, {"name": "STEPS", "value": str(LEAST_STEPS)}, {"name": "STOP_FILE", "value": str(told)}]
    return job


async def play(cluster: LocalCluster, story: Story, told: pathlib.Path) -> None:
    job = job_that_trains_until(told)
    name = job["metadata"]["name"]
    training = Training(story)
    async with connect(cluster.kubeconfig) as kube, asyncio.TaskGroup() as tasks:
        began = story.tell(f"apply {JOB_FILE.relative_to(ROOT)}, to train until it is told to end")
        made = await kube.create(JOBS, job, namespace=NAMESPACE)
        key = JobKey(PYTORCH, NAMESPACE, name, made["metadata"]["uid"])
        tasks.create_task(watch(kube, key, training))
        await training.until("the first steps with one worker", lambda t: t.world == 1 and t.step >= 5)
        story.figure("job applied -> first steps, world of 1", began)

        began = story.tell("scale to 3")
        await scale(kube, name, 3)
        await training.until("a step in a world of 3", lambda t: t.world == 3)
        story.figure("scaled to 3 -> first step, world of 3", began)

        at, worlds = training.step, training.worlds
        await training.until("ten more steps in the world of 3", lambda t: t.step >= at + 10)
        victim = f"{name}-worker-1"
        began = story.tell(f"SIGKILL every process of {victim}")
        for pid in cluster.pids(NAMESPACE, victim):
            os.kill(pid, signal.SIGKILL)
        # The survivors re-form at once. When the replacement is quick, it joins them before their first step.
        await training.until("a step after the loss of a worker", lambda t: t.worlds > worlds and t.world > 0)
        story.figure("SIGKILL -> first step after it", began)
        await training.until("a step in a world of 3 again", lambda t: t.worlds > worlds and t.world == 3)
        story.figure("SIGKILL -> first step, world of 3 again", began)

        story.tell(f"touch {told}, which the training takes for its end once it has made its steps")
        told.touch()
        await training.until("the end of the training", lambda t: t.ended is Outcome.SUCCEEDED)
        if training.loss >= training.first_loss / 100:
            raise MissingStep(f"a falling loss: it was {training.first_loss} at first and {training.loss} at last")
        story.tell(
            f"trained {training.step} steps, {training.repeated} of them twice; loss {training.first_loss:.4f} -> {training.loss:.6f}"
        )


def perform(cluster: LocalCluster, story: Story, told: pathlib.Path) -> bool:
    """Play it; whether something that the demo promises was missing."""
    try:
        asyncio.run(play(cluster, story, told))
        return False
    except ExceptionGroup as group:
        missing, other = group.split(MissingStep)
        if other is not None or missing is None:
            raise
        for problem in missing.exceptions:
            story.tell(f"MISSING {problem}")
        return True


def show_logs(folder: pathlib.Path) -> None:
    for log in sorted(folder.glob("*.log")):
        print(f"--- {log.name}: last lines\n{log.read_text(errors='replace')[-2000:]}")


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sandbox", choices=["auto", "netns", "loopback"], default="auto", help="how pods are kept apart")
    chosen = options.parse_args()
    story = Story()
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory(prefix="elastic-demo-") as folder:
        began = story.tell("start the laptop cluster and the control plane")
        with LocalCluster(data_dir=pathlib.Path(folder), sandbox=chosen.sandbox) as cluster:
            processes = list(cluster.processes().values())
            story.tell(f"ready: sandbox {cluster.sandbox}, kubeconfig {cluster.kubeconfig}")
            story.figure("cluster and control plane ready", began)
            missing = perform(cluster, story, pathlib.Path(folder, "enough"))
            if missing:
                show_logs(pathlib.Path(folder))
        left = alive(processes)
        story.tell(f"cluster stopped; {len(left)} of its processes left running")
    story.summary()
    return 1 if left or missing else 0


if __name__ == "__main__":
    sys.exit(main())
