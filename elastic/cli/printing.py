"""Print what commands say: tables for people, JSON and YAML for programs, colour on a terminal only.

Words of clusters may hold anything. Control characters in them are escaped, because a terminal would obey them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from elastic.cli.documents import as_json
from elastic.client.plain import plain as plain

GAP = 3
COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_green")
STATES = {
    "Succeeded": "green",
    "Failed": "red",
    "Refused": "red",
    "Running": "cyan",
    "Restarting": "yellow",
    "Waiting": "yellow",
    "Suspended": "bright_black",
}


def output_option(*more: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option("--output", "-o", type=click.Choice(["table", *more, "json", "yaml"]), default="table", help="How to print it.")


def as_data(value: Any, output: str) -> str:
    if output == "json":
        return as_json(value)
    import yaml

    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    if not text.replace("\n", "").isprintable():
        text = yaml.safe_dump(value, sort_keys=False)
    return text.rstrip("\n")


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns as wide as their longest word; the last is not filled up."""
    lines = [list(headers), *([plain(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(line[at]) for line in lines) + GAP for at in range(len(headers))]
    return "\n".join("".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def has_colour() -> bool:
    """On a terminal, unless it has none or the user wants none (https://no-color.org)."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def coloured(text: str, colour: str | None) -> str:
    return click.style(text, fg=colour) if colour and has_colour() else text


def colour_of(name: str, names: Sequence[str]) -> str:
    return COLOURS[names.index(name) % len(COLOURS)] if name in names else COLOURS[0]
