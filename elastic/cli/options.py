"""What several commands have in common: the option that says which cluster is meant, and how to name it in advice."""

from __future__ import annotations

from pathlib import Path

import click

from elastic.local.cluster import default_data_dir

SANDBOXES = ("auto", "netns", "loopback")
DATA_DIR = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=default_data_dir,
    show_default="~/.elastic",
    help="Where the cluster lives.",
)


def command(words: str, data_dir: Path) -> str:
    """A command line for the cluster in that folder."""
    return f"elastic {words}" + ("" if data_dir == default_data_dir() else f" --data-dir {data_dir}")
