"""`elastic signals`: shows the table of signals, and checks the rows that an installation adds to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from elastic.cli.printing import as_data, output_option
from elastic.runtime.signal_file import table_of
from elastic.signals.signal import DisruptionSignal


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@output_option()
def signals(file: Path | None, output: str) -> None:
    """List the signals by which workers learn that their node or pod goes; with FILE, also its rows, after a check of each.

    The exit status is 1 if a row is wrong.
    """
    table = table_of(file)
    if output == "table":
        click.echo("\n".join(_lines(table.rows)))
    else:
        click.echo(as_data({"signals": [_data(row) for row in table.rows]}, output))
    for problem in table.problems:
        click.echo(problem, err=True)
    sys.exit(1 if table.problems else 0)


def _lines(rows: Sequence[DisruptionSignal]) -> Iterator[str]:
    width = max(len(row.name) for row in rows)
    for row in rows:
        yield f"{row.name:<{width}}  {row.meaning.value:<7}  {f'{row.lead_s:g} s' if row.lead_s else '':>6}  {row.on.value}: {row.match}"


def _data(row: DisruptionSignal) -> dict[str, Any]:
    lead = {"leadSeconds": row.lead_s} if row.lead_s else {}
    return {"name": row.name, "source": row.source, "meaning": row.meaning.value, "seenIn": row.on.value, "match": row.match, **lead}
