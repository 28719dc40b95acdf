"""Make the job of a script for `elastic run`, and write it into a file."""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path

import click

from elastic.api.errors import Warning
from elastic.api.kinds import KINDS
from elastic.cli import script_state
from elastic.cli.near_files import hint
from elastic.cli.validate import Report, examine, examine_object
from elastic.client.script_job import ScriptOptions, is_script, job_of
from elastic.kube.resources import Object

NOT_RUN = 2
LIKE = 0.75
"""Less like an option of this command, a word is one of the script's own."""

ON_A_CLUSTER = "# For a cluster, write the image that holds the script, and its path there. The laptop cluster pulls no image.\n"


class CannotRun(click.ClickException):
    """Nothing was run."""

    exit_code = NOT_RUN


class ScriptCommand(click.Command):
    """Tells the user where to write the script's own options, if one of them is not ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            script = next((word for word in words if is_script([word])), None)
            if script is None:
                raise
            meant = difflib.get_close_matches(error.option_name, error.possibilities or (), n=1, cutoff=LIKE)
            said = f"{error.message}{f' Did you mean {meant[0]}?' if meant else ''} The script's own options stand after `--`:"
            raise click.UsageError(f"{said} elastic run {script} -- {error.option_name} ...", ctx) from None


def report_of(sources: tuple[str, ...], options: ScriptOptions) -> Report:
    """Return the report on the job of this script."""
    script = Path(sources[0]).resolve()
    if not script.is_file():
        raise CannotRun(f"there is no file {sources[0]}{hint(Path(sources[0]))}")
    job = job_of(script, sources[1:], options, working_dir=Path.cwd())
    report = examine_object(job, file=sources[0])
    if words := script_state.warning(script):
        report.verdicts = [replace(verdict, warnings=(*verdict.warnings, Warning((), words))) for verdict in report.verdicts]
    return report


def save(job: Object, file: str, *, script: Path) -> None:
    """Write the job to a file. Only a file that already has a job is overwritten."""
    import yaml

    text = ON_A_CLUSTER + yaml.safe_dump(job, sort_keys=False, allow_unicode=True)
    if file == "-":
        click.echo(text, nl=False)
        return
    path = Path(file)
    try:
        if path.exists() and path.samefile(script):
            raise CannotRun(f"--save {file} is the script itself; name a file for the job, such as {path.with_suffix('.yaml')}")
        if path.is_file() and path.stat().st_size and not _is_job(file):
            raise CannotRun(
                f"--save {file}: this file is there and is not the YAML of one job; name another file, or remove this one first"
            )
        path.write_text(text)
    except OSError as error:
        raise CannotRun(f"{file} cannot be written: {error.strerror}") from error
    click.echo(f"the job is in {file}; run it with `elastic run {file}`")


def _is_job(file: str) -> bool:
    report = examine((file,))
    return [verdict.kind in KINDS for verdict in report.verdicts] == [True] and not report.others and not report.unreadable
