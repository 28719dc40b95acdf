"""Make a virtual environment with the packages that constraints.txt pins. A bar shows how many are found, then how many are installed.

Usage: python scripts/setup_packages.py VENV. Needs only the standard library.
"""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from waiting import bar, run

ROOT = Path(__file__).resolve().parents[1]
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==", re.MULTILINE)
FOUND = re.compile(r"\s*(?:Collecting|Requirement already satisfied:) ([A-Za-z0-9._-]+)")
MOST_CHARACTERS = 50
LATER = "# Only `make docs` installs the packages below."
INSTALLING = "Installing collected packages:"


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def to_install(constraints: str) -> frozenset[str]:
    """Return the names of the packages that the tests and checks need."""
    return frozenset(map(canonical, PINNED.findall(constraints.partition(LATER)[0])))


@dataclass
class Packages:
    """The progress of pip, by its own lines and by the files in the environment."""

    venv: Path
    pinned: frozenset[str]
    found: set[str] = field(default_factory=set)
    newest: str = ""
    installs: bool = False

    def hear(self, line: str) -> None:
        if line.startswith(INSTALLING):
            self.installs = True
        elif (match := FOUND.match(line)) and (name := canonical(match[1])) in self.pinned:
            self.found.add(name)
            self.newest = name
        elif not self.found:
            self.newest = line.strip().removesuffix(": started")[:MOST_CHARACTERS]

    def standing(self) -> str:
        if self.installs:
            return f"installing packages {bar(len(self.installed()), len(self.pinned))}"
        return f"fetching packages {bar(len(self.found), len(self.pinned))} {self.newest}".rstrip()

    def installed(self) -> set[str]:
        """Pip writes a package's metadata last."""
        there = self.venv.glob("lib/python*/site-packages/*.dist-info")
        return {canonical(path.name.removesuffix(".dist-info").rpartition("-")[0]) for path in there} & self.pinned


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python scripts/setup_packages.py VENV", file=sys.stderr)
        return 2
    venv, began = Path(sys.argv[1]), time.monotonic()
    if not (venv / "bin" / "python").exists() and (code := run([sys.executable, "-m", "venv", str(venv)], lambda: f"making {venv}")):
        return code
    pinned = to_install((ROOT / "constraints.txt").read_text())
    print(
        f"setup: installing {len(pinned)} pinned Python packages into {venv} (torch included: the first time this takes a minute or more)"
    )
    sys.stdout.flush()
    packages = Packages(venv, pinned)
    command = [str(venv / "bin" / "pip"), "install", "--disable-pip-version-check", "--progress-bar", "off", "--no-color"]
    command += ["--constraint", str(ROOT / "constraints.txt"), "--editable", ".[dev]"]
    if code := run(command, packages.standing, packages.hear):
        return code
    print(f"setup: {venv} has all {len(packages.installed())} packages after {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
