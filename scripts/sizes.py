"""Fail if a module of the product has more than 400 lines, because readers lose the overview. Exceptions are listed with their reason."""

from __future__ import annotations

import pathlib
import sys

LIMIT = 400
PACKAGES = ("elastic", "rendezvous", "controller", "autoscale", "dashboard", "elastic_worker", "benchmarks", "scripts")
EXCEPTIONS: dict[str, int] = {}


def main() -> int:
    too_long = []
    for package in PACKAGES:
        for path in sorted(pathlib.Path(package).rglob("*.py")):
            lines = len(path.read_text().splitlines())
            if lines > EXCEPTIONS.get(str(path), LIMIT):
                too_long.append(f"{path} has {lines} lines, the limit is {LIMIT}; which noun is missing?")
    print("\n".join(too_long) or "sizes: no module above the limit")
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
