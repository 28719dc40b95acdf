"""The commands `elastic scale`, `suspend`, `evict` and `delete`: changes of a job that the control plane carries out.

A job that belongs to a TrainJob is changed by its TrainJob.
"""

from __future__ import annotations

import asyncio

import click

from elastic.api.counting import counted
from elastic.cli import completion
from elastic.cli.agreement import YES, agreed
from elastic.cli.arguments import JOB, JOBS, cluster_options
from elastic.cli.cluster_choice import Cluster
from elastic.cli.jobs import found
from elastic.cli.jobs.in_files import Named, named_in
from elastic.cli.options import Seconds
from elastic.cli.outcomes import OUTPUT
from elastic.cli.outcomes import told as outcomes_of
from elastic.cli.printing import plain
from elastic.cli.silence import Silence
from elastic.client import errors, verbs
from elastic.client.summary import summary
from elastic.kube.client import Kube
from elastic.kube.nodes import NodeProblem, evict_pod

TIMEOUT = click.option(
    "--timeout", "timeout_s", type=Seconds(), metavar="TIME", default=120, show_default=True, help="Until it gives up: 120, 90s, 2m."
)


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[KIND] JOB [COUNT]", shell_complete=completion.jobs)
@click.option("--workers", "--replicas", "count", type=click.IntRange(min=0), help="COUNT: how many workers there should be.")
@OUTPUT
@cluster_options
def scale(words: tuple[str, ...], count: int | None, output: str, cluster: Cluster) -> None:
    """Change how many workers a job has: `elastic scale train 3`. Its spec says within which bounds."""
    words, workers = _with_count(words, count)

    async def write(kube: Kube, namespace: str) -> None:
        job = await found.one(kube, namespace, words)
        told = summary(job.kind, job.object)
        if workers == told.wanted and not told.is_over:
            outcomes.tell(job.key, "nothing", f"{job.title} has {counted(workers, 'worker')} already", workers=workers)
            return
        try:
            await verbs.scale(kube, job, workers)
        except errors.OutOfBounds as error:
            raise click.ClickException(f"--workers is {workers}, but {error}") from error
        said = f"{job.title} scaled from {told.wanted} to {counted(workers, 'worker')}; `elastic explain {told.name}` says what follows"
        outcomes.tell(job.key, "scaled", said, workers=workers, before=told.wanted)

    with outcomes_of(output) as outcomes:
        cluster.ask(write)


def _with_count(words: tuple[str, ...], count: int | None) -> tuple[tuple[str, ...], int]:
    """Return the words that name a job, and how many workers it should have."""
    if count is not None:
        return words, count
    if len(words) > 1 and words[-1].isdecimal():
        return words[:-1], int(words[-1])
    raise click.UsageError(f"how many workers should {words[-1]} have? Give a number: elastic scale {' '.join(words)} 3")


@click.command()
@JOBS
@OUTPUT
@cluster_options
def suspend(words: tuple[str, ...], output: str, cluster: Cluster) -> None:
    """Stop jobs and free what they use; `elastic resume` starts them again."""

    async def write(kube: Kube, namespace: str) -> None:
        for job in await found.some(kube, namespace, words):
            told, hint = summary(job.kind, job.object), f"resume it with `elastic resume {job.key.name}`"
            if not told.is_over and (job.object["spec"].get("runPolicy") or {}).get("suspend") is True:
                outcomes.tell(job.key, "nothing", f"{job.title} is suspended already; {hint}")
                continue
            await verbs.set_suspended(kube, job, is_suspended=True)
            outcomes.tell(job.key, "suspended", f"{job.title} suspended; {hint}")

    with outcomes_of(output) as outcomes:
        cluster.ask(write)


@click.command()
@click.argument("words", nargs=-1, metavar="[KIND] JOB...", shell_complete=completion.jobs)
@click.option(
    "--filename",
    "-f",
    "files",
    multiple=True,
    type=click.Path(),
    metavar="FILE",
    help="The jobs that this file or folder names. Repeatable.",
)
@click.option("--all", "all_jobs", is_flag=True, help="All jobs of the namespace, or of KIND in it; it asks first.")
@YES
@click.option("--ignore-not-found", is_flag=True, help="A job that is not there is no error.")
@click.option("--wait/--no-wait", "waits", default=True, help="Until the job and its pods are gone.")
@TIMEOUT
@OUTPUT
@cluster_options
def delete(
    words: tuple[str, ...],
    files: tuple[str, ...],
    all_jobs: bool,
    yes: bool,
    ignore_not_found: bool,
    waits: bool,
    timeout_s: float,
    output: str,
    cluster: Cluster,
) -> None:
    """Delete jobs with their pods."""
    if all_jobs and not yes and output != "table":
        raise click.UsageError("--all asks first, which no program reads; add --yes")
    kind, names = found.split(words)
    if [bool(names), all_jobs, bool(files)].count(True) != 1 or (files and words):
        raise click.UsageError("name jobs, or give --all or --filename; one of them")
    find = found.those_there if ignore_not_found else found.named

    async def write(kube: Kube, namespace: str) -> None:
        if files:
            jobs = [job for one in _in_files(files, cluster) for job in await find(kube, one.namespace or namespace, one.kind, [one.name])]
        elif not all_jobs:
            jobs = await find(kube, namespace, kind, names)
        elif not (jobs := await found.listed(kube, namespace, kind)):
            await found.check_namespace(kube, namespace)
            click.echo(f"there are no jobs in namespace {namespace}", err=True)
        elif not agreed((f"delete {job.title} with its pods" for job in jobs), yes=yes, is_shown=output == "table"):
            return
        for job in jobs:
            await verbs.delete(kube, job)
            outcomes.tell(job.key, "deleted", f"{job.title} deleted")
        try:
            async with asyncio.timeout(timeout_s):
                for job in jobs if waits else ():
                    await until_gone(kube, job, and_pods=True)
        except TimeoutError:
            raise click.ClickException(
                f"not gone after {timeout_s:.0f} s; `elastic describe` and `kubectl get pods` show what is left"
            ) from None

    with outcomes_of(output) as outcomes:
        cluster.ask(write)


def _in_files(files: tuple[str, ...], cluster: Cluster) -> list[Named]:
    named, others = named_in(files)
    for job in named:
        if cluster.namespace is not None and job.namespace not in (None, cluster.namespace):
            raise click.ClickException(
                f"{job.kind.name} {job.name} is of namespace {job.namespace} by its file, and --namespace is {cluster.namespace}"
            )
    if others:
        click.echo(f"{others} other object(s) of the file(s) stay; `kubectl delete -f` deletes those", err=True)
    return named


async def until_gone(kube: Kube, job: verbs.Found, *, and_pods: bool = False) -> None:
    """Wait until a job is gone, and say what is left if that takes long."""
    loop = asyncio.get_running_loop()
    silence = Silence(loop.time())

    def waits(words: str) -> None:
        if silence.is_to_say(words, loop.time()):
            click.echo(plain(f"waits for {words} to be gone"), err=True)

    await verbs.until_gone(kube, job, and_pods=and_pods, waits=waits)


@click.command()
@JOB
@click.option("--worker", "index", type=click.IntRange(min=0), help="The worker with this index.")
@click.option("--rank", type=click.IntRange(min=0), help="The worker with this rank.")
@TIMEOUT
@OUTPUT
@cluster_options
def evict(words: tuple[str, ...], index: int | None, rank: int | None, timeout_s: float, output: str, cluster: Cluster) -> None:
    """Evict a worker, as a drain of its node does; an elastic job trains on and replaces it."""
    if (index is None) == (rank is None):
        raise click.UsageError("name the worker to evict with --worker INDEX or --rank RANK")

    async def write(kube: Kube, namespace: str) -> None:
        job = await found.one(kube, namespace, words)
        told = summary(job.kind, job.object)
        if told.is_over:
            raise click.ClickException(f"{job.title} has ended ({told.state.lower()}); its pods stay for their logs until it is deleted")
        pod = verbs.worker(job, await verbs.pods_of(kube, job), index=index, rank=rank)
        try:
            async with asyncio.timeout(timeout_s):
                await evict_pod(kube, pod, outcomes.say)
            outcomes.tell(job.key, "evicted", "", pod=pod["metadata"]["name"])
        except TimeoutError:
            raise click.ClickException(f"pod {pod['metadata']['name']} is not gone after {timeout_s:.0f} s") from None
        except NodeProblem as error:
            raise click.ClickException(str(error)) from error

    with outcomes_of(output) as outcomes:
        cluster.ask(write)
