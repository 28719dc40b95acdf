"""Define the options of `elastic run` about the job that it makes for a script."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from elastic.api.job import INT32
from elastic.cli.images import Images
from elastic.client.script_job import MAX_RESTARTS, ScriptOptions, Workers
from elastic.kube.quantity import parse
from elastic.local.files import MOST_GPUS

MOST_RESTARTS, MOST_PROCESSES = 1000, 1024


@dataclass(frozen=True, slots=True)
class AskedForScript:
    """The options about the job of a script, and the names of those that a job file does not heed."""

    options: ScriptOptions
    given: str


def _workers(context: click.Context, parameter: click.Parameter, value: str | None) -> Workers | None:
    try:
        return None if value is None else Workers.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _quantity(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    try:
        if value is not None and parse(value) <= 0:
            raise ValueError(f"{value} is not more than 0")
    except ValueError as error:
        raise click.BadParameter(f"{error}; name an amount such as 2, 500m or 4Gi") from None
    return value


def _environment(context: click.Context, parameter: click.Parameter, words: tuple[str, ...]) -> dict[str, str] | None:
    """Return the variables, or None if none is given."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name:
            raise click.BadParameter(f"{word!r} has no name; give NAME=VALUE, or NAME to take its value from this shell")
        if not equals and name not in os.environ:
            raise click.BadParameter(f"{name} is not set in this shell; give {name}=VALUE")
        found[name] = value if equals else os.environ[name]
    return found or None


_OPTIONS = {
    "workers": click.option(
        "--workers",
        callback=_workers,
        metavar="N|MIN:MAX",
        help="Of a SCRIPT: how many workers, or from how many to how many.  [default: 1]",
    ),
    "max_restarts": click.option(
        "--max-restarts",
        type=click.IntRange(0, MOST_RESTARTS),
        help=f"Restarts of a SCRIPT after its own failures.  [default: {MAX_RESTARTS}, or 1 if it fails twice alike before a step]",
    ),
    "hang_timeout_s": click.option(
        "--hang-timeout",
        "hang_timeout_s",
        type=click.IntRange(1, INT32),
        metavar="SECONDS",
        help="Restart a SCRIPT that hangs for so long.  [default: never]",
    ),
    "first_step_s": click.option(
        "--first-step-timeout",
        "first_step_s",
        type=click.IntRange(1, INT32),
        metavar="SECONDS",
        help="How long a SCRIPT may take until its first step before somebody looks at its ranks.  [default: 600]",
    ),
    "cpus": click.option("--cpus", callback=_quantity, metavar="AMOUNT", help="CPUs of each worker of a SCRIPT, such as 2 or 500m."),
    "memory": click.option("--memory", callback=_quantity, metavar="AMOUNT", help="Memory of each worker of a SCRIPT, such as 4Gi."),
    "env": click.option(
        "--env",
        multiple=True,
        callback=_environment,
        metavar="NAME[=VALUE]",
        help="Environment variable of a SCRIPT; NAME alone takes the value of this shell. Repeatable.",
    ),
    "processes": click.option(
        "--nproc-per-node",
        "processes",
        type=click.IntRange(1, MOST_PROCESSES),
        help="Processes of each worker of a SCRIPT.  [default: one for each GPU, or one]",
    ),
    "name": click.option("--name", help="Of the job of a SCRIPT.  [default: the script's]"),
    "file": click.option(
        "--save",
        "file",
        type=click.Path(dir_okay=False, allow_dash=True),
        help="Write the job of a SCRIPT as YAML (- prints it); run nothing.",
    ),
}
"""The options by the name of their argument. A job file heeds none of them, because it says these things itself."""
_GPUS = click.option(
    "--gpus", type=click.IntRange(0, MOST_GPUS), default=0, help="GPUs of each worker of a SCRIPT, and of a cluster started for this run."
)


def script_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options. The command gets `asked`, an AskedForScript, and keeps `file` and `images`."""

    @functools.wraps(function)
    def with_options(*args: Any, images: Images, gpus: int, file: str | None, **rest: Any) -> Any:
        own = {name: rest.pop(name) for name in _OPTIONS if name != "file"}
        named = [*_flags({**own, "file": file}), *(["--image IMAGE"] if images.of_script else [])]
        chosen = {name: value for name, value in own.items() if value is not None}
        options = ScriptOptions(gpus=gpus, image=images.of_script, **chosen)
        return function(*args, asked=AskedForScript(options, " and ".join(named)), file=file, images=images, **rest)

    made: Callable[..., Any] = with_options
    for option in reversed([*_OPTIONS.values(), _GPUS]):
        made = option(made)
    return made


def _flags(given: dict[str, Any]) -> list[str]:
    """Return the options that were given, by their names on the command line."""
    flags = {"hang_timeout_s": "--hang-timeout", "first_step_s": "--first-step-timeout", "processes": "--nproc-per-node", "file": "--save"}
    return [flags.get(name, f"--{name.replace('_', '-')}") for name, value in given.items() if value is not None]
