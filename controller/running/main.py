"""The process `elastic-controller`: reads flags and environment, puts the parts together, and ends on a signal."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elastic.api.kinds import KINDS
from elastic.api.trainer.modes import Mode
from elastic.api.trainer.shipped import NAMESPACE as TRAINER_NAMESPACE
from elastic.logs import log_to
from elastic.runtime.election import LEASE_S
from elastic.runtime.flags import chosen_kinds, identity
from elastic_training.controller.running.options import Options, mistakes
from elastic_training.rendezvous.engine.messages.pace import WINDOW_S

if TYPE_CHECKING:
    from elastic.kube.client import Kube

log = logging.getLogger("controller")


@click.command()
@click.option("--kubeconfig", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Default: the pod's service account.")
@click.option("--namespace", help="Control jobs of one namespace only. Default: all.")
@click.option("--enable-kinds", "kinds", default=",".join(KINDS), show_default=True, help="Kinds to control.")
@click.option("--installation", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Folder with server.key and ca.crt.")
@click.option("--rendezvous-url", default="", help="Where this process reaches the rendezvous server.")
@click.option("--rendezvous-endpoint", default="", metavar="HOST:PORT", help="Where pods reach the rendezvous server.")
@click.option("--etcd-endpoint", default="", metavar="HOST:PORT,...", help="The installation's etcd as pods reach it; its members.")
@click.option("--etcd-url", default="", metavar="HOST:PORT,...", help="Where this process reaches it. Default: --etcd-endpoint.")
@click.option(
    "--etcd-on-demand",
    is_flag=True,
    help="It starts with the first connection: connect once a job meets there. Without, its authentication is turned on at once.",
)
@click.option(
    "--follow-user-etcd/--no-follow-user-etcd",
    "follows_user_etcd",
    default=True,
    show_default=True,
    help="Connect to the etcd that a job names in rdzvHost; without, its pods are counted.",
)
@click.option(
    "--worker-image",
    default="elastic-worker:latest",
    show_default=True,
    help="Brings elastic_worker into pods; own: the image of this pod.",
)
@click.option("--gang-scheduler-name", "gang_scheduler", default="", help="Make pod groups for this scheduler.")
@click.option(
    "--trainjobs",
    "train_jobs",
    default=Mode.OFF.value,
    show_default=True,
    type=click.Choice([mode.value for mode in Mode]),
    help="TrainJobs of Kubeflow Trainer v2 to serve: all, in place of its own controller; those that ask for it, next to it; or none.",
)
@click.option(
    "--trainer-namespace",
    default=TRAINER_NAMESPACE,
    show_default=True,
    help="Namespace with the Lease of Kubeflow Trainer's own controller, which --trainjobs=instead takes if this process uses Leases.",
)
@click.option("--cluster-domain", default="", help="Domain behind .svc in the names that TensorFlow gets.")
@click.option(
    "--pytorch-init-container-image",
    "init_image",
    default="alpine:3.10",
    show_default=True,
    help="Waits for the master, by nslookup in a shell; own: the worker image does, for as long as it takes.",
)
@click.option("--pytorch-init-container-max-tries", "init_tries", default=100, show_default=True, help="How often it looks, every 2 s.")
@click.option(
    "--mpi-kubectl-delivery-image",
    "kubectl_image",
    default="kubeflow/kubectl-delivery:latest",
    show_default=True,
    help="Brings the exec client into MPI launchers; own: the worker image brings ours.",
)
@click.option("--workers", default=16, show_default=True, type=click.IntRange(1, 256), help="Jobs worked on at a time.")
@click.option("--compat", hidden=True, type=click.Choice(["default", "strict"]))
@click.option("--metrics-port", default=0, show_default=True, help="Prometheus metrics; 0: none.")
@click.option("--health-port", default=0, show_default=True, help="/healthz and /readyz; 0: none.")
@click.option("--webhook-port", default=0, show_default=True, help="Port of the admission webhook; 0: none.")
@click.option("--webhook-fd", type=int, help="Like --webhook-port, on a listening socket inherited from the parent.")
@click.option(
    "--webhook-name",
    default="elastic-webhook",
    show_default=True,
    help="Name of the webhook's Service, of the Secret with its certificate and of the configuration that asks it.",
)
@click.option(
    "--webhook-certificate",
    type=click.Choice(["own", "secret"]),
    default="own",
    show_default=True,
    help="own: controllers make and renew the webhook's certificate in the Secret; secret: another program does, such as cert-manager.",
)
@click.option("--signals", type=click.Path(path_type=Path), help="File with rows for the table of signals; it may be missing.")
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path),
    help="Written once it sees everything and its webhook is open, whether it holds the Lease or waits for it.",
)
@click.option("--leader-elect/--no-leader-elect", default=False, show_default=True, help="Let only the holder of a Lease work.")
@click.option(
    "--lease-duration",
    "lease_duration_s",
    default=LEASE_S,
    show_default=True,
    type=click.FloatRange(min=1.0),
    help="Seconds without a sign of its holder after which another one takes the Lease.",
)
@click.option("--lease-namespace", default="", help="Where the Lease is. Default: the namespace of the account or kubeconfig.")
@click.option(
    "--straggler-window",
    "straggler_window_s",
    default=WINDOW_S,
    show_default=True,
    envvar="ELASTIC_STRAGGLER_WINDOW",
    type=click.FloatRange(0.2, 3600.0),
    metavar="SECONDS",
    help="Over how long workers measure their steps. A straggler is slow for five such windows in a row.",
)
@click.option("--log-level", default="info", show_default=True, type=click.Choice(["debug", "info", "warning", "error"]))
def main(*, log_level: str, kinds: str, train_jobs: str, compat: str | None, **flags: Any) -> None:
    """Keep training jobs of group kubeflow.org/v1 as their specs say."""
    log_to(sys.stderr, level=log_level)
    if compat is not None:
        log.warning("--compat has no effect; remove it, the next release refuses it", extra={"value": compat})
    # kopf logs each event that it hands over; our logs say what followed.
    logging.getLogger("kopf").setLevel(max(logging.getLogger().level, logging.WARNING))
    options = Options(kinds=chosen_kinds(kinds), identity=identity(), train_jobs=Mode(train_jobs), **flags)
    if wrong := list(mistakes(options)):
        raise click.UsageError("\n".join(wrong))
    sys.exit(asyncio.run(_run(options)))


async def _run(options: Options) -> int:
    from elastic.membership.tokens import BadKey
    from elastic.runtime.cluster_process import run_on_cluster
    from elastic_training.controller.running.process import OWN, Process
    from elastic_training.controller.watching.own_pod import NoPod, own_image

    async def work(kube: Kube, stop: asyncio.Event) -> None:
        chosen = replace(options, lease_namespace=options.lease_namespace or kube.access.namespace)
        if chosen.worker_image == OWN:
            chosen = replace(chosen, worker_image=await own_image(kube, pod=socket.gethostname()))
        await Process(kube, chosen).run(stop)

    return await run_on_cluster(
        work,
        name="controller",
        log=log,
        kubeconfig=options.kubeconfig,
        identity=options.identity,
        stopped_by=(NoPod,),
        not_started_by=(BadKey,),
    )


if __name__ == "__main__":
    main()
