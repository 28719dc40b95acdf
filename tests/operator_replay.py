"""Plays tests/operator against a controller that runs as its own service account, and says which must checks failed."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from control_plane import ROOT, SYSTEM, controller, controller_account, install_crds

SUITE = ROOT / "tests" / "operator"
SCHEDULERS = {"": "", "volcano": "volcano", "scheduler-plugins": "scheduler-plugins-scheduler"}
"""What a scenario needs, and the gang scheduler that the controller is started with for it."""


def prepare(kubeconfig: Path) -> None:
    asyncio.run(install_crds(kubeconfig, SUITE / "podgroup-crds.yaml"))


def failures(kubeconfig: Path, needs: str, folder: Path) -> list[str]:
    """The must checks that failed, in words, with the end of the controller's log."""
    scheduler = SCHEDULERS[needs]
    flags = ["--leader-elect", "--lease-namespace", SYSTEM, *(["--gang-scheduler-name", scheduler] if scheduler else [])]
    account = asyncio.run(controller_account(kubeconfig, folder))
    with controller(account, *flags, folder=folder) as log:
        report = _replayed(kubeconfig, needs)
    assert report["scenarios"], "no scenario was played"
    print(table(report))
    failed = [
        f"{scenario['scenario']} {check['check']}: {check['diffs'][0]}"
        for scenario in report["scenarios"]
        for check in scenario["checks"]
        if check["level"] == "must" and check["diffs"]
    ]
    return [*failed, log.read_text()[-2000:]] if failed else []


def table(report: dict[str, Any]) -> str:
    """One line per scenario: checks passed of all by level, and how many of those that may be better differ from the recording."""
    lines = [f"{'scenario':36} {'must':>7} {'should':>7} {'better':>7}"]
    for scenario in report["scenarios"]:
        checks = scenario["checks"]
        cells = []
        for level in ("must", "should"):
            found = [check for check in checks if check["level"] == level]
            cells.append(f"{sum(not check['diffs'] for check in found)}/{len(found)}")
        better = [check for check in checks if check["level"] == "better"]
        cells.append(f"{sum(bool(check['diffs']) for check in better)}/{len(better)}")
        lines.append(f"{scenario['scenario']:36} {cells[0]:>7} {cells[1]:>7} {cells[2]:>7}")
    return "\n".join([*lines, f"{report['passed']} passed, {report['failed']} failed"])


def _replayed(kubeconfig: Path, needs: str) -> dict[str, Any]:
    """All scenarios for this operator, played patiently: the machine may be slow and shared."""
    command = [sys.executable, str(SUITE / "replay.py"), "--kubeconfig", str(kubeconfig), "--json", "--patience", "40", "--parallel", "6"]
    ended = subprocess.run([*command, *(["--with", needs] if needs else [])], capture_output=True, text=True, timeout=800)
    assert ended.stdout, ended.stderr[-3000:]
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer
