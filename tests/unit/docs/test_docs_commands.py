"""Check the commands and jobs that README.md and docs/ show.

Our commands have the options that a page gives them, jobs are valid, and the files in commands exist. Other tests run the commands and
check their effects. scripts/links.py checks the links.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from elastic.api import KINDS, parse
from elastic.cli import main

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def typed(page: Path) -> list[str]:
    """Return the command lines without prompt and comment."""
    lines = (line for language, text in BLOCK.findall(page.read_text()) if language in ("", "console") for line in text.splitlines())
    return [line.removeprefix("$ ").split("  #")[0].split(" | ")[0].strip() for line in lines]


def understood(words: list[str], command: click.Command = main) -> None:
    """Parse the words as the program does, without running anything. Raise click.UsageError if they are invalid."""
    while isinstance(command, click.Group):
        name, command, words = command.resolve_command(click.Context(command), words)
        assert command is not None, name
    command.make_parser(click.Context(command)).parse_args(list(words))


@each_page
def test_commands_of_ours_have_the_options_that_a_page_gives_them(page: Path) -> None:
    for line in typed(page):
        if line.startswith("elastic ") and "FOLDER" not in line:
            understood(shlex.split(line)[1:])


@each_page
def test_the_files_in_the_commands_of_a_page_are_there(page: Path) -> None:
    for line in typed(page):
        for word in line.split():
            if re.match(r"(examples|scripts|deploy|benchmarks)/", word):
                assert (ROOT / word).exists(), line


@each_page
def test_a_job_that_a_page_shows_whole_is_valid_without_a_warning(page: Path) -> None:
    for language, text in BLOCK.findall(page.read_text()):
        for document in yaml.safe_load_all(text) if language == "yaml" else ():
            if isinstance(document, dict) and document.get("kind") in KINDS:
                assert parse(document)[1] == []


def test_a_command_that_does_not_exist_would_be_noticed() -> None:
    for line in ("up --detached", "nodes add spare", "run --images a=b job.yaml"):
        with pytest.raises(click.UsageError):
            understood(shlex.split(line))
    assert sum(line.startswith("elastic ") for page in PAGES for line in typed(page)) > 20
