"""`elastic resume`: starts jobs again that were under way when the laptop cluster was stopped. Also what `up` and `down` say about them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import click

from elastic.cli.options import DATA_DIR, command
from elastic.kube import connect
from elastic.kube.access import AccessError
from elastic.kube.errors import KubeError
from elastic.local.files import Layout
from elastic.local.stopped import StoredJob, stored_jobs
from elastic.local.stopped import resume as resume_job

LISTED_S = 5.0


@click.command()
@click.argument("names", nargs=-1, metavar="[JOB]...")
@click.option("--namespace", "-n", help="Only jobs of this namespace.")
@click.option(
    "--working-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
    help="Folder in which their programs start, instead of the former one.",
)
@DATA_DIR
def resume(names: tuple[str, ...], namespace: str | None, working_dir: Path | None, data_dir: Path) -> None:
    """Start jobs again that ran when the laptop cluster was stopped: those named, or all of them."""
    layout = Layout(data_dir.resolve())
    if not layout.is_running():
        raise click.ClickException(f"no cluster runs in {data_dir}; start it with `{command('up --detach', data_dir)}`")
    try:
        asyncio.run(_resume(layout.kubeconfig, set(names), namespace, str(working_dir or "")))
    except (AccessError, KubeError, OSError) as error:
        raise click.ClickException(str(error)) from error


async def _resume(kubeconfig: Path, names: set[str], namespace: str | None, working_dir: str) -> None:
    async with connect(kubeconfig) as kube:
        stopped = [job for job in await stored_jobs(kube) if job.was_stopped and namespace in (None, job.namespace)]
        if missing := names - {job.name for job in stopped}:
            there = ", ".join(job.title for job in stopped) or "none"
            raise click.ClickException(
                f"no job {' and no job '.join(sorted(missing))} was stopped with the cluster; those that were: {there}"
            )
        for job in stopped:
            if names and job.name not in names:
                continue
            if not working_dir and (types := job.without_working_dir()):
                raise click.ClickException(
                    f"{job.title}: the folder in which {types[0]} started is unknown; name one with --working-dir FOLDER"
                )
            await resume_job(kube, job, working_dir=working_dir)
            where = working_dir or ", ".join(sorted(set(job.working_dirs.values())))
            click.echo(f"{job.title} resumed" + (f" in {where}" if where else ""))


def listed(kubeconfig: Path, which: Callable[[StoredJob], bool]) -> list[str]:
    """The titles of some jobs, and nothing where the cluster does not answer in time: what was asked for goes on without."""

    async def ask() -> list[str]:
        async with asyncio.timeout(LISTED_S), connect(kubeconfig) as kube:
            return [job.title for job in await stored_jobs(kube) if which(job)]

    try:
        return asyncio.run(ask())
    except (AccessError, KubeError, OSError):
        return []
