"""`elastic crds`: prints the custom resource definitions, to be applied to a cluster."""

from __future__ import annotations

import click

from elastic.api.crd import as_yaml, crd
from elastic.api.kinds import KINDS
from elastic.cli.documents import as_json


@click.command()
@click.argument("kinds", nargs=-1, metavar="[KIND]...", type=click.Choice(list(KINDS), case_sensitive=False))
@click.option("--output", "-o", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True, help="How to print them.")
def crds(kinds: tuple[str, ...], output: str) -> None:
    """Print the custom resource definitions of all kinds of jobs, or of each KIND.

    They are too large for a plain `kubectl apply`; use `elastic crds | kubectl apply --server-side -f -`.
    """
    chosen = [KINDS[name] for name in kinds or KINDS]
    if output == "json":
        click.echo(as_json({"apiVersion": "v1", "kind": "List", "items": [crd(kind) for kind in chosen]}))
    else:
        click.echo("---\n".join(as_yaml(kind) for kind in chosen), nl=False)
