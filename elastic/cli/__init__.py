"""The command `elastic`. Each subcommand is a module, imported only when it is called: `elastic validate` needs no HTTP client."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import Any

import click

INTERRUPTED = 130
"""As shells have it for a command that Ctrl-C ended."""

SECTIONS = {
    "Jobs": {
        "run": ("elastic.cli.run:run", "Run a job file, or a script, to its end."),
        "get": ("elastic.cli.jobs.look:get", "Show jobs."),
        "describe": ("elastic.cli.jobs.look:describe", "Show a job with its conditions, pods and Events."),
        "explain": ("elastic.cli.jobs.wait:explain", "Say why a job has its size, what it waits for, what its last change cost."),
        "logs": ("elastic.cli.jobs.logs:logs", "Show what a job's training containers print."),
        "stacks": ("elastic.cli.jobs.stacks:stacks", "Show what each rank does now, with its Python stacks."),
        "events": ("elastic.cli.jobs.look:events", "Show what was reported of a job and its pods."),
        "top": ("elastic.cli.jobs.top:top", "Show what workers use and how far training is."),
        "wait": ("elastic.cli.jobs.wait:wait", "Wait until a job has ended, runs or is deleted."),
        "scale": ("elastic.cli.jobs.change:scale", "Change how many workers a job has."),
        "suspend": ("elastic.cli.jobs.change:suspend", "Stop jobs and free what they use."),
        "resume": ("elastic.cli.resume:resume", "Start suspended jobs again, and those that stopped with the laptop cluster."),
        "evict": ("elastic.cli.jobs.change:evict", "Evict a worker, as a drain does."),
        "delete": ("elastic.cli.jobs.change:delete", "Delete jobs with their pods."),
    },
    "Files": {
        "validate": ("elastic.cli.validate:validate", "Check job files; name each problem and its place."),
        "crds": ("elastic.cli.crds:crds", "Print the custom resource definitions."),
    },
    "Any cluster": {
        "install": ("elastic.cli.installing.command:install", "Install the control plane, or upgrade it."),
        "uninstall": ("elastic.cli.installing.uninstall:uninstall", "Remove the control plane; jobs stay unless you say otherwise."),
        "dashboard": ("elastic.cli.showing.command:dashboard", "Open the dashboard, of the laptop cluster or any other."),
        "adopt": ("elastic.cli.adopting.command:adopt", "Take a cluster's jobs over from the Training or MPI Operator, or give them back."),
    },
    "The laptop cluster": {
        "up": ("elastic.cli.up:up", "Start the laptop cluster and the control plane on it."),
        "down": ("elastic.cli.up:down", "Stop the laptop cluster."),
        "doctor": ("elastic.cli.doctor:doctor", "Look at all that a job needs and say what to do."),
        "status": ("elastic.cli.up:status", "Show the laptop cluster and its jobs."),
        "signals": ("elastic.cli.signals:signals", "List the signals that announce disruptions; check added ones."),
        "node": ("elastic.cli.node:node", "List, add, drain, taint, reclaim or kill nodes of the laptop cluster."),
    },
}
_STOP = "`elastic suspend JOB` stops a job and keeps it, `elastic delete JOB` removes it"
_SHOW = "`elastic get` shows jobs, `elastic top` what their workers use"
_RUN = "`elastic run FILE` runs a job file or a script, with --detach in the background"
OF_OTHERS = {
    **dict.fromkeys(("stop", "cancel", "kill", "terminate", "abort", "pause"), _STOP),
    **dict.fromkeys(("rm", "remove", "destroy"), "`elastic delete JOB` removes a job with its pods"),
    **dict.fromkeys(("ps", "list", "ls", "jobs", "queue", "squeue", "show"), _SHOW),
    **dict.fromkeys(("submit", "apply", "create", "launch", "exec", "sbatch", "train"), _RUN),
    **dict.fromkeys(("start", "restart"), "`elastic resume JOB` starts a suspended job, `elastic up` the laptop cluster"),
    **dict.fromkeys(("log", "tail", "attach", "follow"), "`elastic logs -f JOB` shows what a job prints"),
    **dict.fromkeys(("resize", "rescale"), "`elastic scale JOB COUNT` changes how many workers a job has"),
}
"""Commands of other tools, and what does the same here."""
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


def _help_of(ctx: click.Context, words: list[str]) -> click.Command:
    """`elastic help node add` is `elastic node add --help`."""
    group: click.Command = ctx.command
    for word in words:
        found = group.get_command(ctx, word) if isinstance(group, click.Group) else None
        if found is None:
            raise click.UsageError(f"there is no command {' '.join(words)!r}; `elastic --help` lists them", ctx)
        group, ctx = found, click.Context(found, info_name=word, parent=ctx)
    text = group.get_help(ctx)
    return click.Command("help", callback=lambda: click.echo(text))


def _open_closed_streams() -> None:
    """Open standard streams that a shell closed with `>&-`.

    The next file or socket would get the free number, and would be the output of this process and its children.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = open(os.devnull, "r+")  # noqa: SIM115  # until the process ends
            os.dup2(opened.fileno(), number)
            os.set_inheritable(number, True)
            setattr(sys, name, opened)


def _plainly(error: click.ClickException) -> click.ClickException:
    """Return the error without characters that a terminal would obey. Its words may come from a cluster or a credential program."""
    from elastic.client.plain import plain

    vars(error)["message"] = plain(error.message, keep="\n")  # final for click's types; the error keeps its class, exit code and usage
    return error


def _lacking(error: ModuleNotFoundError) -> str | None:
    from elastic.extras import lacking

    return lacking(error, user="this command")


class Commands(click.Group):
    """Lists all commands without importing them, and imports only the command that is called."""

    def main(self, *args: Any, **more: Any) -> Any:
        _open_closed_streams()
        return super().main(*args, **more)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args[:1] == ["help"]:
            return "help", _help_of(ctx, args[1:]), []
        if args == ["version"]:
            return "version", click.Command("version", callback=lambda: main.main(["--version"], standalone_mode=False)), []
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from elastic.api.reader import did_you_mean

            meant = f"; {OF_OTHERS[args[0]]}" if args[0] in OF_OTHERS else did_you_mean(args[0], COMMANDS)
            raise click.UsageError(f"there is no command {args[0]!r}{meant or '; `elastic --help` lists them'}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Print one line for a failure outside of us, and nothing for Ctrl-C. A traceback is a defect."""
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort) as error:
            if isinstance(error, click.Abort) and not isinstance(error.__context__, KeyboardInterrupt):
                raise  # a question met the end of the input
            if sys.stderr.isatty():
                click.echo(err=True)  # ends the line in which the terminal shows ^C
            raise click.exceptions.Exit(INTERRUPTED) from None
        except click.NoSuchOption as error:
            from elastic.cli.without_data import why

            if error.ctx is None or (words := why(error.ctx.info_name or "", error.option_name)) is None:
                raise
            raise click.UsageError(words, error.ctx) from None
        except click.ClickException as error:
            raise _plainly(error) from error.__cause__
        except (click.exceptions.Exit, BrokenPipeError):
            raise
        except Exception as error:
            if isinstance(error, BaseExceptionGroup) and error.subgroup(BrokenPipeError) is not None:
                raise BrokenPipeError(errno.EPIPE, "the reader of the output has left") from error  # click ends silently
            if isinstance(error, ModuleNotFoundError) and (line := _lacking(error)) is not None:
                raise click.ClickException(line) from None
            from elastic.cli.failures import said

            line = said(error)
            if line is None:
                raise
            raise _plainly(click.ClickException(line)) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="elastic-training", prog_name="elastic")
def main() -> None:
    """Elastic distributed training: jobs, the laptop cluster and what runs on it."""
