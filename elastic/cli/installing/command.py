"""Run `elastic install`: bring the control plane into a cluster, or up to this release. It refuses first what would go wrong later."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import click

from elastic.api.crd import as_yaml, crd
from elastic.api.kinds import KINDS
from elastic.api.rights import SYSTEM
from elastic.api.trainer.modes import Mode
from elastic.cli.cluster_choice import KUBECONFIG, Cluster, choose
from elastic.cli.installing import shared_secret
from elastic.cli.installing.carrying_out import BUILD, carry_out, check, objects, outside_objects
from elastic.cli.installing.components import BY_NAME, NAMESPACED, NONE, OVERLAYS, STANDALONE, in_order
from elastic.cli.installing.options import Options
from elastic.cli.installing.values import given, page
from elastic.cli.installing.values.table import IMAGE as IMAGE_PATTERN
from elastic.cli.options import Seconds
from elastic.cli.printing import as_data, plain

NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
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


@click.command()
@click.option("--image", help="Of the control plane: REGISTRY/elastic-training:TAG.  [default: the one that is installed]")
@click.option(
    "--values",
    "-f",
    "files",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="YAML with values, as the Helm chart takes them. Later files win. They replace all values of an earlier installation.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="PATH=VALUE",
    help="One value, such as controller.replicas=3; the other installed values stay.",
)
@click.option("--print-values", is_flag=True, help="Print all values with their defaults, and ask no cluster.")
@OVERLAY
@click.option(
    "--component",
    "components",
    multiple=True,
    metavar="NAME",
    type=click.Choice([*BY_NAME, NONE]),
    help=f"Component to install, again for each: {', '.join(BY_NAME)}; {NONE}: without all of them. Short for --set etcd.enabled=true and "
    "the like.  [default: those that are installed]",
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
@click.option("--diff", "shows_changes", is_flag=True, help="Show what would change in the cluster, and change nothing.")
@click.option("--yes", "-y", "is_agreed", is_flag=True, help="Change an installation without asking; only a terminal is asked.")
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
    files: tuple[Path, ...],
    settings: tuple[str, ...],
    print_values: bool,
    overlay: str,
    train_jobs: str | None,
    upgrades: bool,
    takes_over: bool,
    is_trial: bool,
    shows_changes: bool,
    is_agreed: bool,
    waits: bool,
    timeout_s: float,
) -> None:
    """Install the control plane in a cluster, or upgrade it. Neither kubectl nor Helm is needed."""
    if print_values:
        click.echo(page.values_yaml(), nl=False)
        return
    options = Options(
        image=_checked_image(image),
        files=_read(files) if files else None,
        settings=_checked(partial(given.settings, settings)),
        overlay=overlay,
        namespace=home(namespace, overlay),
        components=in_order(set(components) - {NONE}) if components else None,
        train_jobs=Mode(train_jobs) if train_jobs is not None else None,
        upgrades=upgrades,
        takes_over=takes_over,
        is_trial=is_trial,
        shows_changes=shows_changes,
        is_agreed=is_agreed,
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
    if image is not None and not re.search(IMAGE_PATTERN, image):
        raise click.BadParameter(f"{image!r} is no name of an image; expected REGISTRY/elastic-training:TAG", param_hint="--image")
    return image


def _read(files: Sequence[Path]) -> given.Values:
    """Return the values of all files, of which the later ones win."""
    found = [_checked(partial(_read_one, file)) for file in files]
    return given.joined(*found)


def _read_one(file: Path) -> given.Values:
    if str(file) == "-":
        return given.read("standard input", sys.stdin.read())
    return given.read_file(file)


def _checked(reading: Callable[[], given.Values]) -> given.Values:
    try:
        return reading()
    except given.BadValues as error:
        raise click.ClickException(plain(str(error), keep="\n")) from error


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


def _print(options: Options, output: str) -> None:
    """Print all objects except the key, which is made once and in the cluster."""
    made = options.given({}, Mode.OFF)
    values = given.complete(made)
    if not values["image"]:
        raise click.UsageError(f"--image is missing; {BUILD}")
    check(options, made)
    kinds = KINDS.values() if options.overlay == STANDALONE else ()
    items = [*outside_objects(options, values), *objects(options, made, values)]
    if output == "json":
        click.echo(as_data({"apiVersion": "v1", "kind": "List", "items": [*map(crd, kinds), *items]}, output))
    else:
        click.echo("---\n".join([*map(as_yaml, kinds), *(as_data(item, output) + "\n" for item in items)]), nl=False)
    click.echo(f"without the Secret {shared_secret.NAME}: `elastic install` makes it in the cluster, or deploy/installation.sh", err=True)
