"""Choose the cluster that a command about jobs talks to.

It is the cluster of --kubeconfig, --data-dir or $KUBECONFIG, else the laptop cluster if it runs, else the cluster that kubectl would use.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from elastic.cli.options import command
from elastic.local.files import Layout, default_data_dir, layout_of

T = TypeVar("T")
MOST_LISTED = 64 * 1024 * 1024
"""Limit in bytes for one list of a command: it shows jobs and their pods to a person."""
KUBECTLS = Path.home() / ".kube" / "config"


def one_kubeconfig(ctx: click.Context, option: click.Parameter, given: str | None) -> Path | None:
    """Let an option win over the environment, as kubectl does. A list of files in the environment is refused."""
    if given is None:
        return None
    from_environment = ctx.get_parameter_source("kubeconfig") is ParameterSource.ENVIRONMENT
    if from_environment and ctx.params.get("data_dir"):
        return None
    if from_environment and len(files := [file for file in given.split(os.pathsep) if file]) > 1:
        raise click.BadParameter(f"KUBECONFIG names {len(files)} files; name the one to use with --kubeconfig")
    if not Path(given).is_file():
        raise click.BadParameter(f"there is no file {given}" + ("; unset KUBECONFIG to use the laptop cluster" if from_environment else ""))
    return Path(given)


DATA_DIR = click.option(
    "--data-dir",
    is_eager=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the laptop cluster lives.  [default: ~/.elastic]",
)
KUBECONFIG = click.option(
    "--kubeconfig",
    envvar="KUBECONFIG",
    show_envvar=True,
    callback=one_kubeconfig,
    metavar="FILE",
    help="Use this Kubernetes cluster instead.",
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster that was chosen."""

    kubeconfig: Path
    context: str | None = None
    namespace: str | None = None
    data_dir: Path | None = None
    """Data folder of the laptop cluster; None for any other cluster."""

    def ask(self, act: Callable[[Any, str], Awaitable[T]]) -> T:
        """Run a function with a client and the namespace to look into."""
        from elastic.kube import connect

        async def within() -> T:
            async with connect(self.kubeconfig, context=self.context, most_listed=MOST_LISTED) as kube:
                return await act(kube, self.namespace or kube.access.namespace)

        return asyncio.run(within())


def choose(data_dir: Path | None, kubeconfig: Path | None, *, context: str | None = None, namespace: str | None = None) -> Cluster:
    if kubeconfig and data_dir:
        raise click.UsageError("--kubeconfig and --data-dir name two clusters; give one of them")
    if kubeconfig is not None:
        return Cluster(kubeconfig, context, namespace, _folder_of(kubeconfig))
    layout = Layout((data_dir or default_data_dir()).resolve())
    if layout.is_running():
        return Cluster(layout.kubeconfig, context, namespace, layout.root)
    if data_dir is not None:
        raise click.ClickException(f"no cluster runs in {data_dir}; start it with `elastic up --detach --data-dir {data_dir}`")
    if KUBECTLS.is_file():
        return Cluster(KUBECTLS, context, namespace)
    raise click.ClickException("no cluster runs; start one with `elastic up --detach`, or name one with --kubeconfig FILE")


def _folder_of(kubeconfig: Path) -> Path | None:
    """Return the folder of the laptop cluster that wrote this kubeconfig, which KUBECONFIG often names, also after the cluster stopped."""
    layout = layout_of(kubeconfig)
    if layout is not None and not layout.is_running():
        raise click.ClickException(f"the laptop cluster in {layout.root} is stopped; start it with `{command('up --detach', layout.root)}`")
    return layout.root if layout is not None else None
