"""Find the names of jobs, namespaces and nodes that the shell completes.

The cluster that the rest of the line names is asked for them. If it does not answer within a second, nothing is completed, and no error is
shown, because the user is still typing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elastic.local.files import Layout

if TYPE_CHECKING:
    from elastic.cli.cluster_choice import Cluster
    from elastic.kube.client import Kube

WITHIN_S = 1.0


def jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete a job as NAME, or as KIND/NAME once the word has a slash. Jobs that the line already names are left out."""
    from elastic.cli.jobs import found

    prefix, slash, _ = incomplete.rpartition("/")
    everywhere = bool(ctx.params.get("everywhere"))

    async def read(kube: Kube, namespace: str) -> list[str]:
        kind, given = found.split([*(ctx.params.get("words") or ()), *([f"{prefix}/"] if slash else [])])
        there = await found.jobs(kube, None if everywhere else namespace, [kind] if kind is not None else None, with_bare=True)
        names = dict.fromkeys(job.key.name for job in there if job.key.name not in given)
        return [f"{prefix}{slash}{name}" for name in names]

    return _matching(incomplete, _of_cluster(ctx, read))


def namespaces(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from elastic.kube.resources import NAMESPACES

    async def read(kube: Kube, namespace: str) -> list[str]:
        return [one["metadata"]["name"] for one in (await kube.list(NAMESPACES)).items]

    return _matching(incomplete, _of_cluster(ctx, read))


def nodes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the nodes of the laptop cluster."""
    from elastic.cli.cluster_choice import Cluster
    from elastic.cli.options import data_dir
    from elastic.kube.resources import NODES

    async def read(kube: Kube, namespace: str) -> list[str]:
        return [one["metadata"]["name"] for one in (await kube.list(NODES)).items]

    layout = Layout((ctx.params.get("data_dir") or data_dir()).resolve())
    return _matching(incomplete, _asked(Cluster(layout.kubeconfig), read) if layout.is_running() else [])


def _matching(incomplete: str, names: list[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


def _of_cluster(ctx: click.Context, read: Callable[[Kube, str], Awaitable[list[str]]]) -> list[str]:
    from elastic.cli.cluster_choice import choose

    def given(name: str) -> Path | None:
        value = ctx.params.get(name)
        return Path(value) if value else None

    named = {name: ctx.params.get(name) for name in ("context", "namespace")}
    try:
        cluster = choose(given("data_dir"), given("kubeconfig"), context=named["context"], namespace=named["namespace"])
    except click.ClickException:
        return []
    return _asked(cluster, read)


def _asked(cluster: Cluster, read: Callable[[Kube, str], Awaitable[list[str]]]) -> list[str]:
    from elastic.cli.failures import said

    async def within(kube: Kube, namespace: str) -> list[str]:
        async with asyncio.timeout(WITHIN_S):
            return await read(kube, namespace)

    try:
        return cluster.ask(within)
    except click.ClickException:
        return []
    except Exception as error:
        if said(error) is None:
            raise
        return []
