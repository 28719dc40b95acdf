"""Run `elastic wait`, which waits for a state of a job, and `elastic explain`, which says why the job is as it is."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime

import click

from elastic.cli.arguments import JOB, cluster_options
from elastic.cli.cluster_choice import Cluster
from elastic.cli.jobs import found
from elastic.cli.jobs.beginning import until_begun
from elastic.cli.jobs.change import until_gone
from elastic.cli.jobs.following import followed
from elastic.cli.jobs.live import dashboard_option, live
from elastic.cli.jobs.milestone import Milestone
from elastic.cli.options import Seconds
from elastic.cli.printing import as_data, output_option, plain
from elastic.client import verbs
from elastic.client.explanation import findings, sentences
from elastic.client.sample import Sample
from elastic.client.summary import summary
from elastic.client.verbs import Found
from elastic.kube.client import Kube
from elastic.kube.following import ConditionNews, Happening, Outcome
from elastic.kube.resources import Object

MET, NOT_MET = 0, 1
KUBECTLS = "delete"
"""How kubectl says `deleted`."""
WORDS = {"over": None, "running": "Running", "succeeded": "Succeeded", "failed": "Failed", "deleted": None}


class _TooLong(Exception):
    """The job has not reached the state in the time that the user gave."""


class _Met(Exception):
    """The job has reached the state."""


@click.command()
@JOB
@click.option("--for", "what", type=click.Choice([*WORDS, KUBECTLS]), default="over", show_default=True, help="What to wait for.")
@click.option("--timeout", "timeout_s", type=Seconds(), metavar="TIME", help="Until it gives up: 600, 90s, 10m.  [default: never]")
@output_option()
@cluster_options
def wait(words: tuple[str, ...], what: str, timeout_s: float | None, output: str, cluster: Cluster) -> None:
    """Wait until a job has ended, runs or is deleted.

    Exit code: 0 it is so, 1 it can no longer be so or the time has passed. With --for over, 1 if the job failed or was deleted.
    """
    what = "deleted" if what == KUBECTLS else what
    about: dict[str, str] = {}

    async def watch(kube: Kube, namespace: str) -> tuple[Found, Outcome | None]:
        job = await found.one(kube, namespace, words)
        about.update(kind=job.kind.title, namespace=job.key.namespace, name=job.key.name)
        return job, await _until(kube, job, what, Milestone(cluster.data_dir))

    async def bounded(kube: Kube, namespace: str) -> tuple[Found, Outcome | None]:
        try:
            async with asyncio.timeout(timeout_s) as limit:
                return await watch(kube, namespace)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise _TooLong from error

    def tell(text: str, end: str | None, *, is_met: bool) -> None:
        if output != "table":
            click.echo(as_data({**about, "for": what, "met": is_met, "is": end}, output))
        elif text:
            click.echo(text)

    try:
        job, outcome = cluster.ask(bounded)
    except found.NoJob as error:
        if what != "deleted":
            raise
        tell(f"deleted: {error.format_message()}", what, is_met=True)
        sys.exit(MET)
    except _TooLong:
        tell("", None, is_met=False)
        raise click.ClickException(f"not {what} after {timeout_s:g} s; `elastic explain {words[-1]}` says why") from None
    is_met = outcome is None or (outcome is Outcome.SUCCEEDED if what == "over" else outcome.value.lower() == what)
    end = outcome.value.lower() if outcome is not None else what
    tell(f"{job.title}: {end}", end, is_met=is_met)
    sys.exit(MET if is_met else NOT_MET)


async def _until(kube: Kube, job: Found, what: str, milestone: Milestone) -> Outcome | None:
    """Return how the job ended; None if it has reached the state that the user asked for before its end."""

    def tell(happening: Happening) -> bool:
        milestone.hear(happening)
        if not isinstance(happening, ConditionNews):
            return False
        click.echo(plain(f"{happening.type}: {happening.message}"), err=True)
        if happening.type == WORDS[what] == "Running":
            raise _Met
        return True

    if what == "deleted":
        await until_gone(kube, job)
        return Outcome.DELETED
    if job.bare is not None:
        begun = await until_begun(kube, job, say=lambda text: click.echo(plain(text), err=True), running_is_enough=what == "running")
        if not isinstance(begun, Found):
            return begun
        job = begun
    outcome: Outcome | None = None
    try:
        outcome = await followed(kube, job.key, tell=tell, say=lambda text: click.echo(plain(text), err=True), ahead=milestone.ahead)
    except* _Met:
        pass
    return outcome


@click.command()
@JOB
@output_option()
@dashboard_option
@cluster_options
def explain(words: tuple[str, ...], output: str, url: str | None, cluster: Cluster) -> None:
    """Say why a job has its size, what it waits for, and what its last change cost."""

    async def read(kube: Kube, namespace: str) -> tuple[Found, list[Object], Sample | None]:
        job = await found.one(kube, namespace, words)
        return job, await verbs.pods_of(kube, job), (await live(kube, cluster, url)).get(job.key.uid)

    job, pods, sample = cluster.ask(read)
    told = summary(job.kind, job.object)
    told_of = list(findings(told, pods, job.object.get("spec") or {}, datetime.now(UTC), progress=sample.progress if sample else ""))
    lines = list(sentences(told, told_of))
    if output == "table":
        click.echo("\n".join(map(plain, lines)))
        return
    identity = {"kind": job.kind.title, "name": job.key.name, "namespace": job.key.namespace}
    reasons = [finding.for_program(told.name) for finding in told_of if finding.reason]
    slow, unsaved = [dict(one) for one in told.stragglers], [dict(one) for one in told.failed_saves]
    found_out = {"hang": dict(told.hang) or None, "stragglers": slow, "failedSaves": unsaved}
    click.echo(as_data({**identity, "explanation": lines, "findings": reasons, **found_out}, output))
