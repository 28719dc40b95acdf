"""`elastic signals`: shows the table of signals, and checks the rows that an installation adds to it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from elastic.runtime.signal_file import table_of


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path, exists=True, dir_okay=False))
def signals(file: Path | None) -> None:
    """List the signals by which workers learn that their node or pod goes; with FILE, also its rows, after a check of each.

    The exit status is 1 if a row is wrong.
    """
    table = table_of(file)
    width = max(len(row.name) for row in table.rows)
    for row in table.rows:
        click.echo(
            f"{row.name:<{width}}  {row.meaning.value:<7}  {f'{row.lead_s:g} s' if row.lead_s else '':>6}  {row.on.value}: {row.match}"
        )
    for problem in table.problems:
        click.echo(problem, err=True)
    sys.exit(1 if table.problems else 0)
