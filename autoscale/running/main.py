"""Run the process `elastic-autoscaler`: read the options, compose the parts, and stop on a signal."""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elastic.api.kinds import KINDS
from elastic.logs import log_to
from elastic.runtime.election import LEASE_S
from elastic.runtime.flags import chosen_kinds, identity
from elastic_training.autoscale.running.options import Options, mistakes

if TYPE_CHECKING:
    from elastic.kube.client import Kube

log = logging.getLogger("autoscale")
FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.option("--kubeconfig", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Default: the pod's service account.")
@click.option("--namespace", help="Scale jobs of one namespace only. The policies capacity and cost then do not work. Default: all.")
@click.option("--enable-kinds", "kinds", default=",".join(KINDS), show_default=True, help="Kinds to scale.")
@click.option("--rendezvous-url", default="", help="URL of the rendezvous server, which streams the progress of jobs.")
@click.option("--rendezvous-token", type=FILE, help="File with the token for the rendezvous server. It is read for each connection.")
@click.option("--rendezvous-ca", type=FILE, help="File with the CA of the rendezvous server.")
@click.option(
    "--cluster-grows",
    is_flag=True,
    help="The cluster adds nodes for pending pods, so free room limits only the policy capacity.",
)
@click.option(
    "--pages-through-api",
    is_flag=True,
    help="Read pages of elasticPolicy.progress through the API server, if pods cannot be reached. Needs the right to get pods/proxy.",
)
@click.option("--metrics-port", default=0, show_default=True, help="Prometheus metrics; 0: none.")
@click.option("--health-port", default=0, show_default=True, help="/healthz and /readyz; 0: none.")
@click.option(
    "--metrics-api-port",
    default=0,
    show_default=True,
    help="custom.metrics.k8s.io and external.metrics.k8s.io for HorizontalPodAutoscalers; 0: none.",
)
@click.option("--metrics-api-fd", type=int, help="Like --metrics-api-port, on a listening socket inherited from the parent.")
@click.option("--ready-file", type=FILE, help="File to write once all caches are filled, whether or not this process holds the Lease.")
@click.option("--leader-elect/--no-leader-elect", default=False, show_default=True, help="Let only the holder of a Lease act.")
@click.option(
    "--lease-duration",
    "lease_duration_s",
    default=LEASE_S,
    show_default=True,
    type=click.FloatRange(min=1.0),
    help="Seconds without a renewal after which another process takes the Lease.",
)
@click.option("--lease-namespace", default="", help="Namespace of the Lease. Default: the namespace of the account or kubeconfig.")
@click.option("--log-level", default="info", show_default=True, type=click.Choice(["debug", "info", "warning", "error"]))
def main(*, log_level: str, kinds: str, **flags: Any) -> None:
    """Choose the number of workers of elastic jobs with a scalingPolicy."""
    log_to(sys.stderr, level=log_level)
    options = Options(kinds=chosen_kinds(kinds), identity=identity(), **flags)
    if wrong := list(mistakes(options)):
        raise click.UsageError("\n".join(wrong))
    sys.exit(asyncio.run(_run(options)))


async def _run(options: Options) -> int:
    from elastic.runtime.cluster_process import run_on_cluster
    from elastic_training.autoscale.running.process import Process

    async def work(kube: Kube, stop: asyncio.Event) -> None:
        await Process(kube, replace(options, lease_namespace=options.lease_namespace or kube.access.namespace)).run(stop)

    return await run_on_cluster(
        work,
        name="autoscaler",
        log=log,
        kubeconfig=options.kubeconfig,
        identity=options.identity,
        not_started_by=(OSError, ValueError),
    )


if __name__ == "__main__":
    main()
