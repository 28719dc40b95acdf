"""What several commands have in common: the option that says which cluster is meant, and how to name it in advice."""

from __future__ import annotations

import os
from pathlib import Path

import click

from elastic.local.cluster import default_data_dir
from elastic.local.files import layout_of

SANDBOXES = ("auto", "netns", "loopback")


def _data_dir() -> Path:
    """That of the laptop cluster whose kubeconfig `elastic up` told one to export, else the usual one."""
    file = os.environ.get("KUBECONFIG")
    layout = layout_of(Path(file)) if file else None
    return layout.root if layout is not None else default_data_dir()


DATA_DIR = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=_data_dir,
    show_default="that of $KUBECONFIG, else ~/.elastic",
    help="Where the cluster lives.",
)


def command(words: str, data_dir: Path) -> str:
    """A command line for the cluster in that folder."""
    return f"elastic {words}" + ("" if data_dir == default_data_dir() else f" --data-dir {data_dir}")
