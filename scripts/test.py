"""Run the tests, and say at the end how many there were and how long they took.

Pure tests share the cores. Tests that start real processes wait as much as they work, so four lanes of them run at the same time, and one
of the lanes mostly waits. Each module stays in one lane, and the longest begin first (tests/integration/conftest.py). The environments that
some tests need are made while the pure tests run. `--full` adds the tests marked `full`, which repeat other tests in second environments,
and tries new examples of properties.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from collections.abc import Callable, Iterator

REPORTS = pathlib.Path(".cache/tests")
# Environments. If one cannot be installed, its tests are skipped.
LIGHT = ("xgboost", "jax", "mpi", "openmpi5", "horovod-driver", "kubeflow-training", "kubeflow")
FULL = ("kubernetes-36",)
INSTALL_S = 600
PARTS = {
    "pure": ("auto", ["tests/sim", "tests/unit"], "not integration and not cluster and not heavy"),
    "processes": ("4", ["tests/integration", "tests/cluster"], "(integration or cluster) and not heavy"),
}
"""Lanes, the folders that are looked through unless others are given, and which tests."""


@contextlib.contextmanager
def installing(names: tuple[str, ...], *, within_s: float) -> Iterator[Callable[[], None]]:
    """Make the environments of examples and clients meanwhile; yields what waits for them."""
    end = time.monotonic() + within_s
    installer = subprocess.Popen(["scripts/frameworks", *names], start_new_session=True)

    def wait() -> None:
        try:
            installer.wait(end - time.monotonic())
        except subprocess.TimeoutExpired:
            print("the environments of examples and client were not installed in time; their tests are skipped")
            os.killpg(installer.pid, signal.SIGTERM)

    try:
        yield wait
    finally:
        if installer.poll() is None:
            os.killpg(installer.pid, signal.SIGTERM)
        installer.wait()


def main() -> int:
    REPORTS.mkdir(parents=True, exist_ok=True)
    is_full, given = "--full" in sys.argv, [word for word in sys.argv[1:] if word != "--full"]
    with installing((*LIGHT, *FULL) if is_full else LIGHT, within_s=INSTALL_S) as wait_for_environments:
        return run(given, wait_for_environments, is_full=is_full)


def run(given: list[str], wait_for_environments: Callable[[], None], *, is_full: bool) -> int:
    began = time.monotonic()
    counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    failed = False
    has_paths = any(pathlib.Path(word.partition("::")[0]).exists() for word in given)
    for part, (lanes, folders, chosen) in PARTS.items():
        if part == "processes":
            wait_for_environments()
        report = REPORTS / f"{part}.xml"
        report.unlink(missing_ok=True)
        chosen = chosen if is_full else f"{chosen} and not full"
        options = ["-n", lanes, "--dist", "loadfile", "--no-loadscope-reorder", "-m", chosen, "--durations", "15", f"--junitxml={report}"]
        options += ["--hypothesis-profile", "default"] if is_full else []  # new examples of properties
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", *options, *([] if has_paths else folders), *given])
        failed |= done.returncode not in (0, 5)  # 5: nothing to run in this part
        for suite in xml.parse(report).getroot().iter("testsuite"):
            for key in counts:
                counts[key] += int(suite.get(key, "0"))
    bad = counts["failures"] + counts["errors"]
    print(f"time: {time.monotonic() - began:.0f} s")
    print(f"tests: {counts['tests'] - bad - counts['skipped']} passed, {bad} failed, {counts['skipped']} skipped")
    return 1 if failed or bad or not counts["tests"] else 0


if __name__ == "__main__":
    sys.exit(main())
