"""Run `elastic logs`: show the lines that the training containers of a job print, each with its pod."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import click

from elastic.api.kinds import WORKER, as_owned
from elastic.api.names import pod_name as pod_name_of
from elastic.api.template import default_container
from elastic.cli.arguments import JOB, cluster_options
from elastic.cli.cluster_choice import Cluster
from elastic.cli.jobs import found
from elastic.cli.jobs.beginning import until_begun
from elastic.cli.jobs.following import followed
from elastic.cli.jobs.found import NotFound
from elastic.cli.jobs.milestone import Wait
from elastic.cli.passing import Passing
from elastic.cli.printing import colour_of, coloured, plain
from elastic.client import verbs
from elastic.client.explanation import waits_for
from elastic.client.summary import pod_state, ranks, summary
from elastic.client.verbs import Found
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.following import Happening, Line, Ranks
from elastic.kube.lines import Lines
from elastic.kube.resources import Object
from elastic.local.files import Layout
from elastic.local.kept_logs import KeptLog, KeptLogs


@click.command()
@JOB
@click.option("--follow", "-f", "follows", is_flag=True, help="Continue until the job has ended, also across restarts of its pods.")
@click.option("--rank", type=click.IntRange(min=0), help="Only of the worker that has this rank; with --follow of each that gets it.")
@click.option("--worker", "index", type=click.IntRange(min=0), help="Only of the worker with this index.")
@click.option("--pod", "pod_name", help="Only of this pod.")
@click.option("--tail", type=click.IntRange(min=0), help="Only so many last lines of each pod; with --follow, then all.")
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
    if follows and previous:
        raise click.UsageError("--follow shows the runs that are going on, and --previous the ones before; give one of them")
    printer = Printer(prefix=prefix)

    async def read(kube: Kube, namespace: str) -> None:
        job = await found.one(kube, namespace, words)
        if follows and job.bare is not None:
            begun = await until_begun(kube, job, say=_aside)
            if not isinstance(begun, Found):
                raise NotFound(f"{job.title} has no pods of ours, and so no logs; it has ended or was deleted")
            job = begun
        pods = await verbs.pods_of(kube, job)
        former = {} if previous else _former(cluster, job)
        if follows:
            wanted = _wanted(job, pods, rank=rank, index=index, pod_name=pod_name)
            printer.know(*former, *(pod["metadata"]["name"] for pod in pods))
            for name, runs in former.items() if tail is None else ():
                if wanted.has(name):
                    for text in chain.from_iterable(map(_texts, runs)):
                        printer.line(name, text)
            if cluster.data_dir is not None and tail is None:
                for one in pods:
                    if wanted.has(name := one["metadata"]["name"]) and _was_restarted(one, job):
                        await _print(kube, job, name, one, deque(), printer, tail=None, runs=(True,))
            await followed(kube, job.key, tell=lambda happening: printer.tell(happening, wanted), say=_aside, ahead=_next_line, tail=tail)
            return
        shown = chosen(job, pods, former, rank=rank, index=index, pod_name=pod_name)
        printer.know(*shown)
        if not shown and (awaited := waits_for(summary(job.kind, job.object), pods)):
            raise NotFound(f"{job.title} has no pods yet, and so no logs; it waits for {awaited}")
        if not shown:
            raise NotFound(f"{job.title} has no pods, and so no logs; runPolicy.cleanPodPolicy says whether a job that is over keeps them")
        for name, pod in shown.items():
            lines = deque[str](chain.from_iterable(map(_texts, former.get(name, ()))), maxlen=tail)
            is_whole = cluster.data_dir is not None and not previous and pod is not None and _was_restarted(pod, job)
            await _print(kube, job, name, pod, lines, printer, tail=tail, runs=(True, False) if is_whole else (previous,))

    cluster.ask(read)


def _former(cluster: Cluster, job: Found) -> dict[str, list[KeptLog]]:
    """Return the logs of runs that the API does not show any more, by the names of their pods. The laptop cluster keeps them."""
    if cluster.data_dir is None:
        return {}
    by_pod: dict[str, list[KeptLog]] = {}
    container = job.kind.container if job.kind.container_required else None
    for log in KeptLogs(Layout(cluster.data_dir).kept_logs).of(job.key.uid, container):
        by_pod.setdefault(log.pod, []).append(log)
    return by_pod


def _texts(log: KeptLog) -> Iterator[str]:
    lines = Lines()
    for piece in log.pieces():
        yield from (line.text for line in lines.of(piece) if not line.is_passing)
    yield from (line.text for line in lines.last())


def chosen(
    job: Found,
    pods: list[Object],
    former: Mapping[str, list[KeptLog]],
    *,
    rank: int | None,
    index: int | None,
    pod_name: str | None,
) -> dict[str, Object | None]:
    """Return the pods to show by name; of pods that are gone, only the name."""
    there: dict[str, Object | None] = {pod["metadata"]["name"]: pod for pod in pods}
    if index is not None:
        name = pod_name_of(as_owned(job.kind, job.object["metadata"]), job.key.name, WORKER, index)
        if name in former and name not in there:
            return {name: None}
    if rank is not None or index is not None:
        pod = verbs.worker(job, pods, index=index, rank=rank)
        return {pod["metadata"]["name"]: pod}
    shown = {**dict.fromkeys(former), **there}
    if pod_name is None:
        return shown
    if pod_name not in shown:
        raise NotFound(f"{job.title} has no pod {pod_name}; pods: {', '.join(shown) or 'none'}")
    return {pod_name: shown[pod_name]}


@dataclass(slots=True)
class Wanted:
    """The pods whose lines are shown while a job is followed: all pods, one of them, or the one that has a rank."""

    pod: str | None = None
    """Name of the only pod; None for all pods, empty for no pod yet."""
    rank: int | None = None

    def has(self, pod: str) -> bool:
        return self.pod is None or self.pod == pod

    def see(self, known: Ranks) -> str:
        """Return which pod has the rank now, in words, if that has changed."""
        if self.rank is None or not known.by_pod:
            return ""
        before, self.pod = self.pod, next((pod for pod, rank in known.by_pod.items() if rank == self.rank), "")
        return "" if self.pod == before else f"rank {self.rank} is {self.pod} now" if self.pod else f"no worker has rank {self.rank} now"


def _wanted(job: Found, pods: list[Object], *, rank: int | None, index: int | None, pod_name: str | None) -> Wanted:
    if rank is None and index is None and pod_name is None:
        return Wanted()
    if rank is not None and not ranks(job.object) and summary(job.kind, job.object).world is not None:
        return Wanted("", rank)  # its workers have not met yet
    return Wanted(next(iter(chosen(job, pods, {}, rank=rank, index=index, pod_name=pod_name))), rank)


async def _next_line(job: Found) -> Wait:
    told = summary(job.kind, job.object)
    return (
        Wait("waits for the last of its output")
        if told.is_over
        else Wait("waits for its next line", progress=f"{told.running} of {told.wanted} workers run")
    )


async def _print(
    kube: Kube, job: Found, name: str, pod: Object | None, lines: deque[str], printer: Printer, *, tail: int | None, runs: tuple[bool, ...]
) -> None:
    """Print the lines of former pods, and those of the pod if it is still there; with `tail` only the last ones of both together.

    `runs` are the runs of the pod's container to ask the API for, as values of `previous`.
    """
    remark = ""
    if pod is not None and pod["status"].get("phase") == "Pending":
        why = waits_for(summary(job.kind, job.object), [pod]) or pod_state(pod)
        remark = f"{name} has printed nothing, because it has not started; it waits for {why}" if not lines else ""
    elif pod is not None:
        try:
            for previous in runs:
                async for more in verbs.log_of(kube, pod, job.kind, tail=tail, previous=previous):
                    lines.extend(more)
                    if tail is None:
                        _flush(name, lines, printer)
        except KubeError as error:
            later = (
                f"; what it printed since its start is in `elastic logs {job.key.name}`" if runs == (True,) and error.code == 400 else ""
            )
            remark = f"{name}: {error.message}{later}"
    _flush(name, lines, printer)
    if remark:
        _aside(remark)


def _was_restarted(pod: Object, job: Found) -> bool:
    name = default_container(pod, job.kind)["name"]
    statuses = pod["status"].get("containerStatuses") or ()
    return any(status.get("name") == name and status.get("restartCount") for status in statuses)


def _flush(name: str, lines: deque[str], printer: Printer) -> None:
    while lines:
        printer.line(name, lines.popleft())


class Printer:
    """Write lines of pods, each pod in a colour of its own on a terminal."""

    def __init__(self, *, prefix: bool = True) -> None:
        self._prefix = prefix
        self._pods: list[str] = []
        self._passing = Passing()

    def know(self, *pods: str) -> None:
        self._pods += [pod for pod in pods if pod not in self._pods]

    def tell(self, happening: Happening, wanted: Wanted) -> bool:
        """Show the lines of a pod or a remark, and return whether anything was shown."""
        match happening:
            case Ranks():
                if words := wanted.see(happening):
                    _aside(words)
                return bool(words)
            case Line(pod, text, is_passing) if wanted.has(pod):
                if is_passing and not self._passing.is_due(pod, time.monotonic()):
                    return False
                self.line(pod, text)
                return True
            case _:
                return False

    def line(self, pod: str, text: str) -> None:
        self.know(pod)
        if not sys.stdout.isatty():  # a program gets the text unchanged
            click.echo(f"{pod} | {text}" if self._prefix else text, color=True)
            return
        start = coloured(f"{pod} |", colour_of(pod, self._pods)) + " " if self._prefix else ""
        click.echo(f"{start}{plain(text, keep=chr(9))}")


def _aside(text: str) -> None:
    """Print a remark apart from the lines that the user asked for."""
    click.echo(plain(text), err=True)
