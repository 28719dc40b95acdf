"""Make a control group with a CPU limit, in version 1 or 2, and start agents in it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
END_S = 20.0


class NoGroup(Exception):
    """Nobody may make a control group with a limit on this machine."""


@contextlib.contextmanager
def limited(name: str, cpus: float) -> Iterator[Path]:
    """Yield a new control group whose processes have so many CPUs. Raise NoGroup if that is impossible here."""
    is_first = (ROOT / "cpu" / "cpu.cfs_quota_us").exists() or (ROOT / "cpu" / "cgroup.procs").exists()
    folder = (ROOT / "cpu" if is_first else ROOT) / name
    try:
        folder.mkdir()
    except OSError as error:
        raise NoGroup(str(error)) from None
    try:
        try:
            if is_first:
                (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (folder / "cpu.cfs_quota_us").write_text(str(round(cpus * PERIOD_US)))
            else:
                (folder / "cpu.max").write_text(f"{round(cpus * PERIOD_US)} {PERIOD_US}")
        except OSError as error:
            raise NoGroup(str(error)) from None
        yield folder
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """Remove the group once its last process has ended."""
    until = time.monotonic() + END_S
    while (folder / "cgroup.procs").read_text() and time.monotonic() < until:
        time.sleep(0.05)
    folder.rmdir()


def python_in(group: Path, folder: Path) -> str:
    """Return a program that is Python inside of this control group."""
    program = folder / "limited-python"
    program.write_text(f'#!/bin/sh\necho $$ > {group}/cgroup.procs && exec {sys.executable} "$@"\n')
    program.chmod(0o700)
    return os.fspath(program)
