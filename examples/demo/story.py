"""What the demo watches and prints: a clock of plain lines, and the training as its own log lines tell it.

Knows the line format of examples/pytorch-elastic/train.py and the Kubernetes API, nothing of how the cluster came to be.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from elastic.kube.client import Kube, WatchType
from elastic.kube.errors import KubeError
from elastic.kube.resources import EVENTS, PODS, Object, Resource

STEP = re.compile(r"^step (\d+) world (\d+) loss ([0-9.]+)$")
FORMED = re.compile(r"^world (\d+) rank 0 starts at step (\d+)$")


class MissingStep(Exception):
    """Something the demo promises did not happen; the text says what."""


@dataclass
class Story:
    """Prints what happens with its milliseconds, and remembers the seconds that the summary shows."""

    start: float = field(default_factory=time.monotonic)
    figures: list[tuple[str, float]] = field(default_factory=list)

    def tell(self, text: str) -> float:
        now = time.monotonic()
        print(f"{(now - self.start) * 1000:8.0f} ms  {text}", flush=True)
        return now

    def figure(self, what: str, since: float) -> None:
        self.figures.append((what, time.monotonic() - since))

    def summary(self) -> None:
        width = max(len(what) for what, _ in self.figures)
        print("\nSummary")
        for what, seconds in self.figures:
            print(f"  {what:<{width}}  {seconds:7.2f} s")


@dataclass
class Training:
    """The newest step that any worker reported, and who is waiting for the next."""

    story: Story
    step: int = 0
    world: int = 0
    worlds: int = 0
    first_loss: float = 0.0
    loss: float = 0.0
    repeated: int = 0
    ended: str = ""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def read(self, line: str) -> None:
        if formed := FORMED.match(line):
            self.worlds += 1
            self.story.tell(f"training: a world of {formed[1]} goes on from step {formed[2]}")
            self.world = 0  # until it has made a step
        match = STEP.match(line)
        if not match:
            return
        step, world, loss = int(match[1]), int(match[2]), float(match[3])
        if world != self.world:
            self.story.tell(f"training: step {step} in a world of {world}, loss {loss:.4f}")
        self.repeated += step <= self.step
        self.step, self.world, self.loss = step, world, loss
        self.first_loss = self.first_loss or loss
        async with self.changed:
            self.changed.notify_all()

    async def end(self, how: str) -> None:
        self.ended = how
        async with self.changed:
            self.changed.notify_all()

    async def until(self, what: str, reached: Callable[[Training], bool], *, within_s: float = 60.0) -> None:
        """Wait until the training is there; say what is missing when it is not in time, or when the job ended before."""
        try:
            async with asyncio.timeout(within_s), self.changed:
                await self.changed.wait_for(lambda: reached(self) or bool(self.ended))
        except TimeoutError:
            raise MissingStep(f"{what}: not within {within_s:.0f} s; last seen step {self.step} in a world of {self.world}") from None
        if not reached(self):
            raise MissingStep(f"{what}: the job ended before that ({self.ended})")


async def watched(kube: Kube, resource: Resource, *, namespace: str, labels: str | None = None) -> AsyncIterator[tuple[WatchType, Object]]:
    """Every object that is there and every change after that, for as long as the caller listens."""
    listing = await kube.list(resource, namespace=namespace, labels=labels)
    for item in listing.items:
        yield WatchType.ADDED, item
    version = listing.resource_version
    while True:
        async for event in kube.watch(resource, namespace=namespace, labels=labels, resource_version=version):
            version = event.object["metadata"]["resourceVersion"]
            if event.type is not WatchType.BOOKMARK:
                yield event.type, event.object


async def follow_job(kube: Kube, jobs: Resource, training: Training, *, namespace: str, name: str) -> None:
    """Tell each condition of the job once, and end the training's story with its last one."""
    told: set[tuple[str, str]] = set()
    async for _, job in watched(kube, jobs, namespace=namespace):
        for condition in job.get("status", {}).get("conditions", []) if job["metadata"]["name"] == name else []:
            fact = (condition["type"], condition["status"])
            if condition["status"] == "True" and fact not in told:
                training.story.tell(f"job {condition['type']}: {condition['message']}")
                if condition["type"] in ("Succeeded", "Failed"):
                    await training.end(condition["type"])
            told.add(fact)


async def follow_events(kube: Kube, story: Story, *, namespace: str, name: str) -> None:
    """Tell what the controller reports of the job."""
    async for kind, event in watched(kube, EVENTS, namespace=namespace):
        if kind is WatchType.ADDED and event.get("involvedObject", {}).get("name") == name:
            story.tell(f"event {event['reason']}: {event['message']}")


async def follow_logs(kube: Kube, training: Training, *, namespace: str, labels: str) -> None:
    """Read the log of every worker from the moment it runs; a replaced pod of the same name is another worker."""
    followed: set[str] = set()
    async with asyncio.TaskGroup() as tasks:
        async for _, pod in watched(kube, PODS, namespace=namespace, labels=labels):
            uid = pod["metadata"]["uid"]
            if uid not in followed and pod.get("status", {}).get("phase") == "Running":
                followed.add(uid)
                tasks.create_task(_follow_log(kube, training, namespace=namespace, pod=pod["metadata"]["name"]))


async def _follow_log(kube: Kube, training: Training, *, namespace: str, pod: str) -> None:
    rest = b""
    try:
        async for chunk in kube.logs(pod, namespace=namespace, follow=True):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                await training.read(line.decode(errors="replace"))
    except KubeError as error:
        if error.code not in (0, 404):  # the pod is gone, or its node went with it
            raise
