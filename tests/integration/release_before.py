"""The release before this one, taken from the repository's history, and the control plane's processes of either release."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BEFORE = "4b484161e4b9ea0dc172bcec19c86f16622fee41"
"""The commit whose library, server and controller this release works with. Moves on with each release."""
START_S = 60.0
STOP_S = 20.0
WORKER_IMAGE = "example.com/elastic-worker"


def release_before(folder: Path) -> Path:
    """Its tree; skips the test in a clone without that commit."""
    found = subprocess.run(["git", "-C", str(ROOT), "archive", BEFORE], capture_output=True)
    if found.returncode != 0:
        pytest.skip(f"this clone has no history back to {BEFORE}: {found.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(found.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@dataclass
class Release:
    """One release on this machine: its tree, and what stands for its image in pods."""

    name: str
    tree: Path

    @property
    def image(self) -> str:
        return f"{WORKER_IMAGE}:{self.name}"

    def stand_in(self, folder: Path) -> Path:
        """A folder that stands for this release's image: its python3 finds this release's library first.

        `-m` looks in the working folder before PYTHONPATH, and pods work where the cluster was started: in this release's tree.
        """
        programs = folder / f"image-{self.name}" / "bin"
        programs.mkdir(parents=True)
        python = programs / "python3"
        python.write_text(f'#!/bin/sh\ncd "{self.tree}" && PYTHONPATH="{self.tree}" exec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        return programs.parent

    def command(self, script: str, *arguments: str) -> list[str]:
        """One of the release's console scripts, as pyproject.toml of that release names it."""
        scripts = tomllib.loads((self.tree / "pyproject.toml").read_text())["project"]["scripts"]
        module, _, function = scripts[script].partition(":")
        return [sys.executable, "-c", f"from {module} import {function}; {function}()", *arguments]

    @property
    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.tree)}


@dataclass
class ControlPlane:
    """Rendezvous server and controller, each of a release, on one installation; one is replaced as a rolling update replaces it."""

    folder: Path
    kubeconfig: Path
    installation: Path
    port: int
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    starts: int = 0

    def serve(self, release: Release) -> None:
        address = f"127.0.0.1:{self.port}"
        flags = ["--installation", str(self.installation), "--kubeconfig", str(self.kubeconfig), "--listen", address]
        self._replace("elastic-rendezvous", release, flags)

    def control(self, release: Release) -> None:
        flags = ["--installation", str(self.installation), "--kubeconfig", str(self.kubeconfig), "--worker-image", release.image]
        flags += [
            "--enable-kinds",
            "PyTorchJob",
            "--rendezvous-url",
            f"https://127.0.0.1:{self.port}",
            "--rendezvous-endpoint",
            f"127.0.0.1:{self.port}",
        ]
        self._replace("elastic-controller", release, flags)

    def stop(self) -> None:
        for script in list(self.running):
            self._end(script)

    def log(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text()[-4000:]}" for log in sorted(self.folder.glob("*.log")))

    def _replace(self, script: str, release: Release, flags: list[str]) -> None:
        self._end(script)
        self.starts += 1
        ready, log = self.folder / f"{self.starts}.ready", self.folder / f"{self.starts}-{script}-{release.name}.log"
        with log.open("wb") as output:
            self.running[script] = subprocess.Popen(
                release.command(script, *flags, "--ready-file", str(ready)),
                stdout=output, stderr=subprocess.STDOUT, cwd=release.tree, env=release.environment,
            )  # fmt: skip
        end = time.monotonic() + START_S
        while not ready.exists():
            assert self.running[script].poll() is None, log.read_text()
            assert time.monotonic() < end, f"{script} of the release {release.name} is not ready: {log.read_text()}"
            time.sleep(0.05)

    def _end(self, script: str) -> None:
        process = self.running.pop(script, None)
        if process is None:
            return
        process.terminate()
        try:
            process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
