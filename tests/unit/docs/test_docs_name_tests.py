"""Pages that say which test holds a promise name tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TESTS = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("page", ["compat.md", "faults.md"])
def test_every_test_that_a_page_names_exists(page: str) -> None:
    there = {path.stem for path in TESTS} | {name for text in TESTS.values() for name in re.findall(r"def (test_\w+)", text)}
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / page).read_text()))
    assert named - there == set()
    assert len(named) >= 10
