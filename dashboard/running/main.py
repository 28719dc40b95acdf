"""The process `elastic-dashboard`: reads flags and environment, puts the parts together, and ends on a signal."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elastic.api.kinds import KINDS
from elastic.logs import log_to
from elastic.runtime.flags import chosen_kinds, identity
from elastic_training.dashboard.running.options import Options, mistakes

if TYPE_CHECKING:
    from elastic.kube.client import Kube

log = logging.getLogger("dashboard")
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command()
@click.option("--kubeconfig", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Default: the pod's service account.")
@click.option("--namespace", help="Show jobs of one namespace only; nodes are not shown then. Default: all.")
@click.option("--enable-kinds", "kinds", default=",".join(KINDS), show_default=True, help="Kinds to show.")
@click.option("--signals", type=click.Path(path_type=Path), help="File with rows for the table of signals; it may be missing.")
@click.option("--rendezvous-url", default="", help="Where the rendezvous server tells of jobs' progress.")
@click.option("--rendezvous-token", type=FILE, help="File with the token for the rendezvous server. It is read for each connection.")
@click.option("--rendezvous-ca", type=FILE, help="File with the CA of that server.")
@click.option("--listen", default="127.0.0.1:8080", show_default=True, metavar="HOST:PORT", help="Where browsers connect.")
@click.option("--dashboard-fd", "listen_fd", type=int, help="Like --listen, on a listening socket inherited from the parent.")
@click.option(
    "--host", "hosts", multiple=True, metavar="NAME", help="A name, in addition to localhost, by which browsers call it. Repeatable."
)
@click.option("--tls", type=FOLDER, help="Folder with tls.crt and tls.key, read again when they change.")
@click.option("--tls-elsewhere", is_flag=True, help="A proxy before us speaks TLS; cookies are sent by https only.")
@click.option("--laptop", type=FOLDER, help="Laptop: folder of the dashboard's own files; one-time tokens in links, for one user.")
@click.option("--user-kubeconfig", type=FILE, help="Laptop: of the user, in whose name logs are read and changes are made.")
@click.option("--allow-changes", is_flag=True, help="Let users scale, suspend and resume jobs, with their own rights.")
@click.option("--reclaim-command", multiple=True, metavar="WORD", help="Laptop: takes --seconds NUMBER NODE, and reclaims it. A word each.")
@click.option("--command-options", default="", help="Laptop: what commands of elastic need to find this cluster, as users are told them.")
@click.option("--metrics-port", default=0, show_default=True, help="Prometheus metrics; 0: none.")
@click.option("--health-port", default=0, show_default=True, help="/healthz and /readyz; 0: none.")
@click.option("--ready-file", type=FILE, help="Written once it serves and sees everything.")
@click.option("--log-level", default="info", show_default=True, type=click.Choice(["debug", "info", "warning", "error"]))
def main(*, log_level: str, kinds: str, **flags: Any) -> None:
    """Show jobs, their history, workers and nodes in a browser."""
    log_to(sys.stderr, level=log_level)
    options = Options(kinds=chosen_kinds(kinds), identity=identity(), **flags)
    if wrong := list(mistakes(options)):
        raise click.UsageError("\n".join(wrong))
    sys.exit(asyncio.run(_run(options)))


async def _run(options: Options) -> int:
    from elastic.runtime.cluster_process import run_on_cluster
    from elastic_training.dashboard.running.process import Process

    async def work(kube: Kube, stop: asyncio.Event) -> None:
        await Process(kube, options).run(stop)

    return await run_on_cluster(
        work,
        name="dashboard",
        log=log,
        kubeconfig=options.kubeconfig,
        identity=options.identity,
        not_started_by=(OSError, ValueError),
    )


if __name__ == "__main__":
    main()
