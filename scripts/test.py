"""Runs every test and says at the end how many there were and how long they took.

Pure tests share the cores. Tests that start real processes run one after the other: side by side they would slow each other
past their patience.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import time
import xml.etree.ElementTree as xml

REPORTS = pathlib.Path(".cache/tests")
# Environments; where one cannot be installed its tests are skipped.
LIGHT = ("xgboost", "jax", "mpi", "openmpi5", "kubeflow-training", "kubernetes-36")
INSTALL_S = 600
PARTS = {
    "pure": ["-n", "auto", "--dist", "loadfile", "-m", "not integration and not cluster and not heavy"],
    "processes": ["-m", "(integration or cluster) and not heavy", "--durations", "15"],
}


def main() -> int:
    REPORTS.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(["scripts/frameworks", *LIGHT], timeout=INSTALL_S)
    except subprocess.TimeoutExpired:
        print(f"the environments of examples and client were not installed within {INSTALL_S} s; their tests are skipped")
    began = time.monotonic()
    counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    failed = False
    for part, options in PARTS.items():
        report = REPORTS / f"{part}.xml"
        report.unlink(missing_ok=True)
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *options, *sys.argv[1:]])
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
