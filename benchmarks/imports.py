"""Measure `import elastic` in a fresh interpreter next to the official client's `import kubernetes`. Print medians and their ratio.

The time of an interpreter that imports nothing is subtracted from both.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

RUNS = 15
AIM_MS = 50.0


def run_ms(statement: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return (time.perf_counter() - began) * 1000


def main() -> None:
    statements = {"nothing": "pass", "elastic": "import elastic", "elastic.api": "import elastic.api", "kubernetes": "import kubernetes"}
    figures: dict[str, list[float]] = {name: [] for name in statements}
    for statement in statements.values():
        run_ms(statement)  # fills the file cache and writes the .pyc files
    for _ in range(RUNS):  # in turn, so that a slow moment of the machine affects all of them
        for name, statement in statements.items():
            figures[name].append(run_ms(statement))
    base = statistics.median(figures["nothing"])
    cost = {name: max(statistics.median(values) - base, 0.01) for name, values in figures.items() if name != "nothing"}
    for name, value in cost.items():
        print(f"import {name:<12} {value:8.1f} ms")
    print(f"kubernetes / elastic.api: {cost['kubernetes'] / cost['elastic.api']:.1f} times")
    print(f"aim: import elastic under {AIM_MS:.0f} ms: {'met' if cost['elastic'] < AIM_MS else 'missed'}")


if __name__ == "__main__":
    main()
