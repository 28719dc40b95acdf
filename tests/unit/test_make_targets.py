"""What a make target sets up before it does its work, as make itself says it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = "scripts/setup-tests"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make")


def planned(target: str, venv: Path) -> list[str]:
    """The commands that make would run where nothing is set up."""
    done = subprocess.run(["make", "-n", target, f"VENV={venv}"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_only_what_runs_tests_looks_for_system_programs(tmp_path: Path) -> None:
    assert TOOLS not in planned("demo", tmp_path / "venv")
    assert TOOLS not in planned("check", tmp_path / "venv")
    for target in ("test", "test-full", "test-heavy", "setup"):
        assert TOOLS in planned(target, tmp_path / "venv"), target
    assert "apt-get" not in (ROOT / "scripts/setup").read_text()
