"""The command `elastic resume` starts suspended jobs again, and on the laptop also jobs that ran when the cluster was stopped.

`up` and `down` say from here which jobs these are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import click

from elastic.cli import completion
from elastic.cli.arguments import cluster_options
from elastic.cli.cluster_choice import Cluster
from elastic.cli.jobs import found
from elastic.cli.outcomes import OUTPUT, Outcomes, told
from elastic.client import verbs
from elastic.kube.access import AccessError
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.local.stopped import StoredJob, stored_jobs
from elastic.local.stopped import resume as resume_job

LISTED_S = 5.0


@click.command()
@click.argument("words", nargs=-1, metavar="[KIND] [JOB]...", shell_complete=completion.jobs)
@click.option(
    "--working-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
    help="On the laptop, the folder in which their programs start, instead of the former one.",
)
@OUTPUT
@cluster_options
def resume(words: tuple[str, ...], working_dir: Path | None, output: str, cluster: Cluster) -> None:
    """Start suspended jobs again. Without a JOB, all that ran when the laptop cluster was stopped."""

    async def write(kube: Kube, namespace: str) -> None:
        kind, names = found.split(words)
        if not names:
            for job in await _stopped(kube, cluster.namespace):
                await _resume_stopped(kube, job, str(working_dir or ""), outcomes)
            return
        for one in await found.named(kube, namespace, kind, names):
            job = StoredJob(one.kind, one.object)
            if job.was_stopped:
                await _resume_stopped(kube, job, str(working_dir or ""), outcomes)
            elif job.is_suspended:
                await verbs.set_suspended(kube, one, is_suspended=False)
                outcomes.tell(job, "resumed", f"{job.title} resumed")
            else:
                outcomes.tell(job, "nothing", f"{job.title} is not suspended")

    with told(output) as outcomes:
        cluster.ask(write)


async def _stopped(kube: Kube, namespace: str | None) -> list[StoredJob]:
    jobs = [job for job in await stored_jobs(kube) if namespace in (None, job.namespace)]
    stopped = [job for job in jobs if job.was_stopped]
    if not stopped:
        suspended = [job.title for job in jobs if job.is_suspended]
        hint = f"; suspended by their users: {', '.join(suspended)}; name the one to resume" if suspended else ""
        raise click.ClickException(f"no job was stopped with the cluster{hint}")
    return stopped


async def _resume_stopped(kube: Kube, job: StoredJob, working_dir: str, outcomes: Outcomes) -> None:
    if not working_dir and (types := job.without_working_dir()):
        raise click.ClickException(f"{job.title}: the folder in which {types[0]} started is unknown; name one with --working-dir FOLDER")
    await resume_job(kube, job, working_dir=working_dir)
    where = working_dir or ", ".join(sorted(set(job.working_dirs.values())))
    outcomes.tell(job, "resumed", f"{job.title} resumed" + (f" in {where}" if where else ""), workingDir=where)


def listed(kubeconfig: Path, which: Callable[[StoredJob], bool]) -> list[str]:
    """Return the titles of some jobs, or none if the cluster does not answer in time: the command goes on without them."""

    async def ask(kube: Kube, namespace: str) -> list[str]:
        async with asyncio.timeout(LISTED_S):
            return [job.title for job in await stored_jobs(kube) if which(job)]

    try:
        return Cluster(kubeconfig).ask(ask)
    except (AccessError, KubeError, OSError):
        return []
