"""`elastic logs`: what the training containers of a job print, each line with its pod."""

from __future__ import annotations

import sys
from collections import deque

import click

from elastic.api.template import default_container
from elastic.cli.cluster_choice import Cluster, cluster_options
from elastic.cli.jobs import found
from elastic.cli.jobs.change import worker
from elastic.cli.jobs.following import followed
from elastic.cli.jobs.found import Found, NotFound
from elastic.cli.printing import colour_of, coloured, plain
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.following import Happening, Line
from elastic.kube.lines import Lines
from elastic.kube.resources import Object


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[KIND] JOB")
@click.option("--follow", "-f", "follows", is_flag=True, help="Go on until the job is over, over restarts of its pods.")
@click.option("--rank", type=click.IntRange(min=0), help="Only of the worker that has this rank now.")
@click.option("--worker", "index", type=click.IntRange(min=0), help="Only of the worker with this index.")
@click.option("--pod", "pod_name", help="Only of this pod.")
@click.option("--tail", type=click.IntRange(min=0), help="Only so many last lines of each pod.")
@click.option("--previous", "-p", is_flag=True, help="Of the run before the last restart of the container.")
@click.option("--prefix/--no-prefix", default=True, help="Each line with its pod's name.")
@cluster_options
def logs(
    words: tuple[str, ...],
    follows: bool,
    rank: int | None,
    index: int | None,
    pod_name: str | None,
    tail: int | None,
    previous: bool,
    prefix: bool,
    cluster: Cluster,
) -> None:
    """Show what a job's training containers print."""
    if sum(choice is not None for choice in (rank, index, pod_name)) > 1:
        raise click.UsageError("--rank, --worker and --pod each name one pod; give one of them")
    if follows and (previous or tail is not None):
        raise click.UsageError("--follow shows everything from the beginning; leave --previous and --tail out")
    printer = Printer(prefix=prefix)

    async def read(kube: Kube, namespace: str) -> None:
        job = await found.one(kube, namespace, words)
        pods = chosen(job, await found.pods_of(kube, job), rank=rank, index=index, pod_name=pod_name)
        one = pods[0]["metadata"]["name"] if rank is not None or index is not None or pod_name is not None else None
        printer.know(*(pod["metadata"]["name"] for pod in pods))
        if follows:
            await followed(kube, job.key, tell=lambda happening: printer.tell(happening, only=one), say=_aside)
            return
        if not pods:
            raise NotFound(f"{job.title} has no pods, and so no logs; runPolicy.cleanPodPolicy says whether a job that is over keeps them")
        for pod in pods:
            await _print(kube, job, pod, printer, tail=tail, previous=previous)

    cluster.ask(read)


def chosen(job: Found, pods: list[Object], *, rank: int | None, index: int | None, pod_name: str | None) -> list[Object]:
    if rank is not None or index is not None:
        return [worker(job, pods, index=index, rank=rank)]
    if pod_name is None:
        return pods
    named = [pod for pod in pods if pod["metadata"]["name"] == pod_name]
    if not named:
        raise NotFound(f"{job.title} has no pod {pod_name}; pods: {', '.join(pod['metadata']['name'] for pod in pods) or 'none'}")
    return named


async def _print(kube: Kube, job: Found, pod: Object, printer: Printer, *, tail: int | None, previous: bool) -> None:
    metadata = pod["metadata"]
    container = default_container(pod, job.kind)["name"]
    lines, kept = Lines(), deque[str](maxlen=tail)
    try:
        async for chunk in kube.logs(metadata["name"], namespace=metadata["namespace"], container=container, previous=previous):
            for line in lines.of(chunk):
                if tail is None:
                    printer.line(metadata["name"], line)
                else:
                    kept.append(line)
    except KubeError as error:
        later = f"; what it printed since its start is in `elastic logs {job.key.name}`" if previous and error.code == 400 else ""
        _aside(f"{metadata['name']}: {error.message}{later}")
        return
    kept.extend(lines.last())
    for line in kept:
        printer.line(metadata["name"], line)


class Printer:
    """Writes lines of pods, each pod in a colour of its own on a terminal."""

    def __init__(self, *, prefix: bool = True) -> None:
        self._prefix = prefix
        self._pods: list[str] = []

    def know(self, *pods: str) -> None:
        self._pods += [pod for pod in pods if pod not in self._pods]

    def tell(self, happening: Happening, *, only: str | None) -> None:
        if isinstance(happening, Line) and only in (None, happening.pod):
            self.line(happening.pod, happening.text)

    def line(self, pod: str, text: str) -> None:
        self.know(pod)
        if not sys.stdout.isatty():  # what a program reads is passed on as it came
            click.echo(f"{pod} | {text}" if self._prefix else text, color=True)
            return
        start = coloured(f"{pod} |", colour_of(pod, self._pods)) + " " if self._prefix else ""
        click.echo(f"{start}{plain(text, keep=chr(9))}")


def _aside(text: str) -> None:
    """Beside what was asked for."""
    click.echo(plain(text), err=True)
