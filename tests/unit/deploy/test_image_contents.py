"""Check that the image has the packages that its programs import.

It has the packages of the extra that the Dockerfile installs, and no others.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
OURS = "elastic-training"
PROGRAMS = ("controller", "rendezvous", "dashboard", "elastic.kube", "elastic.api")
IMPORT_ALL = """
import importlib, pkgutil, sys
LACKING = set(sys.argv[1].split(","))
class Without:
    def __init__(self, finder):
        self._finder = finder
    def __getattr__(self, name):
        return getattr(self._finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in LACKING else self._finder.find_spec(name, path, target)
sys.meta_path[:] = map(Without, sys.meta_path)
for name in sys.argv[2].split(","):
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""


def wanted(name: str, extras: frozenset[str], found: set[str]) -> Iterator[str]:
    """Yield the packages that pip would install for a requirement, without our own."""
    for text in metadata.requires(name) or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in extras or {""}):
            continue
        needed = canonicalize_name(requirement.name)
        if needed == OURS:
            yield from wanted(OURS, frozenset(requirement.extras), found)
        elif needed not in found:
            found.add(needed)
            yield needed
            yield from wanted(needed, frozenset(requirement.extras), found)


def installed_extra() -> frozenset[str]:
    (chosen,) = re.findall(r'"\.\[([\w,]+)\]"', (ROOT / "deploy" / "Dockerfile").read_text())
    return frozenset(chosen.split(","))


def lacking() -> set[str]:
    """Return the modules of packages that are installed here and not in the image."""
    there = {*wanted(OURS, installed_extra(), set()), OURS}
    owners = metadata.packages_distributions()
    return {module for module, owned_by in owners.items() if not there & {canonicalize_name(owner) for owner in owned_by}}


def imported(left_out: set[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", IMPORT_ALL, ",".join(left_out), ",".join(PROGRAMS)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=ROOT, check=False)


def test_every_module_of_both_programs_finds_what_it_imports() -> None:
    ended = imported(lacking())
    assert ended.returncode == 0, ended.stderr[-2000:]


def test_a_package_that_the_image_did_not_have_would_be_missed() -> None:
    assert "No module named 'kopf'" in imported(lacking() | {"kopf"}).stderr


def test_the_image_brings_nothing_heavy() -> None:
    assert lacking() >= {"torch", "kubernetes", "numpy", "pytest"}
