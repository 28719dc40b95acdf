"""Make targets set up only what they need, and `make test-fast` runs the tests of all decisions."""

from __future__ import annotations

import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOOLS = "scripts/setup-tests"


def planned(target: str, venv: Path) -> list[str]:
    """Return the commands that make would run if nothing is set up."""
    done = subprocess.run(["make", "-n", target, f"VENV={venv}"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_only_what_runs_tests_looks_for_system_programs(tmp_path: Path) -> None:
    assert TOOLS not in planned("demo", tmp_path / "venv")
    assert TOOLS not in planned("check", tmp_path / "venv")
    for target in ("test", "test-full", "test-heavy", "setup"):
        assert TOOLS in planned(target, tmp_path / "venv"), target
    assert "apt-get" not in (ROOT / "scripts/setup").read_text()


def test_the_fast_tests_have_the_laws_of_every_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new module of plain values once made `make test-fast` skip the laws of the engine, because the messages of a change import it."""
    monkeypatch.chdir(ROOT)
    chosen = set(runpy.run_path("scripts/test_fast.py")["chosen"]())
    wanted = {str(path.relative_to(ROOT)) for path in (ROOT / "tests/unit").rglob("test_*_laws.py")}
    assert wanted
    assert wanted - chosen == set()
