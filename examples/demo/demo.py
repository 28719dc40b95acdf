"""The main job on one machine: an elastic PyTorchJob starts at one worker, is scaled to three, loses one to SIGKILL, trains on, succeeds.

Everything is real: the API server over HTTPS, the controller, the rendezvous server, torchrun, DDP on gloo. Exits 0 only when every step
happened and nothing is left running. With --reclaim a node is taken away instead, as a cloud does; with --picture it draws what happened.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import pathlib
import signal
import sys
import tempfile
from typing import Any

import yaml
from picture import draw
from story import MissingStep, Story, Training

from elastic.api.kinds import KINDS
from elastic.kube import connect
from elastic.kube.client import Kube, Patch
from elastic.kube.following import FollowedJob, Outcome, follow, resource_of
from elastic.kube.resources import PODS
from elastic.local import LocalCluster

ROOT = pathlib.Path(__file__).resolve().parents[2]
JOB_FILE = ROOT / "examples/pytorch-in-process/job.yaml"
NAMESPACE = "default"
LEAST_STEPS = 100  # far more than the loss needs to fall to a hundredth
SHORT_LESSON = {"STEPS": str(LEAST_STEPS), "LEARNING_RATE": "0.008"}
LONG_LESSON = {"STEPS": "300", "LEARNING_RATE": "0.002"}
"""With the half minute until a reclaimed node goes, the loss still falls at the end."""
PYTORCH = KINDS["PyTorchJob"]
JOBS = resource_of(PYTORCH)


async def scale(kube: Kube, name: str, replicas: int) -> None:
    """Scale the job as `kubectl scale pytorchjob NAME --replicas N` does."""
    await kube.patch(JOBS, name, {"spec": {"replicas": replicas}}, namespace=NAMESPACE, kind=Patch.MERGE, subresource="scale")


async def watch(kube: Kube, job: FollowedJob, training: Training) -> None:
    training.end(await follow(kube, job, training.hear))


def job_that_trains_until(told: pathlib.Path, *, by_reclaim: bool) -> dict[str, Any]:
    """Return the job of the job file, with a training that goes on until the file `told` exists.

    On a slow machine, the training then does not end before the last scene, and on a fast one, it ends soon after it.
    """
    job: dict[str, Any] = yaml.safe_load(JOB_FILE.read_text())
    worker = job["spec"][PYTORCH.replica_key]["Worker"]["template"]["spec"]["containers"][0]
    own = {"STOP_FILE": str(told)} | (LONG_LESSON if by_reclaim else SHORT_LESSON)
    others = [entry for entry in worker["env"] if entry["name"] not in own]
    worker["env"] = [*others, *({"name": name, "value": value} for name, value in own.items())]
    return job


async def kill(cluster: LocalCluster, story: Story, victim: str) -> float:
    """Kill all processes of a pod, and return the time."""
    began = story.tell(f"SIGKILL every process of {victim}")
    story.mark(f"SIGKILL of {victim}")
    for pid in cluster.pids(NAMESPACE, victim):
        with contextlib.suppress(ProcessLookupError):  # it ended with the one before
            os.kill(pid, signal.SIGKILL)
    return began


async def reclaim(kube: Kube, cluster: LocalCluster, story: Story, victim: str) -> tuple[float, asyncio.subprocess.Process]:
    """Reclaim the node of a pod as `elastic node reclaim` does: notice now, and after 30 s the machine is lost and the process ends."""
    node = str((await kube.get(PODS, victim, namespace=NAMESPACE))["spec"]["nodeName"])
    words = [sys.executable, "-m", "elastic.cli", "node", "reclaim", node, "--as", "gcp", "--data-dir", str(cluster.data_dir)]
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.DEVNULL)
    began = story.tell(f"elastic node reclaim {node} --as gcp: notice is given to {victim}'s node, which is lost in 30 s")
    story.mark("notice: a spot node will go")
    return began, process


async def play(cluster: LocalCluster, story: Story, told: pathlib.Path, *, by_reclaim: bool) -> None:
    job = job_that_trains_until(told, by_reclaim=by_reclaim)
    name = job["metadata"]["name"]
    training = Training(story)
    async with connect(cluster.kubeconfig) as kube, asyncio.TaskGroup() as tasks:
        began = story.tell(f"apply {JOB_FILE.relative_to(ROOT)}, to train until it is told to end")
        made = await kube.create(JOBS, job, namespace=NAMESPACE)
        key = FollowedJob(PYTORCH, NAMESPACE, name, made["metadata"]["uid"])
        tasks.create_task(watch(kube, key, training))
        await training.until("the first steps with one worker", lambda t: t.world == 1 and t.step >= 5)
        story.figure("job applied -> first steps, world of 1", began)

        began = story.tell("scale to 3")
        story.mark("scaled to 3")
        await scale(kube, name, 3)
        await training.until("a step in a world of 3", lambda t: t.world == 3)
        story.figure("scaled to 3 -> first step, world of 3", began)

        at, worlds = training.step, training.worlds
        await training.until("ten more steps in the world of 3", lambda t: t.step >= at + 10)
        story.pause("longest time between two steps meanwhile", began)
        victim = f"{name}-worker-1"
        deed = "notice" if by_reclaim else "SIGKILL"
        machine = None
        if by_reclaim:
            began, machine = await reclaim(kube, cluster, story, victim)
        else:
            began = await kill(cluster, story, victim)
        # The survivors re-form at once. When the replacement is quick, it joins them before their first step.
        await training.until("a step after the loss of a worker", lambda t: t.worlds > worlds and t.world > 0)
        story.figure(f"{deed} -> first step after it", began)
        await training.until("a step in a world of 3 again", lambda t: t.worlds > worlds and t.world == 3)
        story.figure(f"{deed} -> first step, world of 3 again", began)
        story.pause("longest time between two steps meanwhile", began)
        if machine is not None:
            story.waits_for = "the loss of the machine"
            if await machine.wait():
                raise MissingStep("the node to be reclaimed: the command failed")
            story.tell("the node is gone")
            story.mark("the node is gone")
            at = training.step
            await training.until("twenty more steps after the loss of the machine", lambda t: t.step >= at + 20)

        story.tell(f"touch {told}, which the training takes for its end once it has made its steps")
        told.touch()
        await training.until("the end of the training", lambda t: t.ended is Outcome.SUCCEEDED)
        if training.loss >= training.first_loss / 100:
            raise MissingStep(f"a falling loss: it was {training.first_loss} at first and {training.loss} at last")
        story.tell(
            f"trained {training.step} steps, {training.repeated} of them twice; loss {training.first_loss:.4f} -> {training.loss:.6f}"
        )


def perform(cluster: LocalCluster, story: Story, told: pathlib.Path, *, by_reclaim: bool) -> bool:
    """Play the demo, and return whether something that it promises was missing."""
    try:
        asyncio.run(play(cluster, story, told, by_reclaim=by_reclaim))
        return False
    except ExceptionGroup as group:
        missing, other = group.split(MissingStep)
        if other is not None or missing is None:
            raise
        for problem in missing.exceptions:
            story.tell(f"MISSING {problem}")
        return True


def show_logs(folder: pathlib.Path, story: Story) -> None:
    for log in sorted(folder.glob("*.log")):
        story.say(f"--- {log.name}: last lines\n{log.read_text(errors='replace')[-2000:]}")


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()]


NEXT = """
Next, after `. .venv/bin/activate`:
  elastic up --nodes 2                             a cluster that stays, and a link to its dashboard
  elastic run train.py --workers 1:4               your own script (docs/own-script.md)
  elastic run examples/pytorch-in-process/job.yaml the job of this demo (docs/in-process.md)"""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sandbox", choices=["auto", "netns", "loopback"], default="auto", help="how pods are kept apart")
    options.add_argument("--reclaim", action="store_true", help="take a node away instead of a worker; takes half a minute more")
    options.add_argument("--picture", type=pathlib.Path, metavar="FILE", help="write there what happened, as SVG")
    chosen = options.parse_args()
    story = Story()
    picture = chosen.picture.resolve() if chosen.picture else None
    os.chdir(ROOT)
    with story.shown(), tempfile.TemporaryDirectory(prefix="elastic-demo-") as folder:
        left, missing = run(story, pathlib.Path(folder), sandbox=chosen.sandbox, by_reclaim=chosen.reclaim)
    story.summary()
    if picture is not None and not missing:
        what = "a spot node is taken back" if chosen.reclaim else "a worker is killed"
        picture.write_text(draw(story.steps, story.marks, f"An elastic PyTorchJob while {what}"))
    print(NEXT)
    return 1 if left or missing else 0


def run(story: Story, folder: pathlib.Path, *, sandbox: str, by_reclaim: bool) -> tuple[list[int], bool]:
    """Return the cluster's processes that are left, and whether something was missing."""
    story.waits_for = "the laptop cluster"
    began = story.tell("start the laptop cluster and the control plane")
    with LocalCluster(data_dir=folder, sandbox=sandbox, nodes=2 if by_reclaim else 1) as cluster:
        processes = list(cluster.processes().values())
        story.tell(f"ready: sandbox {cluster.sandbox}, kubeconfig {cluster.kubeconfig}")
        story.figure("cluster and control plane ready", began)
        missing = perform(cluster, story, folder / "enough", by_reclaim=by_reclaim)
        if missing:
            show_logs(folder, story)
        story.waits_for = "the cluster to stop"
    left = alive(processes)
    story.is_over = True
    story.tell(f"cluster stopped; {len(left)} of its processes left running")
    return left, missing


if __name__ == "__main__":
    sys.exit(main())
