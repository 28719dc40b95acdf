"""Runs the tests marked heavy one by one inside a time box, and says which passed, which failed, which were skipped and why.

What did not fit in the box is named. Only a failure makes this fail.
"""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as xml

BOX_S = float(os.environ.get("HEAVY_BOX_S", "900"))
LEAST_S = 60.0  # a test that has less time left is not begun
STOP_S = 90.0
FRAMEWORKS = ("paddle", "tensorflow", "mxnet")
REPORT = pathlib.Path(".cache/tests/heavy.xml")


def collected(chosen: list[str]) -> list[str]:
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "heavy", *chosen], capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if "::" in line]


def outcome(test: str, *, within_s: float) -> str:
    REPORT.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "heavy", f"--junitxml={REPORT}", test]
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
    skipped = [entry.get("message", "") for entry in xml.parse(REPORT).getroot().iter("skipped")] if REPORT.exists() else []
    if process.returncode:
        print(said)
        return "FAILED"
    return f"skipped: {skipped[0]}" if skipped else "passed"


def main() -> int:
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        subprocess.run(["scripts/frameworks", *FRAMEWORKS], timeout=BOX_S)
    except subprocess.TimeoutExpired:
        print("heavy: the frameworks could not be installed within the time box")
    answers = {}
    for test in collected(sys.argv[1:]):
        left = BOX_S - (time.monotonic() - began)
        at = time.monotonic()
        answers[test] = outcome(test, within_s=left) if left >= LEAST_S else "not run: the time box was over"
        print(f"heavy: {test}: {answers[test]} ({time.monotonic() - at:.0f} s)", flush=True)
    counts = {word: sum(answer.startswith(word) for answer in answers.values()) for word in ("passed", "FAILED", "skipped", "not")}
    print(f"heavy time: {time.monotonic() - began:.0f} s of {BOX_S:.0f} s")
    print(f"heavy tests: {counts['passed']} passed, {counts['FAILED']} failed, {counts['skipped']} skipped, {counts['not']} not run")
    return 1 if counts["FAILED"] or not answers else 0


if __name__ == "__main__":
    sys.exit(main())
