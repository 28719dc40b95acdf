"""Ask before a command changes much: show its changes in order, and ask on a terminal. Without a terminal only --yes makes the changes."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click

from elastic.cli.printing import plain

YES = click.option(
    "--yes",
    "-y",
    is_flag=True,
    help="Make the changes without asking. Without it, the command asks on a terminal, and elsewhere only shows the changes.",
)


def agreed(changes: Iterable[str], *, yes: bool, is_shown: bool = True) -> bool:
    """Return whether the user agrees to the changes.

    With `yes`, `is_shown=False` leaves out the list of changes, because a program reads the output.
    """
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
