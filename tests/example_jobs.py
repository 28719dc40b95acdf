"""Run a job of examples/ on a laptop cluster to its end. The environments that scripts/frameworks makes stand for images."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from grounds import Ground

from elastic.api.kinds import KINDS, TORCH_NODES
from elastic.kube import connect
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import EVENTS, PERSISTENT_VOLUME_CLAIMS, PODS, TRAIN_JOBS, Resource
from elastic.local import LocalCluster

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / ".cache" / "frameworks"
NAMESPACE = "default"
LOOK_EVERY_S = 0.2
OVER = ("Succeeded", "Failed", "Complete")
Meanwhile = Callable[[Kube], Awaitable[None]]


@dataclass(frozen=True)
class Outcome:
    state: str
    """Succeeded or Failed, or a TrainJob's Complete; empty if the job did not end in time."""
    logs: Mapping[str, str]
    """Logs of the training container of each pod that still exists."""
    restarts: Mapping[str, int]
    """Number of restarts of this container, for each of these pods."""
    elastic: Mapping[str, Any]
    """status.elastic at the end."""
    story: str
    """Everything that helps to understand a failure."""

    def log_of_any(self, text: str) -> str:
        return next((log for log in self.logs.values() if text in log), "")


def is_made(name: str) -> bool:
    """Return whether a framework's environment is there, made from the present pins."""
    pins, made_from = ROOT / "examples" / "requirements" / f"{name}.txt", ENVIRONMENTS / name / "made-from.txt"
    return made_from.exists() and made_from.read_text() == pins.read_text()


def environment(name: str) -> Path:
    """Return the folder of a framework's environment; skip the test if it has not been made."""
    if not is_made(name):
        pytest.skip(f"no environment with {name}; make it with: scripts/frameworks {name}")
    return ENVIRONMENTS / name


@contextlib.contextmanager
def laptop(ground: Ground, *frameworks: str, **options: Any) -> Iterator[LocalCluster]:
    """Start a cluster in which the environments of these frameworks, if they are made, stand for the examples' images."""
    images = {f"example.com/{name}": environment(name) for name in frameworks if is_made(name)}
    with TemporaryDirectory() as folder, contextlib.chdir(ROOT), ground.cluster(Path(folder), images=images, **options) as cluster:
        # Examples name their files from the repository's root, where their reader stands.
        yield cluster


def read(example: str) -> dict[str, Any]:
    return next(document for document in documents(example) if document["kind"] in KINDS)


def documents(example: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / "examples" / example / "job.yaml").read_text()))


async def claim_volumes(kube: Kube, example: str) -> None:
    """Create the claims of an example's file."""
    for document in documents(example):
        if document["kind"] == PERSISTENT_VOLUME_CLAIMS.kind:
            await kube.create(PERSISTENT_VOLUME_CLAIMS, document, namespace=NAMESPACE)


def resource(job: Mapping[str, Any]) -> Resource:
    return TRAIN_JOBS if job["kind"] == TRAIN_JOBS.kind else Resource("kubeflow.org", "v1", KINDS[job["kind"]].plural, kind=job["kind"])


def run_to_end(
    cluster: LocalCluster, job: Mapping[str, Any], *, within_s: float, framework: str = "", meanwhile: Meanwhile | None = None
) -> Outcome:
    """Create the job, wait until it has ended, and gather the logs of its pods; skip the test if its framework is not there.

    `meanwhile` runs next to the job.
    """
    if framework:
        environment(framework)
    return asyncio.run(_run_to_end(cluster, dict(job), within_s=within_s, meanwhile=meanwhile))


async def _run_to_end(cluster: LocalCluster, job: dict[str, Any], *, within_s: float, meanwhile: Meanwhile | None) -> Outcome:
    name = job["metadata"]["name"]
    async with connect(cluster.kubeconfig) as kube:
        await kube.create(resource(job), job, namespace=NAMESPACE)
        deadline = time.monotonic() + within_s
        if meanwhile is not None:
            with contextlib.suppress(TimeoutError):  # the job's story says more
                async with asyncio.timeout(within_s):
                    await meanwhile(kube)
        while not (state := _state(seen := await kube.get(resource(job), name, namespace=NAMESPACE))):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(LOOK_EVERY_S)
        pods = (await kube.list(PODS, namespace=NAMESPACE, labels=f"training.kubeflow.org/job-name={name}")).items
        container = TORCH_NODES.container if job["kind"] == TRAIN_JOBS.kind else KINDS[job["kind"]].container
        logs = {pod["metadata"]["name"]: await log_of(kube, pod["metadata"]["name"], container) for pod in pods}
        events = [event for event in (await kube.list(EVENTS, namespace=NAMESPACE)).items if name in event["involvedObject"]["name"]]
        story = [f"{name}: {seen.get('status')}", *(f"{event['reason']}: {event['message']}" for event in events)]
        story += [f"--- {pod['metadata']['name']} {pod['status'].get('phase')}\n{logs[pod['metadata']['name']][-3000:]}" for pod in pods]
        restarts = {pod["metadata"]["name"]: _restarts(pod) for pod in pods}
        return Outcome(state, logs, restarts, (seen.get("status") or {}).get("elastic") or {}, "\n".join(story))


def _state(job: Mapping[str, Any]) -> str:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return next((entry["type"] for entry in conditions if entry["type"] in OVER and entry["status"] == "True"), "")


def _restarts(pod: Mapping[str, Any]) -> int:
    return sum(status["restartCount"] for status in (pod.get("status") or {}).get("containerStatuses") or ())


async def log_of(kube: Kube, pod: str, container: str) -> str:
    """Return the log of a pod's container; it is empty before the container has run, and if the pod is gone."""
    try:
        chunks = [chunk async for chunk in kube.logs(pod, namespace=NAMESPACE, container=container)]
    except KubeError as error:
        if error.code in (400, 404):
            return ""
        raise
    return b"".join(chunks).decode(errors="replace")
