"""Check that the scripts that run the tests find them."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_every_place_of_heavy_tests_is_there() -> None:
    """A missing place ended `make test-heavy` before its first test."""
    found = runpy.run_path(str(ROOT / "scripts" / "test_heavy.py"))
    assert [place for place in found["PLACES"] if not (ROOT / place).exists()] == []


def test_every_file_with_heavy_tests_is_run_by_their_runner() -> None:
    """No command ran the tests of Horovod's losses. `make test` leaves heavy tests out, and their runner did not name the file."""
    places = runpy.run_path(str(ROOT / "scripts" / "test_heavy.py"))["PLACES"]
    heavy = {file for file in (ROOT / "tests").rglob("test_*.py") if file != Path(__file__) and "pytest.mark.heavy" in file.read_text()}
    assert heavy <= {file for place in places for file in (ROOT / place, *(ROOT / place).glob("test_*.py"))}
