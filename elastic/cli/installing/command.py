"""Run `elastic install`: bring the control plane into a cluster, or up to this release. It refuses first what would go wrong later."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import click

from elastic.api.crd import as_yaml, crd
from elastic.api.kinds import KINDS
from elastic.api.rights import SYSTEM
from elastic.api.trainer.modes import Mode
from elastic.cli.cluster_choice import KUBECONFIG, Cluster, choose
from elastic.cli.installing import changing, looking, looking_trainer, manifests, obstacles, rights, shared_secret, trainer
from elastic.cli.installing.components import BY_NAME, COMPONENTS, NAMESPACED, NONE, OVERLAYS, STANDALONE, TRAIN_JOBS, in_order, problems
from elastic.cli.installing.obstacles import Wanted
from elastic.cli.jobs.found import check_namespace
from elastic.cli.options import Seconds
from elastic.cli.printing import as_data, plain
from elastic.kube.client import Kube
from elastic.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, DEPLOYMENTS, SECRETS, Object

BUILD = "build and push it with deploy/Dockerfile (docs/deploy.md), then give --image REGISTRY/elastic-training:TAG"
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
IMAGE = re.compile(r"[A-Za-z0-9][\w.\-:/@]{0,500}")
"""Nearly what registries take; the kubelet knows better."""
GRANTING = ("ClusterRole", "Role")
CHOICES = "; ".join(f"{name}: {COMPONENTS[name].what}" for name in BY_NAME)
CONTEXT = click.option("--context", help="Context of the kubeconfig.  [default: its current one]")
HOME = click.option(
    "--namespace", "-n", help=f"Where the control plane is.  [default: {SYSTEM}; with --overlay {NAMESPACED} it must be given]"
)
OVERLAY = click.option(
    "--overlay",
    type=click.Choice(list(OVERLAYS)),
    default=STANDALONE,
    show_default=True,
    help=f"{STANDALONE}: {OVERLAYS[STANDALONE]}; {NAMESPACED}: {OVERLAYS[NAMESPACED]}.",
)
TIMEOUT = click.option(
    "--timeout",
    "timeout_s",
    type=Seconds(),
    metavar="TIME",
    default=300,
    show_default=True,
    help="Until it gives up what it waits for: 300, 90s, 5m.",
)


@dataclass(frozen=True, slots=True)
class Options:
    """The user's options."""

    image: str | None
    overlay: str
    namespace: str
    components: tuple[str, ...] | None
    """The components to install; None for those that are installed already."""
    train_jobs: Mode | None
    """None: the installed one."""
    upgrades: bool
    takes_over: bool
    is_trial: bool
    waits: bool
    timeout_s: float

    def wanted(self, components: tuple[str, ...]) -> Wanted:
        return Wanted(self.overlay, self.namespace, components, release(), self.upgrades, self.takes_over)


@click.command()
@click.option("--image", help="Of the control plane: REGISTRY/elastic-training:TAG.  [default: the one that is installed]")
@OVERLAY
@click.option(
    "--component",
    "components",
    multiple=True,
    metavar="NAME",
    type=click.Choice([*BY_NAME, NONE]),
    help=f"Again for each. {CHOICES}; {NONE}: without all of them.  [default: those that are installed]",
)
@click.option(
    "--trainjobs",
    "train_jobs",
    type=click.Choice([mode.value for mode in Mode]),
    help="Serve the TrainJobs of Kubeflow Trainer: all, instead of its own controller; those that ask for it, beside it; or none.  "
    "[default: as installed, else off]",
)
@click.option("--upgrade", "upgrades", is_flag=True, help="Replace an older release.")
@click.option("--force-conflicts", "takes_over", is_flag=True, help="Take over what kubectl, Helm or another operator has made.")
@click.option("--dry-run", "is_trial", is_flag=True, help="Look at the cluster, say what would be made, and change nothing.")
@click.option("--output", "-o", type=click.Choice(["json", "yaml"]), help="Print the objects, and ask no cluster.")
@click.option("--wait/--no-wait", "waits", default=True, help="Until the control plane is ready.")
@TIMEOUT
@HOME
@CONTEXT
@KUBECONFIG
def install(
    components: tuple[str, ...],
    namespace: str | None,
    output: str | None,
    kubeconfig: Path | None,
    context: str | None,
    image: str | None,
    overlay: str,
    train_jobs: str | None,
    upgrades: bool,
    takes_over: bool,
    is_trial: bool,
    waits: bool,
    timeout_s: float,
) -> None:
    """Install the control plane in a cluster, or upgrade it. Neither kubectl nor Helm is needed."""
    options = Options(
        image=_checked_image(image),
        overlay=overlay,
        namespace=home(namespace, overlay),
        components=in_order(set(components) - {NONE}) if components else None,
        train_jobs=Mode(train_jobs) if train_jobs is not None else None,
        upgrades=upgrades,
        takes_over=takes_over,
        is_trial=is_trial,
        waits=waits,
        timeout_s=timeout_s,
    )
    if NONE in components and len(set(components)) > 1:
        raise click.UsageError(
            f"--component {NONE} and --component {options.components[0] if options.components else ''} exclude each other"
        )
    if output is not None:
        _print(options, output)
        return
    cluster = chosen(kubeconfig, context, options.namespace)
    cluster.ask(lambda kube, _: carry_out(kube, options))


def _checked_image(image: str | None) -> str | None:
    if image is not None and not IMAGE.fullmatch(image):
        raise click.BadParameter(f"{image!r} is no name of an image; expected REGISTRY/elastic-training:TAG", param_hint="--image")
    return image


def home(namespace: str | None, overlay: str) -> str:
    if namespace is None and overlay == NAMESPACED:
        raise click.UsageError(f"--overlay {NAMESPACED} is for the jobs of one namespace; name it with --namespace")
    if namespace is not None and not NAMESPACE.fullmatch(namespace):
        raise click.BadParameter(f"{namespace!r} is no name of a namespace", param_hint="--namespace")
    return namespace or SYSTEM


def chosen(kubeconfig: Path | None, context: str | None, namespace: str) -> Cluster:
    cluster = choose(None, kubeconfig, context=context, namespace=namespace)
    if cluster.data_dir is not None:
        raise click.ClickException(
            f"the laptop cluster in {cluster.data_dir} has its own control plane and needs none installed; "
            "name another cluster with --kubeconfig FILE"
        )
    return cluster


def release() -> str:
    return metadata.version("elastic-training")


def _print(options: Options, output: str) -> None:
    """Print all objects except the key, which is made once and in the cluster."""
    if options.image is None:
        raise click.UsageError(f"--image is missing; {BUILD}")
    mode = options.train_jobs or Mode.OFF
    components = trainer.with_mode(options.components or (), mode)
    _check(options, components)
    kinds = KINDS.values() if options.overlay == STANDALONE else ()
    items = [*_outside(options, mode), *_objects(options, components, mode, options.image)]
    if output == "json":
        click.echo(as_data({"apiVersion": "v1", "kind": "List", "items": [*map(crd, kinds), *items]}, output))
    else:
        click.echo("---\n".join([*map(as_yaml, kinds), *(as_data(item, output) + "\n" for item in items)]), nl=False)
    click.echo(f"without the Secret {shared_secret.NAME}: `elastic install` makes it in the cluster, or deploy/installation.sh", err=True)


def _check(options: Options, components: tuple[str, ...]) -> None:
    if wrong := list(problems(options.overlay, components)):
        raise click.UsageError("; ".join(wrong))


def _objects(options: Options, components: tuple[str, ...], mode: Mode, image: str) -> list[Object]:
    made = manifests.objects(options.overlay, components, namespace=options.namespace, image=image)
    return [obstacles.marked(item, release(), components) for item in trainer.adapted(made, mode)]


def _outside(options: Options, mode: Mode) -> list[Object]:
    return [obstacles.marked(item, release(), ()) for item in trainer.outside(mode, home=options.namespace)]


def serving(mode: Mode, namespace: str) -> Options:
    """Return the options that change only the mode of an installed control plane."""
    return Options(
        image=None,
        overlay=STANDALONE,
        namespace=namespace,
        components=None,
        train_jobs=mode,
        upgrades=False,
        takes_over=False,
        is_trial=False,
        waits=False,
        timeout_s=300,
    )


async def carry_out(kube: Kube, options: Options) -> None:
    """Install the control plane as the options say."""
    before = await looking.controller(kube, options.namespace)
    was = trainer.mode_of(before)
    mode = was if options.train_jobs is None else options.train_jobs
    asked = options.components if options.components is not None else obstacles.components_of(before) if before else ()
    components = trainer.with_mode(asked, mode)
    _check(options, components)
    await _check_rights(kube, options, components, mode)
    found = await looking.seen(kube, options.overlay, options.namespace, components=components)
    if words := obstacles.obstacle(found, options.wanted(components)):
        raise click.ClickException(plain(words))
    if mode != Mode.OFF or was is not mode:
        sight = await looking_trainer.seen(kube)
        if wrong := next(trainer.obstacles(sight, before=was, wanted=mode), None):
            raise click.ClickException(plain(wrong))
    image = options.image or _installed_image(before)
    outside = await _without_foreign(kube, _outside(options, mode))
    items = await _without_foreign_namespace(kube, _objects(options, components, mode, image))
    surplus = await _surplus(kube, options, items, mode) if before else []
    await _try_grants(kube, items, options)
    if options.is_trial:
        await _say_plan(kube, options, [*outside, *items], surplus)
        return
    if named := [name for name in components if name != TRAIN_JOBS]:
        click.echo(f"components: {', '.join(named)}")
    if mode is not Mode.OFF:
        click.echo(f"TrainJobs: {mode}")
    await _make(kube, options, outside, items, surplus)
    click.echo(f"elastic-training {release()} is {'ready' if options.waits else 'made'} in namespace {options.namespace}; {_next(options)}")


def _next(options: Options) -> str:
    return (
        "see it with `elastic doctor`, and run a job with `elastic run FILE`" if options.waits else "`elastic doctor` says whether it runs"
    )


def _installed_image(controller: Object | None) -> str:
    """Return the installed image if it is of this release. Another one would not fit the objects that are made."""
    if controller is not None and obstacles.version_of(controller) == release() and (image := obstacles.image_of(controller)):
        return image
    raise click.UsageError(f"--image is missing; {BUILD}")


async def _check_rights(kube: Kube, options: Options, components: tuple[str, ...], mode: Mode) -> None:
    """Check rights before obstacles are looked for. An object that cannot be read would look as if it did not exist."""
    items = manifests.objects(options.overlay, components, namespace=options.namespace, image=manifests.IMAGE)
    items += trainer.outside(mode, home=options.namespace)
    asked = rights.over(items, rights.INSTALLING)
    secret = {"kind": "Secret", "metadata": {"name": shared_secret.NAME, "namespace": options.namespace}}
    asked += [right for right in rights.over([secret], ("get", "create")) if right not in asked]
    if options.overlay == STANDALONE:
        defining = [rights.Right(verb, CUSTOM_RESOURCE_DEFINITIONS) for verb in rights.INSTALLING]
        asked += [right for right in defining if right not in asked]
        asked.append(rights.Right("list", DEPLOYMENTS))
    if lacking := await rights.missing(kube, asked):
        advice = f", or install for one namespace with --overlay {NAMESPACED}" if options.overlay == STANDALONE else ""
        raise click.ClickException(f"{rights.in_words(lacking, len(asked))}; ask an administrator of the cluster{advice}")


async def _without_foreign_namespace(kube: Kube, items: list[Object]) -> list[Object]:
    """Leave out a namespace that others made. It stays as it is, because our labels would refuse their pods."""
    kept = []
    for item in items:
        if item["kind"] == "Namespace" and (there := await looking.there(kube, item)) is not None and not obstacles.is_managed(there):
            click.echo(f"namespace {item['metadata']['name']} is there already and stays as it is", err=True)
            continue
        kept.append(item)
    return kept


async def _without_foreign(kube: Kube, items: list[Object]) -> list[Object]:
    """Leave out the objects of TrainJobs that somebody else has made or changed."""
    kept = []
    for item in items:
        if (there := await looking.there(kube, item)) is not None and not trainer.is_only_ours(there):
            click.echo(f"{manifests.name(item)} is there already and stays as it is", err=True)
            continue
        kept.append(item)
    return kept


async def _surplus(kube: Kube, options: Options, items: list[Object], mode: Mode) -> list[Object]:
    """Return the objects that an earlier choice of components and mode made, and this one does not have."""
    kept = {manifests.name(item) for item in items}
    gone = []
    others = trainer.lease_objects(options.namespace) if mode is not Mode.INSTEAD else []
    for item in (*others, *manifests.every_object(options.overlay, namespace=options.namespace)):
        if item["kind"] == "Namespace" or manifests.name(item) in kept:
            continue
        there = await looking.there(kube, item)
        if there is not None and obstacles.is_managed(there):
            gone.append(item)
    return gone


async def _try_grants(kube: Kube, items: list[Object], options: Options) -> None:
    """Try to apply roles before anything changes, because nobody may grant more than they have. Roles wait for their namespace."""
    if options.overlay == NAMESPACED:
        await check_namespace(kube, options.namespace)
    for item in items:
        if item["kind"] in GRANTING and (options.overlay == NAMESPACED or "namespace" not in item["metadata"]):
            await changing.apply(kube, item, force=options.takes_over, dry_run=True)


async def _say_plan(kube: Kube, options: Options, items: list[Object], surplus: list[Object]) -> None:
    if options.overlay == STANDALONE:
        known = len(await looking.definitions(kube))
        click.echo(f"would apply {len(KINDS)} definitions of kinds, {known} of them there already")
    for item in items:
        verb = "create" if await looking.there(kube, item) is None else "apply"
        click.echo(plain(f"would {verb} {manifests.name(item)}"))
    if await looking.read(kube, SECRETS, shared_secret.NAME, namespace=options.namespace) is None:
        click.echo(f"would create Secret {options.namespace}/{shared_secret.NAME}, with a new key")
    for item in surplus:
        click.echo(plain(f"would delete {manifests.name(item)}"))
    click.echo("Nothing was changed.")


async def _make(kube: Kube, options: Options, outside: list[Object], items: list[Object], surplus: list[Object]) -> None:
    if options.overlay == STANDALONE:
        await changing.define(kube)
        await changing.until_defined(kube, options.timeout_s)
        click.echo(f"{len(KINDS)} definitions of kinds are established")
    await changing.bring_train_jobs(kube, outside, force=options.takes_over, timeout_s=options.timeout_s)
    for item in (item for item in items if item["kind"] == "Namespace"):
        await changing.apply(kube, item, force=options.takes_over)
    await changing.ensure_secret(kube, options.namespace)
    for item in (item for item in items if item["kind"] != "Namespace"):
        await changing.apply(kube, item, force=options.takes_over)
    click.echo(f"{len(outside) + len(items)} objects are applied")
    if surplus:
        await changing.remove(kube, surplus, options.timeout_s)
    if options.waits:
        await changing.until_ready(kube, items, options.timeout_s)
