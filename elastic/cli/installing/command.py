"""`elastic install`: brings the control plane into a cluster, or up to this release; refuses first what would go wrong later."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import click

from elastic.api.crd import as_yaml, crd
from elastic.api.kinds import KINDS
from elastic.api.rights import SYSTEM
from elastic.cli.cluster_choice import KUBECONFIG, Cluster, choose
from elastic.cli.installing import changing, looking, manifests, obstacles, rights, shared_secret
from elastic.cli.installing.components import COMPONENTS, NAMESPACED, NONE, OVERLAYS, STANDALONE, in_order, problems
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
CHOICES = "; ".join(f"{name}: {one.what}" for name, one in COMPONENTS.items())
CONTEXT = click.option("--context", help="Of the kubeconfig.  [default: its current one]")
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
    """What the user asked for."""

    image: str | None
    overlay: str
    namespace: str
    components: tuple[str, ...] | None
    """None: those that are installed."""
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
    type=click.Choice([*COMPONENTS, NONE]),
    help=f"Again for each. {CHOICES}; {NONE}: without all of them.  [default: those that are installed]",
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
    cluster.ask(lambda kube, _: _install(kube, options))


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
    """All that would be made, but for the key, which is made once and in the cluster."""
    if options.image is None:
        raise click.UsageError(f"--image is missing; {BUILD}")
    components = options.components or ()
    _check(options, components)
    kinds = KINDS.values() if options.overlay == STANDALONE else ()
    items = _objects(options, components, options.image)
    if output == "json":
        click.echo(as_data({"apiVersion": "v1", "kind": "List", "items": [*map(crd, kinds), *items]}, output))
    else:
        click.echo("---\n".join([*map(as_yaml, kinds), *(as_data(item, output) + "\n" for item in items)]), nl=False)
    click.echo(f"without the Secret {shared_secret.NAME}: `elastic install` makes it in the cluster, or deploy/installation.sh", err=True)


def _check(options: Options, components: tuple[str, ...]) -> None:
    if wrong := list(problems(options.overlay, components)):
        raise click.UsageError("; ".join(wrong))


def _objects(options: Options, components: tuple[str, ...], image: str) -> list[Object]:
    made = manifests.objects(options.overlay, components, namespace=options.namespace, image=image)
    return [obstacles.marked(item, release(), components) for item in made]


async def _install(kube: Kube, options: Options) -> None:
    before = await looking.controller(kube, options.namespace)
    components = options.components if options.components is not None else obstacles.components_of(before) if before else ()
    _check(options, components)
    await _check_rights(kube, options, components)
    found = await looking.seen(kube, options.overlay, options.namespace, components=components)
    if words := obstacles.obstacle(found, options.wanted(components)):
        raise click.ClickException(plain(words))
    image = options.image or _installed_image(before)
    items = await _without_foreign_namespace(kube, _objects(options, components, image))
    surplus = await _surplus(kube, options, items) if before else []
    await _try_grants(kube, items, options)
    if options.is_trial:
        await _say_plan(kube, options, items, surplus)
        return
    if components:
        click.echo(f"components: {', '.join(components)}")
    await _make(kube, options, items, surplus)
    click.echo(f"elastic-training {release()} is {'ready' if options.waits else 'made'} in namespace {options.namespace}; {_next(options)}")


def _next(options: Options) -> str:
    return (
        "see it with `elastic doctor`, and run a job with `elastic run FILE`" if options.waits else "`elastic doctor` says whether it runs"
    )


def _installed_image(controller: Object | None) -> str:
    """That of this release; the image of another one would not fit what is made."""
    if controller is not None and obstacles.version_of(controller) == release() and (image := obstacles.image_of(controller)):
        return image
    raise click.UsageError(f"--image is missing; {BUILD}")


async def _check_rights(kube: Kube, options: Options, components: tuple[str, ...]) -> None:
    """Before obstacles are looked for: what cannot be read would look as if it were not there."""
    items = manifests.objects(options.overlay, components, namespace=options.namespace, image=manifests.IMAGE)
    asked = rights.over(items, rights.INSTALLING)
    secret = {"kind": "Secret", "metadata": {"name": shared_secret.NAME, "namespace": options.namespace}}
    asked += [right for right in rights.over([secret], ("get", "create")) if right not in asked]
    if options.overlay == STANDALONE:
        asked += [rights.Right(verb, CUSTOM_RESOURCE_DEFINITIONS) for verb in rights.INSTALLING]
        asked.append(rights.Right("list", DEPLOYMENTS))
    if lacking := await rights.missing(kube, asked):
        advice = f", or install for one namespace with --overlay {NAMESPACED}" if options.overlay == STANDALONE else ""
        raise click.ClickException(f"{rights.in_words(lacking, len(asked))}; ask an administrator of the cluster{advice}")


async def _without_foreign_namespace(kube: Kube, items: list[Object]) -> list[Object]:
    """A namespace that others made stays as it is: our labels would refuse their pods."""
    kept = []
    for item in items:
        if item["kind"] == "Namespace" and (there := await looking.there(kube, item)) is not None and not obstacles.is_managed(there):
            click.echo(f"namespace {item['metadata']['name']} is there already and stays as it is", err=True)
            continue
        kept.append(item)
    return kept


async def _surplus(kube: Kube, options: Options, items: list[Object]) -> list[Object]:
    """What an earlier choice of components made, and this one does not have."""
    kept = {manifests.name(item) for item in items}
    gone = []
    for item in manifests.every_object(options.overlay, namespace=options.namespace):
        if item["kind"] == "Namespace" or manifests.name(item) in kept:
            continue
        there = await looking.there(kube, item)
        if there is not None and obstacles.is_managed(there):
            gone.append(item)
    return gone


async def _try_grants(kube: Kube, items: list[Object], options: Options) -> None:
    """Nobody may grant more than they have, and the API server says so before anything is changed. Roles wait for their namespace."""
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


async def _make(kube: Kube, options: Options, items: list[Object], surplus: list[Object]) -> None:
    if options.overlay == STANDALONE:
        await changing.define(kube)
        await changing.until_defined(kube, options.timeout_s)
        click.echo(f"{len(KINDS)} definitions of kinds are established")
    for item in (item for item in items if item["kind"] == "Namespace"):
        await changing.apply(kube, item, force=options.takes_over)
    await changing.ensure_secret(kube, options.namespace)
    for item in (item for item in items if item["kind"] != "Namespace"):
        await changing.apply(kube, item, force=options.takes_over)
    click.echo(f"{len(items)} objects are applied")
    if surplus:
        await changing.remove(kube, surplus, options.timeout_s)
    if options.waits:
        await changing.until_ready(kube, items, options.timeout_s)
