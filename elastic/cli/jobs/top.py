"""The command `elastic top`, which shows the usage of each worker of a job, and how far training is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from elastic.cli import completion, screen
from elastic.cli.arguments import EVERYWHERE, cluster_options
from elastic.cli.cluster_choice import Cluster
from elastic.cli.jobs import found
from elastic.cli.jobs.live import dashboard_option, live
from elastic.cli.jobs.look import world_of
from elastic.cli.jobs.watching import watch
from elastic.cli.printing import as_data, output_option, plain, table
from elastic.client import verbs
from elastic.client.ages import duration
from elastic.client.sample import Sample, shortened
from elastic.client.summary import pod_state, rank_of, summary
from elastic.client.verbs import Found
from elastic.kube.client import Kube
from elastic.kube.pod_usage import PodUsage, place, pod_usage
from elastic.kube.resources import Object

NO_METRICS = "CPU and memory are unknown: this cluster serves no metrics.k8s.io (install metrics-server)"
MIB = 1 << 20
NOT_IN_WORDS = ("job", "kind", "unit", "hang", "stragglers", "failedSaves")


@dataclass(frozen=True, slots=True)
class Seen:
    """The jobs, their pods and their usage at one moment."""

    jobs: Sequence[tuple[Found, Sequence[Object]]]
    """The jobs with their pods."""
    usage: Mapping[str, PodUsage] | None
    """The usage by pod; None if the cluster does not measure it."""
    samples: Mapping[str, Sample]
    warnings: Sequence[str]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of jobs that are not over, because a finished job uses nothing."""
        going = [(job, pods) for job, pods in self.jobs if not summary(job.kind, job.object).is_over]
        return [row for job, pods in going for row in rows_of(job, pods, self.usage or {})]

    @property
    def progress(self) -> list[dict[str, Any]]:
        return [progress_of(job, self.samples.get(job.key.uid)) for job, _ in self.jobs]

    @property
    def notes(self) -> list[str]:
        """Remarks about unknown facts and their reasons."""
        return [*self.warnings, *([] if self.rows else ["no pods"]), *([NO_METRICS] if self.usage is None else [])]


@click.command()
@click.argument("words", nargs=-1, metavar="[KIND] [JOB]...", shell_complete=completion.jobs)
@EVERYWHERE
@click.option("--watch", "-w", "watches", is_flag=True, help="Show it again every two seconds, until Ctrl-C.")
@output_option()
@dashboard_option
@cluster_options
def top(words: tuple[str, ...], everywhere: bool, watches: bool, output: str, url: str | None, cluster: Cluster) -> None:
    """Show CPU and memory of the workers of jobs, and how far training is."""
    kind, names = found.split(words)

    async def read(kube: Kube, namespace: str) -> Seen:
        where = None if everywhere else namespace
        jobs = await (found.named(kube, where, kind, names) if names else found.listed(kube, where, kind))
        if not jobs and where is not None:
            await found.check_namespace(kube, where)
        pods = [(job, await verbs.pods_of(kube, job)) for job in jobs]
        warnings: list[str] = []
        return Seen(pods, await pod_usage(kube, where), await live(kube, cluster, url, warn=warnings.append), warnings)

    if watches:
        if output != "table" or not screen.is_there():
            raise click.UsageError("--watch draws on a terminal; without it the same is printed once")

        async def drawn(kube: Kube, namespace: str) -> str:
            now = await read(kube, namespace)
            return "\n".join([*lines_of(now), *now.notes])

        watch(cluster, drawn)
        return
    seen = cluster.ask(read)
    if output != "table":
        click.echo(as_data({"jobs": seen.progress, "workers": seen.rows}, output))
        return
    if text := "\n".join(lines_of(seen)):
        click.echo(text)
    for note in seen.notes:
        click.echo(note, err=True)


def lines_of(seen: Seen) -> Iterator[str]:
    """Yield the lines, with the progress of training first, because a small terminal cuts off the rest."""
    headers = ("JOB", "POD", "RANK", "STATE", "NODE", "CPU", "MEMORY")
    for (job, _), progress in zip(seen.jobs, seen.progress, strict=True):
        if facts := _in_words(progress, seen.samples.get(job.key.uid)):
            yield plain(f"{job.title}: {facts}")
        told = summary(job.kind, job.object)
        if waits := told.awaits(datetime.now(UTC)):
            yield plain(f"{job.title} waits for {waits}")
    if seen.rows:
        yield table(headers, [[_cell(row[name.lower()], name) for name in headers] for row in seen.rows])


def rows_of(job: Found, pods: Sequence[Object], usage: Mapping[str, PodUsage]) -> list[dict[str, Any]]:
    """Return one row for each pod, with CPU in cores and memory in bytes, or None if they are not measured."""
    rows = []
    for pod in pods:
        name = str(pod["metadata"]["name"])
        used = usage.get(place(pod))
        rows.append(
            {
                "job": job.key.name,
                "pod": name,
                "rank": rank_of(pod, job.object),
                "state": pod_state(pod),
                "node": (pod.get("spec") or {}).get("nodeName"),
                "cpu": used.cpu if used is not None else None,
                "memory": used.memory if used is not None else None,
            }
        )
    return rows


def progress_of(job: Found, sample: Sample | None) -> dict[str, Any]:
    """Return the newest progress, and the autoscaler's measures at its last decision. Without a sample, the step is of the last restart."""
    told = summary(job.kind, job.object)
    newest = sample or Sample(uid="")
    return {
        "job": told.name,
        "kind": told.kind.title,
        "world": world_of(told, sample),
        "step": told.step if newest.step is None else newest.step,
        "steppedAt": newest.stepped_at or None,
        "speed": newest.rate,
        "unit": f"{newest.unit}/s" if newest.rate is not None else None,
        "loss": newest.loss,
        "progressPercent": newest.percent,
        "remainingSeconds": newest.remaining_s,
        "throughput": told.autoscaler.get("throughput"),
        "efficiencyPercent": told.autoscaler.get("efficiencyPercent"),
        "hang": dict(told.hang) or None,
        "stragglers": [dict(one) for one in told.stragglers] or None,
        "failedSaves": [dict(one) for one in told.failed_saves] or None,
    }


def _in_words(progress: Mapping[str, Any], sample: Sample | None) -> str:
    facts = {name: value for name, value in progress.items() if name not in NOT_IN_WORDS and value is not None}
    if (percent := facts.pop("progressPercent", None)) is not None:
        facts["progress"] = f"{percent} %"
    if (left_s := facts.pop("remainingSeconds", None)) is not None:
        facts["remaining"] = duration(left_s)
    facts.pop("steppedAt", None)
    if sample is not None and sample.stepped_ago:
        facts["step"] = sample.last_step
    for name in ("speed", "loss"):
        if name in facts:
            facts[name] = shortened(facts[name])
    if "speed" in facts:
        facts["speed"] += f" {progress['unit']}"
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _cell(value: Any, name: str) -> str:
    if value is None:
        return "-"
    if name == "CPU":
        return f"{value * 1000:.0f}m"
    return f"{value / MIB:.0f}Mi" if name == "MEMORY" else str(value)
