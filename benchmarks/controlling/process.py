"""Measure the controller's process by its own metrics, and by what the kernel counts for it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

from control_plane import ROOT, wait_for

WAITS = "elastic_controller_wait_seconds_bucket"
REQUESTS = "elastic_controller_api_requests_total"


class Controller:
    def __init__(self, kubeconfig: Path, folder: Path, workers: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._log, ready = folder / "controller.log", folder / "controller.ready"
        ready.unlink(missing_ok=True)
        flags = ["--kubeconfig", str(kubeconfig), "--ready-file", str(ready), "--metrics-port", str(self._port), "--workers", str(workers)]
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "elastic_training.controller.running.main", *flags], stdout=output, stderr=output, cwd=ROOT
            )
        wait_for(ready, self._process, self._log)

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mib(self) -> float:
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

    def writes(self) -> int:
        return sum(int(v) for name, v in self._metrics().items() if name.startswith(REQUESTS) and 'method="GET"' not in name)

    def waits(self) -> dict[str, float]:
        """Return how many rounds waited no longer than each bound in seconds."""
        found = {name: value for name, value in self._metrics().items() if name.startswith(WAITS)}
        return {name.partition('le="')[2].partition('"')[0]: value for name, value in found.items()}

    def _metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))}

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=60)
