"""Holds the controller to what the Training Operator did on a real API server, recorded in tests/operator.

It runs as its own service account, so that a right which deploy/base forgets shows here.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import ROOT, SYSTEM, api_server, controller, controller_account, install_crds

SUITE = ROOT / "tests" / "operator"


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with api_server(tmp_path_factory.mktemp("operator")) as path:
        asyncio.run(install_crds(path, SUITE / "podgroup-crds.yaml"))
        yield path


@pytest.mark.integration
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("needs", "scheduler"),
    [("", ""), ("volcano", "volcano"), ("scheduler-plugins", "scheduler-plugins-scheduler")],
    ids=["plain", "volcano", "scheduler-plugins"],
)
def test_every_must_check_of_the_recorded_operator_passes(kubeconfig: Path, tmp_path: Path, needs: str, scheduler: str) -> None:
    flags = ["--gang-scheduler-name", scheduler] if scheduler else []
    account = asyncio.run(controller_account(kubeconfig, tmp_path))
    with controller(account, "--leader-elect", "--lease-namespace", SYSTEM, *flags, folder=tmp_path) as log:
        report = replayed(kubeconfig, needs)
    failed = [
        f"{scenario['scenario']} {check['check']}: {check['diffs'][0]}"
        for scenario in report["scenarios"]
        for check in scenario["checks"]
        if check["level"] == "must" and check["diffs"]
    ]
    assert report["scenarios"], "no scenario was played"
    assert not failed, "\n".join([*failed, log.read_text()[-2000:]])


def replayed(kubeconfig: Path, needs: str) -> dict[str, list[dict[str, object]]]:
    """Plays all scenarios for this operator, patiently: the machine may be slow and shared."""
    command = [sys.executable, str(SUITE / "replay.py"), "--kubeconfig", str(kubeconfig), "--json", "--patience", "40", "--parallel", "6"]
    ended = subprocess.run([*command, *(["--with", needs] if needs else [])], capture_output=True, text=True, timeout=800)
    assert ended.stdout, ended.stderr[-3000:]
    return json.loads(ended.stdout)
