"""Run `elastic adopt`: show what taking over from another controller would change, do it with --yes, and undo it with --back."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Awaitable, Sequence
from pathlib import Path

import click
import msgspec

from elastic.api.crd import crd
from elastic.api.kinds import API_VERSION, KINDS
from elastic.api.trainer.modes import TRAINER_LEASE, Mode
from elastic.cli.adopting import definitions, mpi_operator, plan
from elastic.cli.adopting import trainer as trainer_plan
from elastic.cli.adopting.plan import Apply, Change, Create, DeleteDefinition, DeleteWebhook, Scale, Seen
from elastic.cli.adopting.trainer import AwaitEnd, DeleteIdle, Serve
from elastic.cli.agreement import YES, agreed
from elastic.cli.arguments import cluster_options
from elastic.cli.cluster_choice import Cluster
from elastic.cli.documents import as_json
from elastic.cli.failures import said
from elastic.cli.installing import looking_trainer
from elastic.cli.installing.carrying_out import carry_out, release, serving
from elastic.cli.installing.components import STANDALONE
from elastic.cli.installing.obstacles import OUR_LABEL, overlay_of, version_of
from elastic.cli.installing.trainer import TrainerSeen, mode_of, of_ours
from elastic.cli.jobs import found
from elastic.cli.printing import plain
from elastic.kube.client import Kube, Patch
from elastic.kube.errors import KubeError
from elastic.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, DEPLOYMENTS, VALIDATING_WEBHOOK_CONFIGURATIONS, Object

APPLIED = {one.kind: one for one in (CUSTOM_RESOURCE_DEFINITIONS, *looking_trainer.WEBHOOKS)}
IDLE = {one.kind: one for one in (looking_trainer.JOB_SETS, *looking_trainer.OWNED)}
END_S = 90.0
MANAGER = "elastic-adopt"
MOST_BYTES = 64 << 20
NEXT_OF_TRAINER = "Now install the control plane with `elastic install --trainjobs instead`; until it runs, no TrainJob starts."
DONE = "Our controller serves all TrainJobs once it has restarted; `elastic doctor` says who serves which."
NEXT = "Now install the control plane (`elastic install`, docs/deploy.md); until it runs, nothing starts or is replaced."


class Kept(msgspec.Struct, forbid_unknown_fields=True):
    """The file by which all can be given back."""

    operators: list[Object]
    objects: list[Object]
    jobs: list[Object] = []
    """Jobs of the MPI Operator, which went with their definition."""
    waiting: list[str] = []
    """Jobs that were not over, as NAMESPACE/NAME."""
    definition: str = ""
    """The uid of the MPI Operator's definition."""
    mode: Mode | None = None
    """Mode in which our controller served TrainJobs before it took Kubeflow Trainer's over."""

    @property
    def is_of_mpi_operator(self) -> bool:
        return any(one["kind"] == CUSTOM_RESOURCE_DEFINITIONS.kind and mpi_operator.is_theirs(one) for one in self.objects)


@click.command()
@YES
@click.option(
    "--save",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("before-adoption.json"),
    show_default=True,
    help="Where to keep what is replaced.",
)
@click.option("--mpi-operator", "mpi", is_flag=True, help="From the MPI Operator (v2beta1) instead: its MPIJobs, which must not run.")
@click.option("--trainer", "is_trainer", is_flag=True, help="From Kubeflow Trainer (v2) instead: its TrainJobs, none of which may train.")
@click.option("--back", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="Give all back that this file keeps.")
@cluster_options
def adopt(yes: bool, save: Path, mpi: bool, is_trainer: bool, back: Path | None, cluster: Cluster) -> None:
    """Take a cluster's jobs over from the Training Operator, or give them back. It shows first what it would change."""
    if mpi and is_trainer:
        raise click.UsageError("--mpi-operator and --trainer exclude each other; take over from one after the other")
    if back is not None:
        _give_back(cluster, _read(back), back, yes)
        return
    if mpi:
        _adopt_mpi(cluster, save, yes)
        return
    if is_trainer:
        _adopt_trainer(cluster, save, yes)
        return
    seen = cluster.ask(_look)
    if wrong := list(plan.obstacles(seen)):
        raise click.ClickException("\n".join(wrong))
    if not seen.operators and not seen.webhooks:
        raise click.ClickException(f"no Training Operator is here: no deployment with label {plan.OPERATOR_LABEL}, none of its webhooks")
    click.echo(plain(plan.jobs_in_words(seen)))
    changes = list(plan.takeover(seen, [crd(kind) for kind in KINDS.values()]))
    _take_over(cluster, changes, plan.saved(seen), save=save, yes=yes)


def _adopt_trainer(cluster: Cluster, save: Path, yes: bool) -> None:
    seen, controller = cluster.ask(_look_at_trainer)
    if wrong := list(trainer_plan.obstacles(seen)):
        raise click.ClickException("\n".join(wrong))
    ours = _installed_in(controller)
    changes = list(trainer_plan.takeover(seen, ours=ours))
    _take_over(cluster, changes, trainer_plan.saved(seen, mode_of(controller)), save=save, yes=yes, then=DONE if ours else NEXT_OF_TRAINER)


def _installed_in(controller: Object | None) -> str | None:
    """Return the namespace of our control plane if the command of this release has made it for the whole cluster."""
    if controller is None or version_of(controller) != release() or overlay_of(controller) != STANDALONE:
        return None
    return str(controller["metadata"]["namespace"])


async def _look_at_trainer(kube: Kube, namespace: str) -> tuple[TrainerSeen, Object | None]:
    ours = await _our_controllers(kube, namespace)
    return await looking_trainer.seen(kube), ours[0] if ours else None


def _take_over(cluster: Cluster, changes: Sequence[Change], kept: Object, *, save: Path, yes: bool, then: str = NEXT) -> None:
    if save.exists():
        raise click.ClickException(
            f"{save} is there already, from an earlier take-over. If that was broken off, `elastic adopt --back {save}` first: "
            "only this file knows how many replicas there were. Else keep it, and name another with --save"
        )
    if not _agreed(changes, yes):
        return
    _write(save, kept)
    click.echo(f"what is replaced is kept in {save}; `elastic adopt --back {save}` gives it back")
    _carry_out_all(cluster, changes, remedy=f"`elastic adopt --back {save}` gives back what was done", then=then)


def _carry_out_all(cluster: Cluster, changes: Sequence[Change], *, remedy: str, then: str = NEXT) -> None:
    cluster.ask(lambda kube, _: _carry_out(kube, changes, remedy=remedy))
    click.echo(then)


def _adopt_mpi(cluster: Cluster, save: Path, yes: bool) -> None:
    if save.exists() and (kept := _read(save)).is_of_mpi_operator:
        _go_on_with_mpi(cluster, kept, save, yes)
        return
    seen = cluster.ask(_look_at_mpi)
    if seen is None:
        raise click.ClickException(f"no definition {mpi_operator.MPI.crd_name} of the MPI Operator's v2beta1 is here")
    if wrong := list(mpi_operator.obstacles(seen)):
        raise click.ClickException("\n".join(wrong))
    changes = list(mpi_operator.takeover(seen, [crd(kind) for kind in KINDS.values()], file=str(save)))
    _take_over(cluster, changes, mpi_operator.saved(seen), save=save, yes=yes)


def _go_on_with_mpi(cluster: Cluster, kept: Kept, save: Path, yes: bool) -> None:
    now, known = cluster.ask(_look_at_mpi_again), msgspec.to_builtins(kept)
    if why := mpi_operator.not_resumed(now, known, file=str(save)):
        raise click.ClickException(plain(why))
    changes = list(mpi_operator.resumed(now, known, [crd(kind) for kind in KINDS.values()], file=str(save)))
    click.echo(f"{save} is there; the take-over that wrote it goes on")
    if _agreed(changes, yes):
        _carry_out_all(cluster, changes, remedy="the same command goes on")


async def _look_at_mpi_again(kube: Kube, namespace: str) -> mpi_operator.Now:
    return mpi_operator.Now(
        operators=(await kube.list(DEPLOYMENTS, labels=mpi_operator.OPERATOR_LABEL)).items,
        definition=await kube.find(CUSTOM_RESOURCE_DEFINITIONS, mpi_operator.MPI.crd_name),
        jobs=await definitions.listed(kube, mpi_operator.THEIRS),
        made=await definitions.listed(kube, API_VERSION),
    )


async def _look_at_mpi(kube: Kube, namespace: str) -> mpi_operator.Seen | None:
    theirs = [item for item in (await kube.list(CUSTOM_RESOURCE_DEFINITIONS)).items if mpi_operator.is_theirs(item)]
    if not theirs:
        return None
    operators = (await kube.list(DEPLOYMENTS, labels=mpi_operator.OPERATOR_LABEL)).items
    return mpi_operator.Seen(operators, theirs[0], await definitions.listed(kube, mpi_operator.THEIRS))


def _give_back(cluster: Cluster, kept: Kept, file: Path, yes: bool) -> None:
    ours = cluster.ask(_our_controllers)
    changes: list[Change]
    if kept.mode is not None:
        seen, controller = cluster.ask(_look_at_trainer)
        if wrong := list(of_ours(seen)):
            raise click.ClickException("\n".join(wrong))
        if mode_of(controller) is Mode.INSTEAD and _installed_in(controller) is None:
            raise click.ClickException(f"our controller serves all TrainJobs; change its flag --trainjobs to {kept.mode} first")
        changes = list(trainer_plan.return_(msgspec.to_builtins(kept), seen, ours=_installed_in(controller)))
    elif kept.is_of_mpi_operator:
        jobs = cluster.ask(lambda kube, _: definitions.listed(kube, API_VERSION))
        definition = cluster.ask(lambda kube, _: kube.find(CUSTOM_RESOURCE_DEFINITIONS, mpi_operator.MPI.crd_name))
        if wrong := list(mpi_operator.return_obstacles(msgspec.to_builtins(kept), jobs)):
            raise click.ClickException("\n".join(wrong))
        changes = list(mpi_operator.return_(msgspec.to_builtins(kept), ours, jobs, definition))
    else:
        changes = list(plan.return_(msgspec.to_builtins(kept), ours))
    if _agreed(changes, yes):
        cluster.ask(lambda kube, _: _carry_out(kube, changes, remedy=f"`elastic adopt --back {file}` goes on"))
        click.echo(f"All is given back. {file} has done its work; remove it before you adopt again.")


async def _look(kube: Kube, namespace: str) -> Seen:
    known = [item for item in (await kube.list(CUSTOM_RESOURCE_DEFINITIONS)).items if _is_ours(item)]
    webhooks = (await kube.list(VALIDATING_WEBHOOK_CONFIGURATIONS)).items
    jobs = await found.jobs(kube, None) if any(plan.serves(item) for item in known) else []
    return Seen(
        operators=(await kube.list(DEPLOYMENTS, labels=plan.OPERATOR_LABEL)).items,
        webhooks=[item for item in webhooks if item["metadata"]["name"].endswith(plan.WEBHOOK_SUFFIX)],
        definitions=known,
        jobs=[{**job.object, "kind": job.kind.name} for job in jobs],
    )


def _is_ours(definition: Object) -> bool:
    return definition["metadata"]["name"] in {kind.crd_name for kind in KINDS.values()}


async def _our_controllers(kube: Kube, namespace: str) -> list[Object]:
    return (await kube.list(DEPLOYMENTS, labels=OUR_LABEL)).items


def _agreed(changes: Sequence[Change], yes: bool) -> bool:
    return agreed((change.words for change in changes), yes=yes)


async def _carry_out(kube: Kube, changes: Sequence[Change], *, remedy: str) -> None:
    for change in changes:
        try:
            await _do(kube, change)
        except KubeError as error:
            raise click.ClickException(plain(f"broken off at: {change.words}: {said(error)}. Once that is mended, {remedy}")) from error
        click.echo(plain(f"done: {change.words}"))


async def _do(kube: Kube, change: Change) -> None:
    """Make one change. An earlier try may have made it already."""
    match change:
        case Scale(_, namespace, name, replicas):
            await kube.patch(DEPLOYMENTS, name, {"spec": {"replicas": replicas}}, namespace=namespace)
        case DeleteWebhook(_, name, kind):
            await _unless_gone(kube.delete(APPLIED[kind], name))
        case DeleteIdle(_, objects):
            for one in objects:
                metadata = one["metadata"]
                resource = IDLE[one["kind"]]
                await _unless_gone(kube.delete(resource, metadata["name"], namespace=metadata["namespace"], propagation="Background"))
        case AwaitEnd():
            if holder := await looking_trainer.until_ended(kube, END_S):
                raise click.ClickException(f"the Lease {TRAINER_LEASE} is still renewed in {holder}; stop that process")
        case Serve(_, mode, namespace):
            await carry_out(kube, serving(mode, namespace))
        case DeleteDefinition():
            await definitions.delete(kube, change)
        case Create():
            await definitions.create(kube, change)
        case Apply(_, objects):
            for one in objects:
                resource, name = APPLIED[one["kind"]], one["metadata"]["name"]
                await kube.patch(resource, name, one, kind=Patch.APPLY, field_manager=MANAGER, force=True)


async def _unless_gone(asked: Awaitable[object]) -> None:
    try:
        await asked
    except KubeError as error:
        if error.code != 404:
            raise


def _write(file: Path, kept: Object) -> None:
    """Write the file whole or not at all. It replaces no file, because somebody may need that one."""
    text = as_json(kept).encode()
    if len(text) > MOST_BYTES:
        raise click.ClickException(f"what is to be kept has more than {MOST_BYTES >> 20} MiB; delete jobs that are over first")
    with tempfile.NamedTemporaryFile(dir=file.absolute().parent, prefix=f".{file.name}.") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
        os.link(opened.name, file)


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
        for one in kept.jobs:
            metadata = one.get("metadata") or {}
            if one.get("apiVersion") != mpi_operator.THEIRS or not all(isinstance(metadata.get(key), str) for key in ("name", "namespace")):
                raise msgspec.ValidationError("it has a job that this command does not keep")
    except msgspec.MsgspecError as error:
        raise click.ClickException(f"{file} was not written by `elastic adopt`: {error}") from error
    return kept
