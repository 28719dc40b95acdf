"""Run `elastic uninstall`: take the control plane out of a cluster. Kinds, jobs and the key stay, unless the user says otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from elastic.api.counting import counted
from elastic.api.kinds import GROUP
from elastic.cli.agreement import YES, agreed
from elastic.cli.cluster_choice import KUBECONFIG
from elastic.cli.installing import changing, looking, manifests, obstacles, rights, shared_secret, trainer
from elastic.cli.installing.command import CONTEXT, HOME, OVERLAY, TIMEOUT, chosen, home
from elastic.cli.installing.components import STANDALONE
from elastic.cli.jobs import found
from elastic.client import verbs
from elastic.client.summary import summary
from elastic.client.verbs import Found
from elastic.kube.client import Kube
from elastic.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, SECRETS, Object

MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class Standing:
    """The objects that can be removed."""

    items: Sequence[Object]
    """Objects that `elastic install` made, without the namespace."""
    namespace: Object | None
    """The namespace, if `elastic install` made it."""
    has_secret: bool
    definitions: Sequence[Object]
    jobs: Sequence[Found]


@click.command()
@OVERLAY
@click.option(
    "--delete-jobs", "takes_jobs", is_flag=True, help="Also the kinds, with all jobs of the cluster, and the namespace with its key."
)
@YES
@TIMEOUT
@HOME
@CONTEXT
@KUBECONFIG
def uninstall(
    overlay: str, takes_jobs: bool, yes: bool, timeout_s: float, namespace: str | None, context: str | None, kubeconfig: Path | None
) -> None:
    """Remove what `elastic install` made. Jobs stay, and their pods run on; --delete-jobs deletes them first, and the kinds last."""
    where = home(namespace, overlay)
    if takes_jobs and overlay != STANDALONE:
        raise click.UsageError("--delete-jobs deletes the kinds of the whole cluster; in one namespace use `elastic delete JOB`")
    cluster = chosen(kubeconfig, context, where)
    there = cluster.ask(lambda kube, _: _look(kube, overlay, where, takes_jobs=takes_jobs))
    if not there.items and not (takes_jobs and there.definitions):
        raise click.ClickException(
            f"nothing that `elastic install --overlay {overlay}` made is in namespace {where}; what kubectl or Helm brought goes with them"
        )
    if not agreed(plan(there, takes_jobs=takes_jobs), yes=yes):
        return
    cluster.ask(lambda kube, _: _carry_out(kube, there, where, takes_jobs=takes_jobs, timeout_s=timeout_s))
    click.echo("the control plane is removed" if takes_jobs else f"the control plane is removed; {_kept(there, where)} stay")


def plan(there: Standing, *, takes_jobs: bool) -> Iterator[str]:
    """Yield the steps in words, in their order."""
    if takes_jobs and there.jobs:
        yield f"delete {_jobs_in_words(there.jobs)}, and wait until their pods are gone"
    if there.items:
        workloads = [manifests.name(item) for item in there.items if item["kind"] in manifests.WORKLOADS]
        others = counted(len(there.items) - len(workloads), "object")
        yield f"delete the APIs that the autoscaler registered, then {', '.join([*workloads, f'{others} beside'])}"
    if not takes_jobs:
        if there.jobs:
            yield f"keep {_jobs_in_words(there.jobs)}: pods train on, but what ends is not replaced until a control plane runs again"
        yield f"keep the kinds ({GROUP}), and the namespace with its Secret {shared_secret.NAME}"
        return
    if there.definitions:
        yield f"delete {len(there.definitions)} definitions of kinds ({GROUP})"
    if there.has_secret:
        yield f"delete the Secret {shared_secret.NAME}"
    if there.namespace is not None:
        yield f"delete the namespace {there.namespace['metadata']['name']} with all that is in it"


def _jobs_in_words(jobs: Sequence[Found]) -> str:
    going = sum(not summary(job.kind, job.object).is_over for job in jobs)
    names = ", ".join(f"{job.kind.name} {job.key.namespace}/{job.key.name}" for job in jobs[:MOST_NAMED])
    more = f" and {len(jobs) - MOST_NAMED} more (`elastic get -A`)" if len(jobs) > MOST_NAMED else ""
    return f"{counted(len(jobs), 'job')}, {going} of them not over: {names}{more}"


def _kept(there: Standing, namespace: str) -> str:
    return f"{counted(len(there.jobs), 'job')}, the kinds, and namespace {namespace} with its Secret {shared_secret.NAME}"


async def _look(kube: Kube, overlay: str, namespace: str, *, takes_jobs: bool) -> Standing:
    items = []
    for item in manifests.every_object(overlay, namespace=namespace):
        there = await looking.there(kube, item)
        if there is not None and obstacles.is_managed(there):
            items.append(item)
    for item in trainer.removable(namespace, takes_jobs=takes_jobs) if overlay == STANDALONE else ():
        if (there := await looking.there(kube, item)) is not None and trainer.is_only_ours(there):
            items.insert(0, item)
    asked = rights.over(items, rights.REMOVING)
    asked += [rights.Right("delete", CUSTOM_RESOURCE_DEFINITIONS)] if takes_jobs else []
    if lacking := await rights.missing(kube, asked):
        raise click.ClickException(f"{rights.in_words(lacking, len(asked))}; ask an administrator of the cluster")
    return Standing(
        items=[item for item in items if item["kind"] != "Namespace"],
        namespace=next((item for item in items if item["kind"] == "Namespace"), None),
        has_secret=await looking.read(kube, SECRETS, shared_secret.NAME, namespace=namespace) is not None,
        definitions=await _definitions(kube) if overlay == STANDALONE else [],
        jobs=await _jobs(kube, None if overlay == STANDALONE else namespace),
    )


async def _definitions(kube: Kube) -> list[Object]:
    """Return the definitions that are ours. TrainJobs come first, because they own jobs."""
    of_train_jobs = await looking.definitions(kube, trainer.DEFINITIONS)
    found = [one for one in await looking.definitions(kube) if obstacles.is_ours(one)]
    return [*(one for one in of_train_jobs if trainer.is_only_ours(one)), *found]


async def _jobs(kube: Kube, namespace: str | None) -> list[Found]:
    try:
        return await found.jobs(kube, namespace)
    except found.NotFound:
        return []


async def _carry_out(kube: Kube, there: Standing, namespace: str, *, takes_jobs: bool, timeout_s: float) -> None:
    """Delete jobs first, while a controller cleans up behind them, and the kinds last: with them the API server deletes their objects."""
    if takes_jobs:
        await _delete_jobs(kube, there.jobs, timeout_s)
    await changing.remove(kube, there.items, timeout_s)
    if not takes_jobs:
        return
    known = {job.key.uid for job in there.jobs}
    if newcomers := [job for job in await _jobs(kube, None) if job.key.uid not in known]:
        raise click.ClickException(f"{_jobs_in_words(newcomers)} came meanwhile; the kinds stay. The same command names them")
    for one in there.definitions:
        await changing.delete(kube, CUSTOM_RESOURCE_DEFINITIONS, one, title=f"definition {one['metadata']['name']}")
    if there.has_secret:
        secret = {"metadata": {"name": shared_secret.NAME, "namespace": namespace}}
        await changing.delete(kube, SECRETS, secret, title=f"Secret {namespace}/{shared_secret.NAME}")
    if there.namespace is not None:
        await changing.delete(kube, NAMESPACES, there.namespace, title=f"namespace {namespace}")
    defined = [one["metadata"]["name"] for one in there.definitions]
    await changing.until_removed(kube, defined, namespace if there.namespace is not None else None, timeout_s)


async def _delete_jobs(kube: Kube, jobs: Sequence[Found], timeout_s: float) -> None:
    for job in jobs:
        await verbs.delete(kube, job)
        click.echo(f"deleted {job.title} of namespace {job.key.namespace}")

    async def look() -> str:
        left = [job.title for job in jobs if await verbs.pods_of(kube, job)]
        return f"the pods of {', '.join(left[:MOST_NAMED])} to go" if left else ""

    await changing.until(look, timeout_s)
