"""Plays tests/operator against a controller that runs as its own service account, and says which checks failed that must not."""

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from control_plane import ROOT, SYSTEM, controller, controller_account, install_crds

from controller.running.process import LEASE
from elastic.certificates import make_ca
from elastic.kube import connect
from elastic.runtime.election import Election

SUITE = ROOT / "tests" / "operator"
SCHEDULERS = {"": "", "volcano": "volcano", "scheduler-plugins": "scheduler-plugins-scheduler"}
"""What a scenario needs, and the gang scheduler that the controller is started with for it."""

ONLY_STRICT = {
    "": (
        "mpi-options/exec-mpi",
        "mpi-options/exec-verbs",
        "mpi-scale/exec-mpi",
        "mpi-scale/exec-verbs",
        "mpi-static/exec-mpi",
        "mpi-static/exec-verbs",
        "paddle-elastic/environment",
        "pytorch-elastic-defaults/rendezvous",
        "pytorch-elastic-etcd/environment",
        "pytorch-elastic-hpa/autoscaler",
        "pytorch-elastic-hpa/autoscaler-again",
        "pytorch-elastic-hpa/max-raised",
    ),
    "volcano": ("gang-volcano-elastic/created", "gang-volcano-elastic/out-group", "gang-volcano-mpi/in-queue-mpi"),
    "scheduler-plugins": ("gang-plugins-elastic/created", "gang-plugins-elastic/out-group", "gang-plugins-mpi/made-mpi"),
}
"""The steps marked `better` whose difference is an object that is made: with strict compatibility they must pass as well."""


class Mode(NamedTuple):
    """How the controller is started for a run of the suite."""

    needs: str
    compat: str
    only: tuple[str, ...] = ()
    """Patterns of the scenarios that are played; none: all."""

    def __str__(self) -> str:
        return f"{self.compat}-{self.needs or 'plain'}{'-differences' if self.only else ''}"


STRICT = Mode("", "strict")
MODES = [Mode(needs, compat) for needs in SCHEDULERS for compat in ("default", "strict")]
DIFFERENCES = Mode("", "strict", ("mpi-*", "*-elastic*", "*-static", "jax-workers", "tf-ps-worker"))
"""What strict changes (docs/compat.md): elastic jobs, MPI launchers, and the Events of a job of each kind."""


@dataclass(frozen=True)
class Played:
    """What a run came to: a line per scenario, and in words what failed, with the end of the controller's log."""

    table: str
    failed: tuple[str, ...]


def prepare(kubeconfig: Path) -> None:
    asyncio.run(install_crds(kubeconfig, SUITE / "podgroup-crds.yaml"))


def played(kubeconfig: Path, mode: Mode, folder: Path) -> Played:
    scheduler = SCHEDULERS[mode.needs]
    flags = ["--compat", mode.compat, *(["--gang-scheduler-name", scheduler] if scheduler else [])]
    flags += _with_rendezvous(folder) if mode.compat == "strict" else []
    account = asyncio.run(controller_account(kubeconfig, folder))
    asyncio.run(_hold_lease(account))
    with controller(account, *flags, folder=folder) as log:
        report = _replayed(kubeconfig, mode)
    assert report["scenarios"], "no scenario was played"
    failed = [
        f"{scenario['scenario']} {check['check']}: {check['diffs'][0]}"
        for scenario in report["scenarios"]
        for check in scenario["checks"]
        if check["level"] == "must" and check["diffs"]
    ]
    return Played(f"{mode}\n{_table(report)}", (*failed, log.read_text()[-2000:]) if failed else ())


async def _hold_lease(account: Path) -> None:
    """The account may do that too. The suite's controller does without: a machine too slow for a Lease need not fail here."""
    async with connect(account) as kube:
        election = Election(kube, namespace=SYSTEM, name=LEASE, me="suite", clock=time.monotonic)
        await election.win()
        await election.give_back()


def _with_rendezvous(folder: Path) -> list[str]:
    """A rendezvous server that strict jobs could have and must not be given; nobody need answer there."""
    installation = folder / "installation"
    installation.mkdir(exist_ok=True)
    (installation / "server.key").write_text("00" * 32)
    (installation / "ca.crt").write_bytes(make_ca("nobody").certificate)
    return ["--installation", str(installation), "--rendezvous-url", "https://127.0.0.1:1", "--rendezvous-endpoint", "rendezvous:8443"]


def _table(report: dict[str, Any]) -> str:
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


def _replayed(kubeconfig: Path, mode: Mode) -> dict[str, Any]:
    """All scenarios for this operator, many at a time, for most of their time is waiting; and patiently, for the machine may be slow."""
    command = [sys.executable, str(SUITE / "replay.py"), "--kubeconfig", str(kubeconfig), "--json", "--patience", "120", "--parallel", "12"]
    command += ["--with", mode.needs] if mode.needs else []
    command += [word for pattern in mode.only for word in ("--only", pattern)]
    for step in ONLY_STRICT[mode.needs] if mode.compat == "strict" else ():
        command += ["--hold", step]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert ended.stdout, ended.stderr[-3000:]
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer
