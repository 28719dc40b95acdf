"""Check what the set-up shows while pip works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
from setup_packages import Packages, canonical, to_install  # noqa: E402
from waiting import bar  # noqa: E402


def test_the_bar_counts_packages_that_pip_has_found_and_then_installed(tmp_path: Path) -> None:
    packages = Packages(tmp_path, frozenset({"torch", "typing-extensions", "aiohttp", "attrs"}))
    assert packages.standing() == "fetching packages [........................] 0 of 4"
    packages.hear("  Installing build dependencies: started\n")
    assert packages.standing().endswith("0 of 4 Installing build dependencies")
    packages.hear("Collecting torch==2.13.0 (from elastic-training==0.1.0)\n")
    packages.hear("Collecting torch==2.13.0\n")
    packages.hear("Requirement already satisfied: typing_extensions in here\n")
    packages.hear("Collecting hatchling\n")
    assert packages.standing() == "fetching packages [############............] 2 of 4 typing-extensions"
    packages.hear("Installing collected packages: torch, attrs\n")
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    for name in ("torch-2.13.0+cpu.dist-info", "attrs-26.1.0.dist-info", "pip-23.2.1.dist-info", "Typing_Extensions-4.dist-info"):
        (site / name).mkdir(parents=True)
    assert packages.standing() == "installing packages [##################......] 3 of 4"


def test_names_are_those_of_the_index() -> None:
    assert canonical("Prometheus_Client") == canonical("prometheus.client") == "prometheus-client"
    assert bar(0, 0) == "[........................] 0 of 0"


def test_the_bar_does_not_wait_for_packages_that_only_the_site_needs() -> None:
    names = to_install((ROOT / "constraints.txt").read_text())
    assert {"torch", "codespell"} <= names
    assert not {"mkdocs", "mkdocs-material", "watchdog"} & names


@pytest.mark.parametrize(("code", "words"), [(0, []), (3, ["what it said", "setup: making a: failed with exit code 3"])])
def test_a_command_shows_its_output_only_if_it_fails(code: int, words: list[str]) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "waiting.py"), "making a", "--", "sh", "-c", f"echo what it said; exit {code}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout.splitlines()) == (code, ["setup: making a", *words])
