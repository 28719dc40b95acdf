"""The site has every page of the repository once in its navigation, and its links lead to pages that the site has."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
from docs_reference import COMMANDS, FIELDS, REASONS  # noqa: E402
from links import anchors, links, problems  # noqa: E402

from docs import Stage, as_mkdocs_wants, configured, navigation, sources  # noqa: E402


@pytest.fixture(scope="module")
def stage() -> Stage:
    return Stage()


def test_each_page_is_in_the_navigation_exactly_once(stage: Stage) -> None:
    listed = list(navigation(configured()["nav"]))
    assert sorted(listed) == sorted({*sources(), COMMANDS, FIELDS, REASONS})
    assert set(listed) <= set(stage.pages)


def test_each_link_of_the_site_leads_to_a_page_or_picture_of_the_site(stage: Stage, tmp_path: Path) -> None:
    """Links out of docs/ lead to files that a plain build would leave out."""
    stage.write(tmp_path / "pages")
    broken = [problem for page in stage.pages for problem in problems(tmp_path / "pages" / page)]
    assert broken == []
    folders = [
        f"{page}: {link.path}"
        for page, text in stage.pages.items()
        for link in links(text)
        if link.path and (tmp_path / "pages" / os.path.dirname(page) / link.path).is_dir()
    ]
    assert folders == []


def test_an_example_is_a_page_that_shows_its_files(stage: Stage) -> None:
    page = stage.pages["examples/pytorch-in-process/index.md"]
    assert {"jobyaml", "trainpy"} <= anchors(page)
    assert (ROOT / "examples/pytorch-in-process/train.py").read_text().rstrip() in page
    assert "../examples/pytorch-in-process/index.md#trainpy" in stage.pages["docs/examples.md"] + stage.pages["docs/in-process.md"]


def test_the_reference_has_each_command_field_and_reason(stage: Stage) -> None:
    assert "## `elastic node reclaim`" in stage.pages[COMMANDS]
    assert "| `minGainPercent` | number |" in stage.pages[FIELDS].partition("## `spec.elasticPolicy.scalingPolicy`")[2]
    assert "| `mpiTransport` | `Exec`, `SSH` |" in stage.pages[FIELDS].partition("## MPIJob: other fields")[2]
    assert "| `outOfMemory` |" in stage.pages[REASONS]
    assert "| `outOfMemory` |" not in stage.pages["docs/troubleshooting.md"]


@pytest.mark.parametrize(
    ("written", "staged"),
    [
        ("A list:\n- a\n  more\n- b\n  - c\n\n    d\n- e\n", "A list:\n\n- a\n    more\n- b\n    - c\n\n        d\n\n- e\n"),
        ("A table:\n| a |\n|---|\n| b |\nText.\n", "A table:\n\n| a |\n|---|\n| b |\nText.\n"),
        ("Run:\n```\n- a\n  b\n```\nText.\n", "Run:\n\n```\n- a\n  b\n```\n\nText.\n"),
        ("1. a\n   ```\n   b\n   ```\n2. c\n", "1. a\n\n    ```\n    b\n    ```\n\n2. c\n"),
        ("- It ends with\n  0. Then\n", "- It ends with\n    0\\. Then\n"),
    ],
)
def test_lists_tables_and_code_are_those_of_github(written: str, staged: str) -> None:
    assert as_mkdocs_wants(written) == staged
