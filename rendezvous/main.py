"""The process `elastic-rendezvous`: reads its flags, opens its sockets, and runs the server until it is stopped."""

import asyncio
import asyncio.sslproto
import contextlib
import json
import logging
import os
import secrets
import socket
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
from aiohttp import web

from elastic.kube import connect
from elastic.kube.access import AccessError
from elastic.kube.client import Kube
from elastic.logs import log_to
from elastic.membership.tokens import BadKey
from elastic.runtime.listener import Bounds, Listener
from elastic.runtime.process import stop_on_signals, write_ready
from elastic_training.rendezvous.server.access import Gate, KubeReviewer
from elastic_training.rendezvous.server.credentials import Credentials, follow
from elastic_training.rendezvous.server.http import Face
from elastic_training.rendezvous.server.hub import Hub
from elastic_training.rendezvous.server.metrics import metrics_of

log = logging.getLogger(__name__)

BACKLOG = 4096
MOST_CONNECTIONS, MOST_STRANGERS = 32_768, 512
TLS_BUFFER = 16 * 1024
STOP_S = 3.0
DEFAULT_ACCOUNTS = ("system:serviceaccount:elastic-training:elastic-controller",)
DEFAULT_READERS = ("system:serviceaccount:elastic-training:elastic-autoscaler",)


@click.command()
@click.option(
    "--installation",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    required=True,
    help="Folder with server.key, ca.crt, tls.crt, tls.key.",
)
@click.option("--listen", multiple=True, metavar="HOST:PORT", help="Address to serve on; port 0 takes a free one. Repeatable.")
@click.option("--listen-fd", multiple=True, type=int, help="An already listening socket, inherited from the parent. Repeatable.")
@click.option("--kubeconfig", type=click.Path(path_type=Path, dir_okay=False), help="For TokenReview of the control plane's tokens.")
@click.option("--in-cluster", is_flag=True, help="Like --kubeconfig, with this pod's own service account.")
@click.option("--account", multiple=True, metavar="USER", help="Users whose tokens count as the control plane's.")
@click.option("--reader-account", "reader", multiple=True, metavar="USER", help="Users that may read every job's progress.")
@click.option(
    "--ready-file", type=click.Path(path_type=Path, dir_okay=False), help="Written, as JSON with the addresses, once the server serves."
)
@click.option("--ready-fd", type=int, help="Like --ready-file, into an inherited file descriptor.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning"]), default="info", show_default=True)
def main(
    installation: Path,
    listen: tuple[str, ...],
    listen_fd: tuple[int, ...],
    kubeconfig: Path | None,
    in_cluster: bool,
    account: tuple[str, ...],
    reader: tuple[str, ...],
    ready_file: Path | None,
    ready_fd: int | None,
    log_level: str,
) -> None:
    """Serve the rendezvous, which decides the members of each elastic job's world."""
    log_to(sys.stderr, level=log_level)
    try:
        credentials = Credentials(installation)
        kube = _api_server(kubeconfig) if kubeconfig is not None or in_cluster else None
        sockets = [_open(address) for address in listen] + [socket.socket(fileno=fd) for fd in listen_fd]
    except (AccessError, BadKey, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    if not sockets:
        raise click.ClickException("nothing to serve on; give --listen HOST:PORT or --listen-fd N")

    # asyncio keeps a read buffer of a quarter of a megabyte per TLS connection, and ours are many, idle, and carry small messages.
    asyncio.sslproto.SSLProtocol.max_size = TLS_BUFFER

    async def run() -> None:
        following = asyncio.create_task(follow(credentials))
        try:
            reviewer = KubeReviewer(kube) if kube is not None else None
            gate = Gate(
                keys=lambda: credentials.keys,
                reviewer=reviewer,
                accounts=account or DEFAULT_ACCOUNTS,
                readers=reader or DEFAULT_READERS,
            )
            await _serve(sockets, tls=credentials.tls, gate=gate, tell_ready=lambda text: _tell_ready(text, ready_file, ready_fd))
        finally:
            following.cancel()
            if kube is not None:
                await kube.close()

    asyncio.run(run())


def _api_server(kubeconfig: Path | None) -> Kube:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    return connect(kubeconfig, host=host, port=port)


async def _serve(sockets: list[socket.socket], *, tls: ssl.SSLContext, gate: Gate, tell_ready: Callable[[str], None]) -> None:
    hub = Hub(instance=secrets.token_hex(4), clock=time.monotonic)
    face = Face(
        hub=hub, gate=gate, clock=time.monotonic, metrics=metrics_of(hub.jobs, counts=lambda: (hub.failed_decisions, hub.dropped_states))
    )
    application = face.application()
    listener = Listener(Bounds.of_this_process(most=MOST_CONNECTIONS, strangers=MOST_STRANGERS))
    application.middlewares.append(listener.middleware)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=STOP_S)
    await runner.setup()
    assert runner.server is not None
    listener.open(sockets, runner.server, tls=tls, backlog=BACKLOG)
    addresses = ["{}:{}".format(*opened.getsockname()[:2]) for opened in sockets]
    stop = stop_on_signals()
    log.info("serving", extra={"addresses": addresses})
    tell_ready(json.dumps({"listen": addresses}))
    await stop.wait()
    log.info("stopping")
    await listener.close()
    await face.close()
    await listener.cleanup(runner)


def _open(address: str) -> socket.socket:
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit():
        raise ValueError(f"--listen {address}: expected HOST:PORT, such as 127.0.0.1:8443")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host.strip("[]"), int(port)), family=family, backlog=BACKLOG)


def _tell_ready(text: str, ready_file: Path | None, ready_fd: int | None) -> None:
    if ready_file is not None:
        write_ready(ready_file, text)
    if ready_fd is not None:
        with contextlib.suppress(BrokenPipeError):
            os.write(ready_fd, text.encode() + b"\n")
        os.close(ready_fd)


if __name__ == "__main__":
    main()
