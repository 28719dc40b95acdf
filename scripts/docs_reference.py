"""Generate the pages of the documentation site that list what the code defines: commands, fields of jobs, and reasons."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

import click

COMMANDS = "docs/commands.md"
"""Page with the options of the command `elastic`."""
FIELDS = "docs/fields.md"
"""Page with the fields of the custom resource definitions."""
REASONS = "docs/reasons.md"
TROUBLES = "docs/troubleshooting.md"
"""Page with generated tables of reasons, which the site shows on REASONS, a page of its reference."""
TABLES = re.compile(r"^<!-- reasons: begin[^\n]*-->\n(.*)^<!-- reasons: end -->\n", re.MULTILINE | re.DOTALL)
PLAIN = {"integer": "number", "boolean": "true or false", "array": "list"}


def generated(troubles: str) -> dict[str, str]:
    """Return the generated pages, and the page on troubles without the tables that are one of them."""
    reasons, remaining = without_tables(troubles)
    return {COMMANDS: commands_page(), FIELDS: fields_page(), REASONS: reasons, TROUBLES: remaining}


def without_tables(page: str) -> tuple[str, str]:
    """Return the page of reasons, and the page on troubles that links to it instead of showing the same tables."""
    tables = TABLES.search(page)
    if tables is None:
        raise ValueError(f"{TROUBLES} has no tables of reasons")
    intro = "# Reasons\n\nLook up a word that `-o json`, a condition or an Event shows, and find out what to do about it.\n\n"
    shown_there = tables[1].replace("](#", f"]({PurePosixPath(TROUBLES).name}#").replace("\n###", "\n##")
    return intro + shown_there, TABLES.sub(f"[All words and their meanings]({PurePosixPath(REASONS).name}).\n", page)


def commands_page() -> str:
    """Return a page with the help of each command, as the program prints it."""
    from elastic.cli import main as elastic

    def described(command: click.Command, words: str) -> Iterator[str]:
        context = click.Context(command, info_name=words, terminal_width=88, max_content_width=88)
        yield from (f"## `{words}`", "", "```text", command.get_help(context), "```", "")
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                part = command.get_command(context, name)
                if part is not None and not part.hidden:
                    yield from described(part, f"{words} {name}")

    intro = (
        "Look up any command and its options, as `elastic COMMAND --help` prints them. To learn what to use when, read [this page](cli.md)."
    )
    return "\n".join(["# All commands and options", "", intro, "", *described(elastic, "elastic")])


def fields_page() -> str:
    """Return a page with the fields of all kinds, as `kubectl explain` describes them."""
    from elastic.api.crd import crd
    from elastic.api.kinds import KINDS

    specs = {}
    for kind in KINDS.values():
        schema = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        specs[kind.name] = schema["properties"]["spec"]["properties"]
    parts = [
        "# All fields of a job",
        "",
        "Look up any field of a job, as `kubectl explain` describes it. To learn what to write, read [the job API](jobs-api.md).",
        "",
    ]
    first = specs["PyTorchJob"]
    for name in ("runPolicy", "elasticPolicy"):
        parts += _section(f"spec.{name}", first[name])
    for kind_name, spec in specs.items():
        own = {name: field for name, field in spec.items() if name not in ("runPolicy", "elasticPolicy")}
        parts += _section(f"{kind_name}: other fields", {"properties": own})
    return "\n".join(parts)


def _section(title: str, schema: Mapping[str, Any]) -> list[str]:
    """Return a table of an object's fields, and one for each object in it that has described fields."""
    rows, inner = [], []
    for name, field in schema["properties"].items():
        values = field.get("enum") or field.get("items", {}).get("enum")
        words = PLAIN.get(field.get("type", ""), field.get("type", "number or text"))
        kind = ", ".join(f"`{value}`" if value else '`""`' for value in values) if values else words.replace("string", "text")
        rows.append(f"| `{name}` | {kind} | {field.get('description', '').replace('|', chr(92) + '|')} |")
        below = field.get("items", field)
        if any("description" in each for each in below.get("properties", {}).values()):
            inner += _section(f"{title}.{name}", below)
    return [
        f"## `{title}`" if title.startswith("spec.") else f"## {title}",
        "",
        "| field | value | meaning |",
        "|---|---|---|",
        *rows,
        "",
        *inner,
    ]
