"""`elastic adopt`: shows what taking over from the Training Operator would change; with --yes does it, and --back undoes it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Sequence
from pathlib import Path

import click
import msgspec

from elastic.api.crd import crd
from elastic.api.kinds import KINDS
from elastic.cli.adopting import plan
from elastic.cli.adopting.plan import Annotate, Apply, Change, DeleteWebhook, Scale, Seen
from elastic.cli.agreement import YES, agreed
from elastic.cli.cluster_choice import Cluster, cluster_options
from elastic.cli.documents import as_json
from elastic.cli.jobs import found
from elastic.cli.printing import plain
from elastic.kube.client import Kube, Patch
from elastic.kube.errors import KubeError
from elastic.kube.following import resource_of
from elastic.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, VALIDATING_WEBHOOK_CONFIGURATIONS, Object, Resource

DEPLOYMENTS = Resource("apps", "v1", "deployments", kind="Deployment")
APPLIED = {one.kind: one for one in (CUSTOM_RESOURCE_DEFINITIONS, VALIDATING_WEBHOOK_CONFIGURATIONS)}
MANAGER = "elastic-adopt"
OUR_LABEL = "app=elastic-controller"
MOST_BYTES = 64 << 20
NEXT = "Now install the control plane (`elastic install`, docs/deploy.md); until it runs, nothing starts or is replaced."


class Kept(msgspec.Struct, forbid_unknown_fields=True):
    """The file by which all can be given back."""

    operators: list[Object]
    objects: list[Object]


@click.command()
@YES
@click.option(
    "--save",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("before-adoption.json"),
    show_default=True,
    help="Where to keep what is replaced.",
)
@click.option("--back", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="Give all back that this file keeps.")
@cluster_options
def adopt(yes: bool, save: Path, back: Path | None, cluster: Cluster) -> None:
    """Take a cluster's jobs over from the Training Operator, or give them back. It shows first what it would change."""
    if back is not None:
        changes = list(plan.return_(msgspec.to_builtins(_read(back)), cluster.ask(_our_controllers)))
        if _agreed(changes, yes):
            cluster.ask(lambda kube, _: _carry_out(kube, changes))
        return
    seen = cluster.ask(_look)
    if wrong := list(plan.obstacles(seen)):
        raise click.ClickException("\n".join(wrong))
    if not seen.operators and not seen.webhooks:
        raise click.ClickException(f"no Training Operator is here: no deployment with label {plan.OPERATOR_LABEL}, none of its webhooks")
    click.echo(plain(plan.jobs_in_words(seen)))
    changes = list(plan.takeover(seen, [crd(kind) for kind in KINDS.values()]))
    if save.exists():
        raise click.ClickException(f"{save} is there already, from an earlier take-over; keep it, and name another file with --save")
    if not _agreed(changes, yes):
        return
    _write(save, plan.saved(seen))
    click.echo(f"what is replaced is kept in {save}; `elastic adopt --back {save}` gives it back")
    cluster.ask(lambda kube, _: _carry_out(kube, changes))
    click.echo(NEXT)


async def _look(kube: Kube, namespace: str) -> Seen:
    definitions = [item for item in (await kube.list(CUSTOM_RESOURCE_DEFINITIONS)).items if _is_ours(item)]
    webhooks = (await kube.list(VALIDATING_WEBHOOK_CONFIGURATIONS)).items
    jobs = await found.jobs(kube, None) if definitions else []
    return Seen(
        operators=(await kube.list(DEPLOYMENTS, labels=plan.OPERATOR_LABEL)).items,
        webhooks=[item for item in webhooks if item["metadata"]["name"].endswith(plan.WEBHOOK_SUFFIX)],
        definitions=definitions,
        jobs=[{**job.object, "kind": job.kind.name} for job in jobs],
    )


def _is_ours(definition: Object) -> bool:
    return definition["metadata"]["name"] in {kind.crd_name for kind in KINDS.values()}


async def _our_controllers(kube: Kube, namespace: str) -> list[Object]:
    return (await kube.list(DEPLOYMENTS, labels=OUR_LABEL)).items


def _agreed(changes: Sequence[Change], yes: bool) -> bool:
    return agreed((change.words for change in changes), yes=yes)


async def _carry_out(kube: Kube, changes: Sequence[Change]) -> None:
    """Each of them may be done already, by an earlier try."""
    for change in changes:
        match change:
            case Annotate(_, kind, namespace, name):
                body = {"metadata": {"annotations": {plan.COMPAT: plan.STRICT}}}
                await _unless_gone(kube.patch(resource_of(KINDS[kind]), name, body, namespace=namespace))
            case Scale(_, namespace, name, replicas):
                await kube.patch(DEPLOYMENTS, name, {"spec": {"replicas": replicas}}, namespace=namespace)
            case DeleteWebhook(_, name):
                await _unless_gone(kube.delete(VALIDATING_WEBHOOK_CONFIGURATIONS, name))
            case Apply(_, objects):
                for one in objects:
                    resource, name = APPLIED[one["kind"]], one["metadata"]["name"]
                    await kube.patch(resource, name, one, kind=Patch.APPLY, field_manager=MANAGER, force=True)
        click.echo(plain(f"done: {change.words}"))


async def _unless_gone(asked: Awaitable[object]) -> None:
    try:
        await asked
    except KubeError as error:
        if error.code != 404:
            raise


def _write(file: Path, kept: Object) -> None:
    """It appears whole or not at all, and replaces nothing: somebody may need what is there."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(as_json(kept))
        opened.flush()
        os.fsync(opened.fileno())


def _read(file: Path) -> Kept:
    try:
        if file.stat().st_size > MOST_BYTES:
            raise msgspec.ValidationError(f"it has more than {MOST_BYTES >> 20} MiB")
        kept = msgspec.json.decode(file.read_bytes(), type=Kept)
        for one in kept.objects:
            if one.get("kind") not in APPLIED or not isinstance((one.get("metadata") or {}).get("name"), str):
                raise msgspec.ValidationError("it has an object that this command does not keep")
        for one in kept.operators:
            if not (isinstance(one.get("namespace"), str) and isinstance(one.get("name"), str) and isinstance(one.get("replicas"), int)):
                raise msgspec.ValidationError("it has an operator without namespace, name or replicas")
    except msgspec.MsgspecError as error:
        raise click.ClickException(f"{file} is none that `elastic adopt` wrote: {error}") from error
    return kept
