"""The scripts that run the tests find them."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_place_of_heavy_tests_is_there() -> None:
    """One that was missing ended `make test-heavy` before its first test."""
    found = runpy.run_path(str(ROOT / "scripts" / "test_heavy.py"))
    assert [place for place in found["PLACES"] if not (ROOT / place).exists()] == []
