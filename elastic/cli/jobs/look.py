"""The commands `elastic get`, `describe`, `events` and `top`, which show the present state once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from elastic.api.kinds import TRAIN_JOBS
from elastic.cli import completion, screen
from elastic.cli.arguments import EVERYWHERE, JOBS, cluster_options
from elastic.cli.cluster_choice import Cluster
from elastic.cli.jobs import found
from elastic.cli.jobs.live import dashboard_option, live
from elastic.cli.jobs.watching import watch
from elastic.cli.printing import STATES, as_data, coloured, output_option, plain, table
from elastic.client import verbs
from elastic.client.ages import age
from elastic.client.sample import Sample, shortened
from elastic.client.summary import Summary, conditions_of, pod_restarts, pod_state, rank_of, summary
from elastic.client.verbs import Found
from elastic.kube.client import Kube
from elastic.kube.resources import TRAIN_JOBS as TRAIN_JOB_RESOURCE
from elastic.kube.resources import Object

LATEST_EVENTS = 15
DATA = ("json", "yaml")


@click.command()
@click.argument("words", nargs=-1, metavar="[KIND] [JOB]...", shell_complete=completion.jobs)
@EVERYWHERE
@click.option("--selector", "-l", "labels", metavar="LABELS", help="Those with these labels, as kubectl takes them: team=a,tier!=test.")
@click.option("--watch", "-w", "watches", is_flag=True, help="Show it again every two seconds, until Ctrl-C.")
@output_option("wide", "name")
@dashboard_option
@cluster_options
def get(
    words: tuple[str, ...], everywhere: bool, labels: str | None, watches: bool, output: str, url: str | None, cluster: Cluster
) -> None:
    """Show jobs of all kinds, or those named."""
    kind, names = found.split(words)
    if names and labels is not None:
        raise click.UsageError("name jobs or give --selector, and not both")
    if watches and (output not in ("table", "wide") or not screen.is_there()):
        raise click.UsageError("--watch draws on a terminal; without it the same is printed once")

    async def read(kube: Kube, namespace: str) -> tuple[list[Found], dict[str, Sample]]:
        where = None if everywhere else namespace
        if names:
            listed = await found.named(kube, where, kind, names)
        else:
            listed = await found.listed(kube, where, kind, labels=labels)
        if not listed and not everywhere:
            await found.check_namespace(kube, namespace)
        if output in DATA:
            listed = await found.with_train_jobs(kube, where, listed)
        return listed, await live(kube, cluster, url) if listed and output in ("table", "wide") else {}

    async def drawn(kube: Kube, namespace: str) -> str:
        listed, samples = await read(kube, namespace)
        return jobs_table(listed, samples, with_namespace=everywhere, is_wide=output == "wide") if listed else "there are no jobs"

    if watches:
        watch(cluster, drawn)
        return
    there, samples = cluster.ask(read)
    if output in DATA:
        objects = [_identified(job) for job in there]
        is_one = len(names) == 1 and len(objects) == 1
        click.echo(as_data(objects[0] if is_one else {"apiVersion": "v1", "kind": "List", "items": objects}, output))
    elif output == "name":
        click.echo("\n".join(f"{_word(job)}/{plain(job.key.name)}" for job in there))
    elif not there:
        click.echo("there are no jobs", err=True)
    else:
        click.echo(jobs_table(there, samples, with_namespace=everywhere, is_wide=output == "wide"))


def jobs_table(there: Sequence[Found], samples: Mapping[str, Sample], *, with_namespace: bool, is_wide: bool = False) -> str:
    """Return the table of jobs. Facts that only some jobs have get columns if such a job is shown."""
    now = datetime.now(UTC)
    jobs = [summary(job.kind, job.object) for job in there]
    newest = [samples.get(job.key.uid, Sample(uid="")) for job in there]
    columns = {"NAMESPACE": [job.namespace for job in jobs]} if with_namespace else {}
    columns |= {
        "NAME": [job.name for job in jobs],
        "KIND": [job.kind.title for job in jobs],
        "STATE": [job.state for job in jobs],
        "WORKERS": [f"{job.running}/{job.wanted}" for job in jobs],
        "WORLD": [_or_dash(world_of(job, sample)) for job, sample in zip(jobs, newest, strict=True)],
    }
    if is_wide or any(sample.progress for sample in newest):
        columns |= {
            "STEP": [sample.last_step or "-" for sample in newest],
            "SPEED": [sample.speed or "-" for sample in newest],
            "LOSS": ["-" if sample.loss is None else shortened(sample.loss) for sample in newest],
        }
    columns |= {
        "RESTARTS": [str(job.restart_count) for job in jobs],
        "RESCALED": [age(job.rescale.get("at"), now) for job in jobs],
        "AGE": [age(job.created, now) for job in jobs],
    }
    awaited = [job.awaits(now) for job in jobs]
    if is_wide or any(awaited):
        columns["WAITS FOR"] = awaited
    rows = zip(*columns.values(), strict=True)
    return "\n".join(_state_coloured(line, jobs, at) for at, line in enumerate(table(list(columns), rows).split("\n")))


def world_of(job: Summary, sample: Sample | None) -> int | None:
    """Return the size of the world, as the rendezvous server reports it; otherwise as the status has it."""
    return sample.world if sample is not None and sample.world is not None and not job.is_over else job.world


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _state_coloured(line: str, jobs: Sequence[Summary], at: int) -> str:
    if at == 0:
        return line
    state = plain(jobs[at - 1].state)
    return line.replace(f" {state} ", f" {coloured(state, STATES.get(state))} ", 1)


@click.command()
@JOBS
@output_option()
@cluster_options
def describe(words: tuple[str, ...], output: str, cluster: Cluster) -> None:
    """Show jobs with their conditions, pods and Events."""

    async def read(kube: Kube, namespace: str) -> list[tuple[Found, list[Object], list[Object]]]:
        jobs = await found.some(kube, namespace, words)
        if output in DATA:
            jobs = await found.with_train_jobs(kube, namespace, jobs)
        pods = [await verbs.pods_of(kube, job) for job in jobs]
        return [(job, its, await found.events_of(kube, job, its)) for job, its in zip(jobs, pods, strict=True)]

    there = cluster.ask(read)
    if output == "table":
        now = datetime.now(UTC)
        click.echo("\n\n\n".join("\n".join(described(job, pods, events, now)) for job, pods, events in there))
        return
    items = [{"job": _identified(job), "pods": pods, "events": events} for job, pods, events in there]
    click.echo(as_data(items[0] if len(items) == 1 else {"items": items}, output))


def described(job: Found, pods: Sequence[Object], events: Sequence[Object], now: datetime) -> Iterator[str]:
    told = summary(job.kind, job.object)
    allowed = f"{told.least}" if told.least == told.most else f"{told.least} to {told.most}"
    bounds = f", {allowed} allowed" if told.is_elastic else ""
    facts: list[tuple[str, object]] = [
        ("Name", told.name),
        ("Namespace", told.namespace),
        ("Kind", told.kind.title),
        ("State", told.state),
        ("Created", f"{told.created} ({age(told.created, now)} ago)"),
        ("Workers", f"{told.running} running, {told.wanted} wanted{bounds}"),
    ]
    if waits := told.awaits(now):
        facts.append(("Waits for", waits))
    if told.world is not None:
        facts.append(("World", told.world))
    if told.restarts:
        causes = ", ".join(f"{cause} {number}" for cause, number in sorted(told.restarts.items()))
        facts.append(("Restarts", f"{told.restart_count}; ends of workers: {causes}"))
    if told.rescale:
        facts.append(("Rescaled", f"{age(told.rescale.get('at'), now)} ago: {told.rescale.get('reason', '')}"))
    yield "\n".join(f"{plain(name) + ':':<12}{plain(str(value))}" for name, value in facts)
    conditions = conditions_of(job.object)
    yield "\nConditions:"
    rows = [[c.get("type", ""), c.get("status", ""), age(c.get("lastTransitionTime"), now), c.get("message", "")] for c in conditions]
    yield _indented(table(("TYPE", "STATUS", "SINCE", "MESSAGE"), rows)) if rows else "  none yet: is the controller running?"
    yield "\nPods:"
    yield (
        _indented(table(("NAME", "RANK", "STATE", "RESTARTS", "NODE", "AGE"), [_pod_row(pod, job, now) for pod in pods]))
        if pods
        else "  none"
    )
    yield "\nEvents:"
    yield _indented(events_table(events[-LATEST_EVENTS:], now)) if events else "  none (they are kept for about an hour)"


def _pod_row(pod: Object, job: Found, now: datetime) -> list[object]:
    rank, metadata = rank_of(pod, job.object), pod["metadata"]
    node = (pod.get("spec") or {}).get("nodeName") or "-"
    shown = "-" if rank is None else rank
    return [metadata["name"], shown, pod_state(pod), pod_restarts(pod), node, age(metadata.get("creationTimestamp"), now)]


@click.command()
@click.argument("words", nargs=-1, metavar="[KIND] [JOB]", shell_complete=completion.jobs)
@EVERYWHERE
@output_option()
@cluster_options
def events(words: tuple[str, ...], everywhere: bool, output: str, cluster: Cluster) -> None:
    """Show what was reported of a job and its pods, or of all jobs and pods, the oldest first."""
    if everywhere and words:
        raise click.UsageError("name a job or give --all-namespaces, and not both")

    async def read(kube: Kube, namespace: str) -> list[Object]:
        if words:
            job = await found.one(kube, namespace, words)
            return await found.events_of(kube, job, await verbs.pods_of(kube, job))
        if not everywhere:
            await found.check_namespace(kube, namespace)
        return await found.events_of_jobs(kube, None if everywhere else namespace)

    there = cluster.ask(read)
    if output != "table":
        click.echo(as_data({"apiVersion": "v1", "kind": "List", "items": there}, output))
    elif there:
        click.echo(events_table(there, datetime.now(UTC)))
    else:
        click.echo("there are no events; they are kept for about an hour", err=True)


def events_table(events: Sequence[Object], now: datetime) -> str:
    def about(event: Object) -> str:
        involved = event.get("involvedObject") or {}
        return f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}"

    rows = [[age(found.moment_of(e), now), e.get("type", ""), e.get("reason", ""), about(e), e.get("message", "")] for e in events]
    return table(("LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"), rows)


def _word(job: Found) -> str:
    """Return the kind of a job with its group, as `kubectl get -o name` has it."""
    return f"{job.word}.{TRAIN_JOBS}" if job.kind.role else job.kind.crd_name.replace(job.kind.plural, job.kind.singular, 1)


def _identified(job: Found) -> dict[str, Any]:
    """Return the object as `kubectl get -o` has it, without the managers of its fields. For a TrainJob, this is no job behind it."""
    train_job = job.bare or job.train_job
    metadata = {key: value for key, value in (train_job or job.object)["metadata"].items() if key != "managedFields"}
    if train_job is not None:
        return {"apiVersion": TRAIN_JOB_RESOURCE.api_version, "kind": TRAIN_JOB_RESOURCE.kind, **train_job, "metadata": metadata}
    return {"apiVersion": f"{job.kind.crd_name.partition('.')[2]}/v1", "kind": job.kind.name, **job.object, "metadata": metadata}


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))
