"""Play tests/operator against a controller that runs as its own service account, and return the checks that failed."""

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control_plane import ROOT, SYSTEM, controller, controller_account, install_crds

from elastic.kube import connect
from elastic.runtime.election import Election
from elastic_training.controller.running.process import LEASE

SUITE = ROOT / "tests" / "operator"
SCHEDULERS = {"": "", "volcano": "volcano", "scheduler-plugins": "scheduler-plugins-scheduler"}
"""Need of a scenario: the gang scheduler that the controller is started with for it."""


@dataclass(frozen=True)
class Played:
    """Result of a run: a line per scenario, and the failures in words, with the end of the controller's log."""

    table: str
    failed: tuple[str, ...]


def prepare(kubeconfig: Path) -> None:
    asyncio.run(install_crds(kubeconfig, SUITE / "podgroup-crds.yaml"))


def played(kubeconfig: Path, needs: str, folder: Path) -> Played:
    scheduler = SCHEDULERS[needs]
    account = asyncio.run(controller_account(kubeconfig, folder))
    asyncio.run(_hold_lease(account))
    with controller(account, *(["--gang-scheduler-name", scheduler] if scheduler else []), folder=folder) as log:
        report = _replayed(kubeconfig, needs)
    assert report["scenarios"], "no scenario was played"
    failed = [
        f"{scenario['scenario']} {check['check']}: {check['diffs'][0]}"
        for scenario in report["scenarios"]
        for check in scenario["checks"]
        if check["diffs"]
    ]
    return Played(f"{needs}\n{_table(report)}", (*failed, log.read_text()[-2000:]) if failed else ())


async def _hold_lease(account: Path) -> None:
    """Use the account's right to the Lease. The suite's controller works without one, because a slow machine may lose it."""
    async with connect(account) as kube:
        election = Election(kube, namespace=SYSTEM, name=LEASE, me="suite", clock=time.monotonic)
        await election.win()
        await election.give_back()


def _table(report: dict[str, Any]) -> str:
    """Return a line per scenario: the checks that passed, and those of them that differ as tolerated.yaml lists it."""
    lines = [f"{'scenario':36} {'passed':>7} {'tolerated':>9}"]
    for scenario in report["scenarios"]:
        checks = scenario["checks"]
        passed = f"{sum(not check['diffs'] for check in checks)}/{len(checks)}"
        lines.append(f"{scenario['scenario']:36} {passed:>7} {sum(bool(check['tolerated']) for check in checks):>9}")
    return "\n".join([*lines, f"{report['passed']} passed, {report['failed']} failed"])


def _replayed(kubeconfig: Path, needs: str) -> dict[str, Any]:
    """Play all scenarios for this operator, many at a time because they mostly wait, and patiently because the machine may be slow."""
    command = [sys.executable, str(SUITE / "replay.py"), "--kubeconfig", str(kubeconfig), "--json", "--patience", "120", "--parallel", "12"]
    command += ["--with", needs] if needs else []
    ended = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert ended.stdout, ended.stderr[-3000:]
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer
