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
    failed = [
        f"{scenario['scenario']} {check['check']}: {check['diffs'][0]}"
        for scenario in report["scenarios"]
        for check in scenario["checks"]
        if check["level"] == "must" and check["diffs"]
    ]
    return [*failed, log.read_text()[-2000:]] if failed else []


def _replayed(kubeconfig: Path, needs: str) -> dict[str, Any]:
    """All scenarios for this operator, played patiently: the machine may be slow and shared."""
    command = [sys.executable, str(SUITE / "replay.py"), "--kubeconfig", str(kubeconfig), "--json", "--patience", "40", "--parallel", "6"]
    ended = subprocess.run([*command, *(["--with", needs] if needs else [])], capture_output=True, text=True, timeout=800)
    assert ended.stdout, ended.stderr[-3000:]
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer
