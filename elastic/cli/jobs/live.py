"""Ask a dashboard how far training is right now: the laptop's, or the one that the user names with --dashboard.

Without a dashboard the commands show the job's status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import click

from elastic.cli.cluster_choice import Cluster
from elastic.cli.printing import plain
from elastic.client.live import SAFE, Dashboard, NoAnswer, ask, is_safe, of_laptop
from elastic.client.sample import Sample
from elastic.kube.client import Kube
from elastic.local.files import Layout

dashboard_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--dashboard",
    "url",
    envvar="ELASTIC_DASHBOARD",
    show_envvar=True,
    metavar="URL",
    help="Where a cluster's dashboard is forwarded to.  [default: the laptop's]",
)


def _warn(words: str) -> None:
    click.echo(words, err=True)


async def live(kube: Kube, cluster: Cluster, url: str | None, *, warn: Callable[[str], None] = _warn) -> dict[str, Sample]:
    """Return the newest sample of each job, by its uid.

    A dashboard that the user named must answer. The laptop's may be down, and costs at most three seconds.
    """
    if url is not None:
        if not is_safe(url):
            raise click.UsageError(f"--dashboard is {url!r} but {SAFE}")
        token = await asyncio.to_thread(kube.access.token)
        if not token:
            raise click.ClickException(f"the dashboard at {url} wants a token, and this kubeconfig has none; use one with a token")
        try:
            return await ask(Dashboard(url, {"Authorization": f"Bearer {token}"}))
        except NoAnswer as error:
            raise click.ClickException(plain(f"the dashboard at {url} does not say how jobs train: {error}")) from error
    laptops = of_laptop(Layout(cluster.data_dir)) if cluster.data_dir is not None else None
    if laptops is None:
        return {}
    try:
        return await ask(laptops)
    except NoAnswer as error:
        warn(plain(f"how far jobs are right now is unknown: the dashboard at {laptops.url}: {error}"))
        return {}
