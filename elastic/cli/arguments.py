"""Define arguments and options with completion that several commands share: jobs, nodes, and the choice of the cluster."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from elastic.cli import completion
from elastic.cli.cluster_choice import DATA_DIR, KUBECONFIG, choose

EVERYWHERE = click.option("--all-namespaces", "-A", "everywhere", is_flag=True, help="Of all namespaces.")
JOBS = click.argument("words", nargs=-1, required=True, metavar="[KIND] JOB...", shell_complete=completion.jobs)
JOB = click.argument("words", nargs=-1, required=True, metavar="[KIND] JOB", shell_complete=completion.jobs)
NODE = click.argument("name", shell_complete=completion.nodes)


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose cluster and namespace; the command gets a Cluster."""

    @functools.wraps(function)
    def chosen(*args: Any, data_dir: Path | None, kubeconfig: Path | None, context: str | None, namespace: str | None, **rest: Any) -> Any:
        return function(*args, cluster=choose(data_dir, kubeconfig, context=context, namespace=namespace), **rest)

    named = click.option(
        "--namespace", "-n", shell_complete=completion.namespaces, help="Where the job is.  [default: that of the kubeconfig]"
    )
    context = click.option("--context", help="Context of the kubeconfig.  [default: its current one]")
    return DATA_DIR(KUBECONFIG(context(named(chosen))))
