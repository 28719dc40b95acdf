"""Run a command that prints little, and show that it goes on: by one changing line on a terminal, otherwise by a line every few seconds.

`python scripts/waiting.py TITLE -- COMMAND...` exits as the command does, and prints the end of its output if it failed. Needs only the
standard library, because it runs before anything is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "demo"))
from view import View

LAST_LINES = 15
BAR = 24


def run(command: Sequence[str], standing: Callable[[], str], hear: Callable[[str], None] = lambda line: None) -> int:
    """`standing` says in one line how it stands, `hear` gets each line of the command."""
    began, last = time.monotonic(), deque[str](maxlen=LAST_LINES)
    with View(lambda: f"setup: {standing()}, {time.monotonic() - began:.0f} s") as view:
        # A program in Python would keep its lines until there are many.
        unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, errors="replace", env=unbuffered)
        try:
            for line in process.stdout or ():
                last.append(line.rstrip())
                hear(line)
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        if code:
            view.line("\n".join([*last, f"setup: {standing()}: failed with exit code {code}"]))
    return code


def bar(done: int, of: int) -> str:
    full = BAR * min(done, of) // max(of, 1)
    return f"[{'#' * full}{'.' * (BAR - full)}] {done} of {of}"


def main() -> int:
    title, separator, *command = sys.argv[1:] or [""]
    if separator != "--" or not command:
        print("usage: python scripts/waiting.py TITLE -- COMMAND...", file=sys.stderr)
        return 2
    print(f"setup: {title}", flush=True)
    return run(command, lambda: title)


if __name__ == "__main__":
    sys.exit(main())
