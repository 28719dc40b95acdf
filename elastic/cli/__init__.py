"""The command `elastic`. Each subcommand is a module, imported only when it is called: `elastic validate` needs no HTTP client."""

from __future__ import annotations

import importlib

import click

COMMANDS = {
    "validate": ("elastic.cli.validate:validate", "Check job files; name each problem and its place."),
    "crds": ("elastic.cli.crds:crds", "Print the custom resource definitions."),
    "up": ("elastic.cli.up:up", "Start the laptop cluster and the control plane on it."),
    "down": ("elastic.cli.up:down", "Stop the laptop cluster."),
    "status": ("elastic.cli.up:status", "Show the laptop cluster."),
    "resume": ("elastic.cli.resume:resume", "Start the jobs again that stopped with the laptop cluster."),
    "run": ("elastic.cli.run:run", "Run a job file to its end on the laptop cluster."),
    "signals": ("elastic.cli.signals:signals", "List the signals that announce disruptions; check added ones."),
    "node": ("elastic.cli.node:node", "Add, drain, taint, reclaim or kill a node of the laptop cluster."),
}


class Commands(click.Group):
    """Lists every command without importing one; imports the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="elastic-training", prog_name="elastic")
def main() -> None:
    """Elastic distributed training: jobs, the laptop cluster and what runs on it."""
