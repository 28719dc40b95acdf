"""Write the files that a module generates, or check that they are current."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path


def keep(module: str, files: Iterable[tuple[Path, str]], arguments: list[str]) -> int:
    """Write the files for `--write`, or compare them for `--check`. Return the exit status.

    module: the name by which `python -m` runs it.
    """
    if arguments not in (["--write"], ["--check"]):
        print(f"usage: python -m {module} --check | --write", file=sys.stderr)
        return 2
    stale = [(file, text) for file, text in files if not file.exists() or file.read_text() != text]
    for file, text in stale:
        if arguments == ["--write"]:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        else:
            print(f"{file} is not what {module} makes; run python -m {module} --write", file=sys.stderr)
    return 1 if stale and arguments == ["--check"] else 0


def between(page: str, begin: str, end: str, text: str) -> str:
    """Return the page with this text between the two marks."""
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}{text}{end}{after}"
