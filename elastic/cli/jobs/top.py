"""`elastic top`: what each worker of a job uses, and how far training is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from elastic.api.names import JOB_NAME
from elastic.cli.cluster_choice import Cluster, cluster_options
from elastic.cli.jobs import found
from elastic.cli.jobs.found import Found
from elastic.cli.jobs.live import dashboard_option, live
from elastic.cli.jobs.look import world_of
from elastic.cli.printing import as_data, output_option, plain, table
from elastic.client.sample import Sample, shortened
from elastic.client.summary import pod_state, rank_of, summary
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.quantity import parse
from elastic.kube.resources import Object, Resource

POD_METRICS = Resource("metrics.k8s.io", "v1beta1", "pods", kind="PodMetrics")
NO_METRICS = "CPU and memory are unknown: this cluster serves no metrics.k8s.io (install metrics-server)"
MIB = 1 << 20


@click.command()
@click.argument("words", nargs=-1, metavar="[KIND] [JOB]...")
@output_option()
@dashboard_option
@cluster_options
def top(words: tuple[str, ...], output: str, url: str | None, cluster: Cluster) -> None:
    """Show CPU and memory of the workers of jobs, and how far training is."""
    kind, names = found.split(words)

    async def read(kube: Kube, namespace: str) -> tuple[list[tuple[Found, list[Object]]], dict[str, Object] | None, dict[str, Sample]]:
        jobs = await (found.named(kube, namespace, kind, names) if names else found.jobs(kube, namespace, [kind] if kind else None))
        pods = [(job, await found.pods_of(kube, job)) for job in jobs]
        return pods, await _usage(kube, namespace), await live(kube, cluster, url)

    jobs, usage, samples = cluster.ask(read)
    rows = [row for job, pods in jobs for row in rows_of(job, pods, usage or {})]
    if output != "table":
        click.echo(as_data({"jobs": [progress_of(job, samples.get(job.key.uid)) for job, _ in jobs], "workers": rows}, output))
        return
    headers = ("JOB", "POD", "RANK", "STATE", "NODE", "CPU", "MEMORY")
    if rows:
        click.echo(table(headers, [[_cell(row[name.lower()], name) for name in headers] for row in rows]))
    else:
        click.echo("no pods", err=True)
    for job, _ in jobs:
        if facts := _in_words(progress_of(job, samples.get(job.key.uid))):
            click.echo(plain(f"{job.title}: {facts}"))
    if usage is None:
        click.echo(NO_METRICS, err=True)


async def _usage(kube: Kube, namespace: str) -> dict[str, Object] | None:
    """What is measured of each pod; None where nobody measures."""
    try:
        listed = (await kube.list(POD_METRICS, namespace=namespace, labels=JOB_NAME)).items
    except KubeError as error:
        if error.code in (403, 404, 503):
            return None
        raise
    return {str(item["metadata"]["name"]): item for item in listed}


def rows_of(job: Found, pods: Sequence[Object], usage: Mapping[str, Object]) -> list[dict[str, Any]]:
    """One row for each pod; CPU in cores, memory in bytes, None where it is not measured."""
    rows = []
    for pod in pods:
        name = str(pod["metadata"]["name"])
        containers = usage.get(name, {}).get("containers") or []
        rows.append(
            {
                "job": job.key.name,
                "pod": name,
                "rank": rank_of(pod, job.object),
                "state": pod_state(pod),
                "node": (pod.get("spec") or {}).get("nodeName"),
                "cpu": _sum(containers, "cpu"),
                "memory": _sum(containers, "memory"),
            }
        )
    return rows


def _sum(containers: Sequence[Object], resource: str) -> float | None:
    amounts = [str((container.get("usage") or {}).get(resource, "0")) for container in containers]
    return float(sum(parse(amount) for amount in amounts)) if containers else None


def progress_of(job: Found, sample: Sample | None) -> dict[str, Any]:
    """What was heard last, and what the autoscaler measured at its last decision. Without a sample, the step of the last restart."""
    told = summary(job.kind, job.object)
    newest = sample or Sample(uid="")
    return {
        "job": told.name,
        "kind": told.kind.name,
        "world": world_of(told, sample),
        "step": told.step if newest.step is None else newest.step,
        "speed": newest.rate,
        "unit": f"{newest.unit}/s" if newest.rate is not None else None,
        "loss": newest.loss,
        "throughput": told.autoscaler.get("throughput"),
        "efficiencyPercent": told.autoscaler.get("efficiencyPercent"),
    }


def _in_words(progress: Mapping[str, Any]) -> str:
    facts = {name: value for name, value in progress.items() if name not in ("job", "kind", "unit") and value is not None}
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
