"""Define the option `--image` for all commands that start a laptop cluster, read it, and refuse values that cannot stand for an image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from elastic.local.agent.images import ImageError, parse_images

NONE = "none"
"""Forgets the folders of the last time."""


@dataclass(frozen=True, slots=True)
class Images:
    """The values of the option, for a command that also runs scripts."""

    folders: dict[str, Path] | None
    of_script: str | None = None
    """The image of the job that the command makes for a script."""


def _read(context: click.Context, parameter: click.Parameter, words: tuple[str, ...]) -> dict[str, Path] | None:
    if words in ((), (NONE,)):
        return {} if words else None
    try:
        return parse_images(words)
    except ImageError as error:
        raise click.BadParameter(str(error)) from error


def _read_with_scripts(context: click.Context, parameter: click.Parameter, words: tuple[str, ...]) -> Images:
    names = [word for word in words if "=" not in word and word != NONE]
    if len(names) > 1:
        raise click.BadParameter(f"{names[0]} and {names[1]} are two images for one script; give one of them")
    return Images(_read(context, parameter, tuple(word for word in words if word not in names)), names[0] if names else None)


def image_option(help: str, *, of_script: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option. of_script: an image without a folder is that of a script's job, and the command gets Images."""
    metavar, read = ("IMAGE[=FOLDER]", _read_with_scripts) if of_script else ("IMAGE=FOLDER", _read)
    return click.option("--image", "images", multiple=True, metavar=metavar, callback=read, help=help)
