"""The release before this one, taken from the repository's history, and the control plane's processes of either release."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import time
import tomllib
import venv
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from io import BytesIO
from pathlib import Path

import pytest
from library_digest import library_digest

ROOT = Path(__file__).resolve().parents[2]
BEFORE = "c7d2c2e89a5f5ee7a3dd34b13bfade38ce44fd46"
"""Commit of 0.4.0, whose library, server and controller this release works with. Moves on with each release."""
TOO_OLD = "4b484161e4b9ea0dc172bcec19c86f16622fee41"
"""Commit of a release without `elastic_worker.startup`, the module that today's init containers run."""
START_S = 60.0
STOP_S = 20.0
WORKER_IMAGE = "example.com/elastic-worker"
TORCHRUN = """\
#!{python}
import sys
from importlib.metadata import entry_points
from pathlib import Path

sys.path.append({tests!r})
from library_digest import library_digest
sys.path.remove({tests!r})

(handler,) = entry_points(group="torchrun.handlers", name="elastic")
library = Path(sys.modules[handler.load().__module__].__file__).parent
print("agent with library", library_digest(library), "at", library, flush=True)

from torch.distributed.run import main
main()
"""
"""Loads the rendezvous handler as torchrun does, and prints which library it is from."""


def release_before(folder: Path, *, commit: str = BEFORE) -> Path:
    """Unpack the tree of an older release; skip the test in a clone without that commit."""
    found = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True)
    if found.returncode != 0:
        pytest.skip(f"this clone has no history back to {commit}: {found.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(found.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def training_image(folder: Path) -> Path:
    """Make a folder that stands for an image with torch and without this project: a virtual environment without our packages.

    The distribution elastic-training in a pod's interpreter would be used instead of the library that the release delivers.
    """
    venv.create(folder, with_pip=False)
    ours = {file.parts[0] for file in metadata.distribution("elastic-training").files or ()}
    (packages,) = folder.glob("lib/python*/site-packages")
    for entry in Path(pytest.__file__).parents[1].iterdir():
        if entry.name not in ours and entry.name != "__pycache__":
            (packages / entry.name).symlink_to(entry)
    torchrun = folder / "bin" / "torchrun"
    torchrun.write_text(TORCHRUN.format(python=folder / "bin" / "python3", tests=str(Path(__file__).parent)))
    torchrun.chmod(0o755)
    return folder


@dataclass
class Release:
    """One release on this machine: its tree, and what stands for its image in pods."""

    name: str
    tree: Path

    @property
    def image(self) -> str:
        return f"{WORKER_IMAGE}:{self.name}"

    @property
    def library(self) -> str:
        """Return the text that agents with this release's library print."""
        return library_digest(self.tree / "elastic_worker")

    def stand_in(self, folder: Path) -> Path:
        """Make a folder that stands for this release's image: its python3 finds this release's library first.

        `-m` looks in the working folder before PYTHONPATH, and pods work where the cluster was started: in this release's tree.
        """
        programs = folder / f"image-{self.name}" / "bin"
        programs.mkdir(parents=True)
        python = programs / "python3"
        python.write_text(f'#!/bin/sh\ncd "{self.tree}" && PYTHONPATH="{self.tree}" exec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        return programs.parent

    def command(self, script: str, *arguments: str) -> list[str]:
        """Return the command of one of the release's console scripts, as its pyproject.toml names it."""
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

    def control(self, release: Release, *, worker_image: str = "") -> None:
        flags = [
            "--installation",
            str(self.installation),
            "--kubeconfig",
            str(self.kubeconfig),
            "--worker-image",
            worker_image or release.image,
        ]
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
