"""Define the option `--image` for all commands that start a laptop cluster, read it, and refuse values that cannot stand for an image."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from elastic.local.agent.images import ImageError, parse_images

NONE = "none"
"""Forgets the folders of the last time."""


def _read(context: click.Context, parameter: click.Parameter, words: tuple[str, ...]) -> dict[str, Path] | None:
    if words in ((), (NONE,)):
        return {} if words else None
    try:
        return parse_images(words)
    except ImageError as error:
        raise click.BadParameter(str(error)) from error


def image_option(help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option("--image", "images", multiple=True, metavar="IMAGE=FOLDER", callback=_read, help=help)
