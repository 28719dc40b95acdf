"""How far training is right now: the dashboard knows, which hears it from the rendezvous server. A laptop's is asked in the name of its
user, another one, of --dashboard, with the kubeconfig's token. Without one the commands show what the status says.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from elastic.cli.cluster_choice import Cluster
from elastic.cli.printing import plain
from elastic.client.sample import Sample, samples
from elastic.kube.client import Kube
from elastic.local import dashboard
from elastic.local.files import Layout
from elastic.runtime import signed_cookie

if TYPE_CHECKING:
    import aiohttp

WITHIN_S = 3.0
COOKIE_S = 60
NOT_YET = 503
"""A dashboard that has just started has not seen the cluster."""
MOST_BYTES = 16 << 20
"""Of an answer; 5,000 jobs have about 4 MB."""

dashboard_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--dashboard",
    "url",
    envvar="ELASTIC_DASHBOARD",
    show_envvar=True,
    metavar="URL",
    help="Where a cluster's dashboard is forwarded to.  [default: the laptop's]",
)


async def live(kube: Kube, cluster: Cluster, url: str | None) -> dict[str, Sample]:
    """By the uid of the job. A dashboard that the user named must answer; the laptop's may be down, and costs three seconds at most."""
    import aiohttp

    if url is not None:
        _check_address(url)
        token = await asyncio.to_thread(kube.access.token)
        if not token:
            raise click.ClickException(f"the dashboard at {url} wants a token, and this kubeconfig has none; use one with a token")
        try:
            return await _ask(url, {"Authorization": f"Bearer {token}"})
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise click.ClickException(f"the dashboard at {url} does not say how jobs train: {_why(error)}") from error
    layout = Layout(cluster.data_dir) if cluster.data_dir is not None else None
    if layout is None or (at := dashboard.address(layout)) is None:
        return {}
    cookie = dashboard.cookie(layout, int(time.time()) + COOKIE_S)
    try:
        return await _ask(at, {"Cookie": f"{signed_cookie.NAME}={cookie}"}) if cookie is not None else {}
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        click.echo(f"how far jobs are right now is unknown: the dashboard at {at}: {_why(error)}", err=True)
        return {}


def _why(error: Exception) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else str(error)


def _check_address(url: str) -> None:
    """A token in plain text goes to this machine only."""
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")):
        return
    raise click.UsageError(f"--dashboard is {url!r} but must begin with https://, or name a port of this machine: http://localhost:8080")


async def _ask(url: str, headers: dict[str, str]) -> dict[str, Sample]:
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=WITHIN_S)
    async with (
        aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
        session.get(f"{url.rstrip('/')}/api/jobs", allow_redirects=False) as answer,
    ):
        if answer.status == NOT_YET:
            return {}
        if answer.status != 200:
            raise ValueError(f"it answers {answer.status}: {plain((await answer.content.read(300)).decode(errors='replace'))}")
        return samples(await _bounded(answer))


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > MOST_BYTES:
            raise ValueError(f"its answer has more than {MOST_BYTES >> 20} MB")
    return bytes(body)
