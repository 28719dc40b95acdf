"""Run `elastic stacks`: show what each rank of a job does now, with its Python stacks.

The command runs elastic_worker.stacks in the job's pods with the caller's own rights.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from elastic.api.template import default_container
from elastic.cli.arguments import JOB, cluster_options
from elastic.cli.cluster_choice import Cluster
from elastic.cli.jobs import found
from elastic.cli.jobs.found import NotFound
from elastic.cli.printing import as_data, output_option, plain
from elastic.client import verbs
from elastic.client.summary import pod_state, rank_of, summary
from elastic.client.verbs import Found
from elastic.kube import executing
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.processes import processes_per_worker
from elastic.kube.resources import Object

WITHIN_S = 40.0
"""Seconds for each pod. A process may take some to show its stacks, and a busy node more to start the command."""
AT_ONCE = 16
MOST_BYTES = 16 * 1024 * 1024
NO_LIBRARY = 120
COMMAND = f"""\
PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}$ELASTIC_LIBRARY"
export PYTHONPATH
for python in python3 python /proc/1/exe; do
  "$python" -c 'import sys
from importlib.util import find_spec
sys.exit(sys.version_info < (3, 9) or find_spec("elastic_worker.stacks") is None)' 2>/dev/null || continue
  exec "$python" -m elastic_worker.stacks --json "$@"
done
exit {NO_LIBRARY}
"""
"""Read the stacks with our library, which is in the pod's volume or image. The command does not inherit the wrapper's PYTHONPATH."""
MISSING = "its container has no Python with elastic_worker.stacks; use a worker image of this release"


@dataclass(frozen=True, slots=True)
class Read:
    """The answer of one pod."""

    pod: str
    workers: Sequence[dict[str, Any]] = ()
    trouble: str = ""
    """Why the pod has no answer."""


@click.command()
@JOB
@click.option("--rank", type=click.IntRange(min=0), help="Only the process with this rank.")
@output_option()
@cluster_options
def stacks(words: tuple[str, ...], rank: int | None, output: str, cluster: Cluster) -> None:
    """Show what each rank of a job does now, with its Python stacks."""

    async def read(kube: Kube, namespace: str) -> list[Read]:
        job = await found.one(kube, namespace, words)
        pods = _chosen(job, await verbs.pods_of(kube, job), rank)
        room = asyncio.Semaphore(AT_ONCE)

        async def one(pod: Object) -> Read:
            async with room:
                return await _read(kube, job, pod, rank)

        return list(await asyncio.gather(*(one(pod) for pod in pods)))

    answers = cluster.ask(read)
    rows = sorted(({"pod": answer.pod, **row} for answer in answers for row in answer.workers), key=lambda row: row["rank"])
    troubles = {answer.pod: answer.trouble for answer in answers if answer.trouble}
    if output != "table":
        click.echo(as_data({"workers": rows, "troubles": troubles}, output))
    else:
        click.echo("\n\n".join(map(_text, rows)), nl=bool(rows))
    for pod, trouble in troubles.items():
        click.echo(plain(f"{pod}: {trouble}"), err=True)
    if not rows:
        raise NotFound("no stacks were read" if rank is None or troubles else f"no process has rank {rank} now")


def _chosen(job: Found, pods: list[Object], rank: int | None) -> list[Object]:
    """Return the pods that may have the process with this rank; all that run if the rank is None."""
    if summary(job.kind, job.object).is_over:
        raise NotFound(f"{job.title} has ended, so none of its processes run; see `elastic logs {job.key.name}`")
    running = [pod for pod in pods if (pod.get("status") or {}).get("phase") == "Running"]
    if not running:
        states = ", ".join(f"{pod['metadata']['name']} {pod_state(pod)}" for pod in pods)
        raise NotFound(f"no pod of {job.title} runs" + (f": {states}" if states else ""))
    per_pod = processes_per_worker(job.object.get("spec") or {})
    if rank is None or per_pod is None or all(rank_of(pod, job.object) is None for pod in running):
        return running
    return [verbs.worker(job, running, index=None, rank=rank // per_pod)]


async def _read(kube: Kube, job: Found, pod: Object, rank: int | None) -> Read:
    metadata = pod["metadata"]
    name, pod_rank = metadata["name"], rank_of(pod, job.object)
    options = [] if pod_rank is None else ["--pod-rank", str(pod_rank)]
    options += [] if rank is None else ["--rank", str(rank)]
    container = default_container(pod, job.kind)["name"]
    try:
        ended = await executing.run(
            kube,
            name,
            ["sh", "-c", COMMAND, "stacks", *options],
            namespace=metadata["namespace"],
            container=container,
            timeout_s=WITHIN_S,
            most_bytes=MOST_BYTES,
        )
    except KubeError as error:
        return Read(name, trouble=error.message)
    answer = _answer(name, ended)
    if not (answer.workers or answer.trouble) and rank is None:
        return Read(name, trouble="no training process of torchrun runs in its container")
    return answer


def _answer(pod: str, ended: executing.Ended) -> Read:
    """Return what the command in a pod printed, or why it failed."""
    if ended.status == NO_LIBRARY:
        return Read(pod, trouble=MISSING)
    if ended.trouble or ended.status:
        said = ended.trouble or (ended.errors.strip().splitlines() or [f"the command ended with status {ended.status}"])[-1]
        return Read(pod, trouble=said[:500])
    try:
        rows = [_row(fields) for fields in json.loads(ended.output)["workers"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Read(pod, trouble="the answer of its container cannot be read")
    return Read(pod, rows)


def _row(fields: dict[str, Any]) -> dict[str, Any]:
    """Return one worker's fields with the promised names and types, even if the container's answer has others."""
    texts = {name: str(fields.get(name) or "") for name in ("kind", "does", "place", "code", "stacks")}
    pid = fields.get("pid")
    return {"rank": int(fields["rank"]), "pid": pid if isinstance(pid, int) else None, "cpu": float(fields.get("cpu") or 0.0), **texts}


def _text(row: dict[str, Any]) -> str:
    at = f" at {row['place']}" if row["place"] else ""
    code = f": `{row['code']}`" if row["code"] else ""
    title = f"rank {row['rank']} ({row['pod']}, process {row['pid']} in its container) {row['does']}{at}{code}"
    return plain(title) + "\n" + plain(row["stacks"], keep="\n")
