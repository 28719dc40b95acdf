"""Open a cluster's dashboard from this machine: find its pod, forward to it through the API server, and serve it until Ctrl-C."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import tempfile
import time
from collections.abc import Callable

import aiohttp
import click
from aiohttp import web

from elastic.api.rights import DASHBOARD
from elastic.cli.installing.readiness import is_ready
from elastic.cli.printing import plain
from elastic.cli.showing.forward import MOST_CONNECTIONS, Forward, Target
from elastic.cli.showing.front import Front
from elastic.cli.showing.template import difference
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import DEPLOYMENTS, PODS

PORT = 8080
"""Port of the dashboard on the pod's loopback."""
TOKEN_S = 3600
CLOSE_S = 1.0


class Token:
    """Gives the caller's token: the kubeconfig's, or a token of a service account, which is renewed after half its life."""

    def __init__(self, kube: Kube, account: tuple[str, str] | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube, self._account, self._clock = kube, account, clock
        self._issued, self._until = "", -math.inf

    async def __call__(self) -> str:
        if self._account is None:
            if (token := await self._kube.bearer()) is None:
                raise KubeError(code=0, reason="NoToken", message=NO_TOKEN)
            return token
        if self._clock() >= self._until:
            namespace, name = self._account
            self._issued = await self._kube.token_of(name, namespace=namespace, lasts_s=TOKEN_S)
            self._until = self._clock() + TOKEN_S / 2
        return self._issued


NO_TOKEN = (
    "the kubeconfig has a certificate and no token, but the dashboard knows its callers by their tokens; "
    "name a service account whose rights it should use, with --account NAMESPACE/NAME"
)

FOREIGN = (
    "pod {pod} of namespace {namespace} is labelled as the dashboard, but does not run what Deployment elastic-dashboard describes: "
    "{words}. It gets no token from here. Find out who created it; if a webhook changed it, exempt the dashboard's pod from that webhook"
)


async def find(kube: Kube, namespace: str) -> Target:
    """Return a pod that runs exactly what the dashboard's Deployment describes, because it will get the caller's token."""
    deployment = await kube.find(DEPLOYMENTS, DASHBOARD, namespace=namespace)
    pods = (await kube.list(PODS, namespace=namespace, labels=f"app={DASHBOARD}")).items if deployment is not None else []
    ready = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"] and is_ready(pod)]
    if deployment is None or not ready:
        how = "is not ready yet" if pods else "does not run; `elastic install --component dashboard` adds it to the installed components"
        raise KubeError(code=0, reason="NoDashboard", message=f"the dashboard of namespace {namespace} {how}")
    unlike = [(pod, difference(pod, deployment)) for pod in ready]
    if (pod := next((pod for pod, words in unlike if not words), None)) is None:
        pod, words = unlike[0]
        raise KubeError(code=0, reason="NoDashboard", message=FOREIGN.format(pod=pod["metadata"]["name"], namespace=namespace, words=words))
    return Target(namespace, str(pod["metadata"]["name"]), str(pod["metadata"]["uid"]))


async def show(kube: Kube, namespace: str, *, account: tuple[str, str] | None, port: int, say: Callable[[str], None]) -> None:
    """Show the dashboard until cancelled. Raise the errors that can be found at the start before a link is given."""
    token = Token(kube, account)
    await token()
    forward = Forward(kube, lambda: find(kube, namespace), port=PORT, tell=lambda words: click.echo(plain(words), err=True))
    await forward.try_once()
    try:
        near = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise click.ClickException(f"port {port} of 127.0.0.1: {os.strerror(error.errno or 0)}; choose another with --port") from error
    with tempfile.TemporaryDirectory(prefix="elastic-") as folder:
        path = f"{folder}/dashboard.sock"
        async with await asyncio.start_unix_server(forward.carry, path), _far(path) as far:
            front = Front(far, token, port=near.getsockname()[1], left=say)
            runner = web.AppRunner(front.app(), access_log=None, handler_cancellation=True, shutdown_timeout=CLOSE_S)
            await runner.setup()
            try:
                await web.SockSite(runner, near).start()
                say(front.link)
                await asyncio.Event().wait()
            finally:
                await runner.cleanup()


def _far(path: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.UnixConnector(path, limit=MOST_CONNECTIONS), auto_decompress=False)
