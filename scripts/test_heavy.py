"""Run the tests marked heavy inside a time box, and say which passed, which failed, which were skipped and why.

Two tests run at the same time, because each waits about as much as it works. Frameworks are installed meanwhile, and the tests whose
framework is installed first run first. Tests that did not fit in the time box are named. Only a failed test makes the script fail.
`--full` adds the tests marked `full`.
"""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

BOX_S = float(os.environ.get("HEAVY_BOX_S", "780"))
LEAST_S = 45.0  # a test that has less time left is not begun
STOP_S = 90.0
LOOK_EVERY_S = 0.5
LANES = 2
FRAMEWORKS = ("xgboost", "lightgbm", "jax", "mxnet", "paddle", "tensorflow", "deepspeed", "huggingface", "lightning", "horovod")
"""The quickest to install first."""
PLACES = ("tests/heavy", *(f"tests/integration/test_horovod_{name}.py" for name in ("elastic", "hazards", "losses")))
REPORTS = pathlib.Path(".cache/tests/heavy")


@dataclass
class Collected:
    """Every test with the frameworks that it needs, by its marker."""

    tests: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            marker = item.get_closest_marker("framework")
            self.tests.append((item.nodeid, marker.args if marker else ()))


def collected(chosen: list[str], *, is_full: bool) -> list[tuple[str, tuple[str, ...]]]:
    found, said = Collected(), io.StringIO()
    marks = "heavy" if is_full else "heavy and not full"
    with contextlib.redirect_stdout(said):
        status = pytest.main(["-q", "--collect-only", "-m", marks, *(chosen or PLACES)], plugins=[found])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        print(said.getvalue())
        return []
    return sorted(found.tests, key=lambda test: max((FRAMEWORKS.index(name) for name in test[1]), default=-1))


def is_made(name: str) -> bool:
    pins, made_from = pathlib.Path(f"examples/requirements/{name}.txt"), pathlib.Path(f".cache/frameworks/{name}/made-from.txt")
    return made_from.exists() and made_from.read_text() == pins.read_text()


def wait_for(names: tuple[str, ...], installer: subprocess.Popen[bytes], *, until: float) -> None:
    """Wait until these frameworks are installed, the installer has ended, or the time is up."""
    while not all(map(is_made, names)) and installer.poll() is None and time.monotonic() < until:
        time.sleep(LOOK_EVERY_S)


def outcome(test: str, *, within_s: float) -> str:
    report = REPORTS / f"{re.sub('[^a-z0-9]+', '-', test.rpartition('::')[2])}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "heavy", f"--junitxml={report}", test]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said, _ = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # lets it stop its cluster
        try:
            process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        return "not finished: the time box was over"
    skipped = [entry.get("message", "") for entry in xml.parse(report).getroot().iter("skipped")] if report.exists() else []
    if process.returncode:
        print(said)
        return "FAILED"
    return f"skipped: {skipped[0]}" if skipped else "passed"


def in_lanes(tests: list[tuple[str, tuple[str, ...]]], installer: subprocess.Popen[bytes], *, end: float) -> dict[str, str]:
    def answer(test: str, needed: tuple[str, ...]) -> str:
        wait_for(needed, installer, until=end - LEAST_S)
        at, left = time.monotonic(), end - time.monotonic()
        said = outcome(test, within_s=left) if left >= LEAST_S else "not run: the time box was over"
        print(f"heavy: {test}: {said} ({time.monotonic() - at:.0f} s)", flush=True)
        return said

    with ThreadPoolExecutor(LANES) as lanes:
        answers = lanes.map(answer, *zip(*tests, strict=True)) if tests else ()
        return dict(zip((test for test, _ in tests), answers, strict=True))


def main() -> int:
    REPORTS.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    tests = collected([word for word in sys.argv[1:] if word != "--full"], is_full="--full" in sys.argv)
    wanted = [name for name in FRAMEWORKS if any(name in needed for _, needed in tests)]
    installer = subprocess.Popen(["scripts/frameworks", *wanted] if wanted else ["true"], start_new_session=True)
    try:
        answers = in_lanes(tests, installer, end=began + BOX_S)
    finally:
        if installer.poll() is None:
            os.killpg(installer.pid, signal.SIGTERM)
        installer.wait()
    counts = {word: sum(answer.startswith(word) for answer in answers.values()) for word in ("passed", "FAILED", "skipped", "not")}
    print(f"heavy time: {time.monotonic() - began:.0f} s of {BOX_S:.0f} s")
    print(f"heavy tests: {counts['passed']} passed, {counts['FAILED']} failed, {counts['skipped']} skipped, {counts['not']} not run")
    return 1 if counts["FAILED"] or not answers else 0


if __name__ == "__main__":
    sys.exit(main())
