"""Compare the laptop cluster's API server and controllers with the recorded answers of a real control plane (tests/conformance).

Every check of level `must` passes, and at least four fifths of the checks of level `should`. The whole table is printed, to show what is
left.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
REPLAY = HERE.parent / "conformance" / "replay.py"

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while not path.exists() or not path.read_bytes():
        assert process.poll() is None, f"ended with {process.returncode} before it was ready"
        assert time.monotonic() < end, f"{path.name} did not appear in 60 s"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Run a fresh server with the controllers, without nodes and scheduler, as for the recordings. Yield the kubeconfig."""
    folder = tmp_path_factory.mktemp("conformance")
    server = subprocess.Popen(
        [sys.executable, "-m", "elastic.local.apiserver", "--data-dir", str(folder), "--ready-file", str(folder / "ready")]
    )
    agents: subprocess.Popen[bytes] | None = None
    try:
        wait_for(folder / "ready", server)
        command = [
            sys.executable,
            "-m",
            "elastic.local.agents",
            "--kubeconfig",
            str(folder / "kubeconfig"),
            "--data-dir",
            str(folder / "agents"),
        ]
        options = ["--cwd", str(folder), "--nodes", "0", "--gpus", "0", "--autoscaler-period-s", "2"]
        agents = subprocess.Popen([*command, *options, "--ready-file", str(folder / "agents-ready")])
        wait_for(folder / "agents-ready", agents)
        yield folder / "kubeconfig"
    finally:
        for process in (agents, server):
            if process is not None:
                process.terminate()
                process.wait(30)


@pytest.fixture(scope="module")
def report(control_plane: Path) -> dict[str, Any]:
    command = [sys.executable, str(REPLAY), "--kubeconfig", str(control_plane), "--patience", "10", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def steps(report: dict[str, Any], level: str) -> list[tuple[str, dict[str, Any]]]:
    return [(s["scenario"], step) for s in report["scenarios"] for step in s["steps"] if step["level"] == level]


def print_table(report: dict[str, Any]) -> None:
    print(f"\n{'scenario':26} {'must':>9} {'should':>9}")
    for scenario in report["scenarios"]:
        cells = []
        for level in ("must", "should"):
            checks = [s["ok"] for s in scenario["steps"] if s["level"] == level]
            cells.append(f"{sum(checks)}/{len(checks)}")
        print(f"{scenario['scenario']:26} {cells[0]:>9} {cells[1]:>9}")
    for level in ("must", "should"):
        found = [step for _, step in steps(report, level)]
        print(f"{level}: {sum(s['ok'] for s in found)} of {len(found)} checks")
        for name, step in steps(report, level):
            if not step["ok"]:
                print(f"  {level} {name} {step['id']}: {step['differences'][0]}")


def test_every_answer_that_a_client_depends_on_is_as_recorded(report: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print_table(report)
    failed = [(name, s["id"], s["differences"]) for name, s in steps(report, "must") if not s["ok"]]
    assert failed == []


def test_four_fifths_of_the_answers_that_people_notice_are_as_recorded(report: dict[str, Any]) -> None:
    found = [step["ok"] for _, step in steps(report, "should")]
    assert sum(found) >= 0.8 * len(found), f"{sum(found)} of {len(found)}"


def test_autoscalers_are_refused_in_a_real_servers_words(report: dict[str, Any]) -> None:
    (found,) = (scenario["steps"] for scenario in report["scenarios"] if scenario["scenario"] == "autoscalers")
    assert len(found) > 60
    assert [(step["id"], step["differences"], step["texts"]) for step in found if not step["ok"] or step["texts"]] == []
