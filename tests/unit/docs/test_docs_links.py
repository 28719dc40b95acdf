"""Every link in a page of the repository leads somewhere, and scripts/links.py notices links that do not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
from links import anchors, links, problems  # noqa: E402

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").rglob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    assert list(problems(page)) == []


def test_the_anchor_of_a_heading_is_the_one_that_github_gives_it() -> None:
    text = "# The job: `elastic.api`\n## One owner per [fact](facts.md)\n## Twice\n## Twice\n```\n# No heading\n```\n### `a_b` & c, d!\n"
    assert anchors(text) == {"the-job-elasticapi", "one-owner-per-fact", "twice", "twice-1", "a_b--c-d"}


def test_links_in_code_and_to_other_hosts_are_left_alone() -> None:
    text = "[a](b.md#c) `[d](e.md)` [f](https://example.com/g)\n```\n[h](i.md)\n```\n![j](k.svg) [l](#m) [n](mailto:o@example.com)\n"
    found = [(link.path, link.anchor, text[link.start : link.end]) for link in links(text)]
    assert found == [("b.md", "c", "b.md#c"), ("k.svg", "", "k.svg"), ("", "m", "#m")]


def test_a_broken_link_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Here\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n[well](other.md#here)\n[no file](gone.md)\n[no heading](other.md#there) [nor here](#there)\n[root](/other.md)\n"
    )
    assert list(problems(page)) == [
        f"{page}:3: there is no file gone.md",
        f"{page}:4: other.md has no heading with the anchor #there",
        f"{page}:4: this page has no heading with the anchor #there",
        f"{page}:5: /other.md is absolute; write it relative to the page",
    ]
