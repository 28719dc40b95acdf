"""Define options that several commands share: the data folder of a laptop cluster, and durations."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click

from elastic.local.files import default_data_dir, layout_of

DURATION = re.compile(r"(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9}(?:\.\d{1,3})?)s?)?\Z", re.ASCII)
SANDBOXES = ("auto", "netns", "loopback")


def data_dir() -> Path:
    """Return the folder of the laptop cluster that $KUBECONFIG names, else the usual one."""
    file = os.environ.get("KUBECONFIG")
    layout = layout_of(Path(file)) if file else None
    return layout.root if layout is not None else default_data_dir()


DATA_DIR = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=data_dir,
    show_default="that of $KUBECONFIG, else ~/.elastic",
    help="Where the cluster lives.",
)


class Seconds(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no click.ParamType[float]
    """A time as kubectl takes it: 90, 90s, 2m, 1h30m."""

    name = "duration"

    def __init__(self, least: float = 0.0) -> None:
        self._least = least

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float | int):
            return float(value)
        found = DURATION.match(str(value))
        if found is None or not any(found.groups()):
            self.fail(f"{str(value)[:40]!r} is no time; write seconds, or as in 90s, 2m, 1h30m", param, ctx)
        seconds = sum(float(part) * size for part, size in zip(found.groups(), (3600, 60, 1), strict=True) if part)
        if seconds < self._least:
            self.fail(f"{value} is less than {self._least:g} s", param, ctx)
        return seconds


def command(words: str, data_dir: Path) -> str:
    """Return a command line for the cluster in that folder."""
    return f"elastic {words}" + ("" if data_dir == default_data_dir() else f" --data-dir {data_dir}")
