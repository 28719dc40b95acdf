"""The command `elastic dashboard`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from elastic.api.rights import SYSTEM
from elastic.cli.cluster_choice import DATA_DIR, KUBECONFIG, Cluster, choose
from elastic.cli.interrupts import end_by_sigterm
from elastic.cli.options import command
from elastic.kube.client import Kube
from elastic.local.dashboard import link
from elastic.local.files import Layout, default_data_dir

OPEN = """The dashboard of namespace {namespace}, for one browser; Ctrl-C closes it:

  {link}
"""


def _account(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    namespace, separator, name = text.partition("/")
    if not (namespace and separator and name) or "/" in name:
        raise click.BadParameter(f"{text!r} is no account; write NAMESPACE/NAME")
    return namespace, name


@click.command()
@DATA_DIR
@KUBECONFIG
@click.option("--context", help="Context of the kubeconfig.  [default: its current one]")
@click.option("--namespace", "-n", default=SYSTEM, show_default=True, help="Namespace of the cluster's control plane.")
@click.option("--account", callback=_account, metavar="NAMESPACE/NAME", help="In a cluster: see what this service account may see.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default="a free one", help="Port of this machine for a cluster's dashboard."
)
def dashboard(
    data_dir: Path | None, kubeconfig: Path | None, context: str | None, namespace: str, account: tuple[str, str] | None, port: int
) -> None:
    """Open the dashboard. For the laptop cluster, print a link that lets one browser in, for 12 hours.

    For another cluster, the command serves the dashboard on this machine's loopback, through the API server, until Ctrl-C. The browser sees
    what the kubeconfig's token may see, or the service account of --account.
    """
    cluster = choose(data_dir, kubeconfig, context=context)
    if cluster.data_dir is not None:
        click.echo(_laptops(cluster.data_dir))
        return
    end_by_sigterm()
    _open(cluster, namespace, account, port)


def _laptops(folder: Path) -> str:
    url = link(Layout(folder))
    if url is None:
        shown = default_data_dir() if folder == default_data_dir().resolve() else folder
        raise click.ClickException(f"the cluster in {shown} shows no dashboard; `{command('down', shown)}`, then `{command('up', shown)}`")
    return url


def _open(cluster: Cluster, namespace: str, account: tuple[str, str] | None, port: int) -> None:
    from elastic.cli.showing.cluster import show

    def say(link: str) -> None:
        click.echo(OPEN.format(namespace=namespace, link=link))

    async def within(kube: Kube, _: str) -> None:
        await show(kube, namespace, account=account, port=port, say=say)

    try:
        cluster.ask(within)
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("closed")
