"""How a command asks before it changes much: it shows what it would do, in order; on a terminal it asks, elsewhere only --yes does it."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click

from elastic.cli.printing import plain

YES = click.option("--yes", "-y", is_flag=True, help="Do it; otherwise it asks on a terminal, and elsewhere only shows.")


def agreed(changes: Iterable[str], *, yes: bool, is_shown: bool = True) -> bool:
    """What was agreed to before need not be shown: programs read what follows."""
    if yes and not is_shown:
        return True
    click.echo("It would, in this order:")
    for number, words in enumerate(changes, 1):
        click.echo(plain(f"  {number}. {words}"))
    if yes:
        return True
    if sys.stdin.isatty() and sys.stdout.isatty():
        return click.confirm("Do this?")
    click.echo("Nothing was changed; --yes does it.")
    return False
