"""Run the tests of decisions in under a minute: of the job's API, the plan, the rendezvous engine and the autoscaler, with their laws.

A test module belongs here if all that it imports of ours is pure. The import contract that `make check` enforces says which modules are
pure. So no list of tests is kept, and a test that needs a server, a process or a store never comes in. Laws try few examples, and tests
marked `slow` wait for `make test`. Further arguments go to pytest.
"""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys
import tomllib

CONTRACT = "Decisions import no clock, I/O, logging or randomness"
DATA = (
    "elastic_training.autoscale.figures",
    "elastic_training.controller.watching.keys",
    "elastic_training.controller.watching.snapshot",
    "elastic.api",
    "elastic.kube.quantity",
    "elastic.kube.resources",
    "elastic.membership.bounds",
    "elastic.membership.hosts",
    "elastic.membership.limits",
    "elastic.membership.phases",
    "elastic.membership.training",
    "elastic.membership.wire",
)
"""Values that decisions take and return."""
EXAMPLES = "fast"
"""The profile of Hypothesis in tests/conftest.py."""
LANES = 2


def pure() -> tuple[str, ...]:
    """Return the packages and modules that an import contract requires to be pure, and those with plain data."""
    contracts = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (decisions,) = (contract["source_modules"] for contract in contracts if contract["name"] == CONTRACT)
    return (*decisions, *DATA)


def imported(path: pathlib.Path) -> set[str]:
    """Return the modules that a test module imports, as exactly as its text tells: not the package, but the module in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
            found.update(name for alias in node.names if _is_module(name := f"{node.module}.{alias.name}"))
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return {name for name in found if not any(other.startswith(f"{name}.") for other in found)}


def is_of_decisions(names: set[str], packages: tuple[str, ...], roots: set[str]) -> bool:
    """Tell whether these imports have something of ours, and nothing of ours that is not pure."""
    ours = [name for name in names if name.split(".")[0] in roots]
    return bool(ours) and all(any(f"{name}.".startswith(f"{package}.") for package in packages) for name in ours)


def chosen() -> list[str]:
    """Return the test modules of decisions."""
    packages = pure()
    roots = {package.split(".")[0] for package in packages}
    paths = sorted(pathlib.Path("tests/unit").rglob("test_*.py"))
    return [str(path) for path in paths if is_of_decisions(imported(path), packages, roots)]


def _is_module(name: str) -> bool:
    path = pathlib.Path(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def main() -> int:
    words = ["-q", "-p", "no:cacheprovider", "-n", str(LANES), f"--hypothesis-profile={EXAMPLES}", "-m", "not slow", *sys.argv[1:]]
    return subprocess.run([sys.executable, "-m", "pytest", *words, *chosen()]).returncode


if __name__ == "__main__":
    sys.exit(main())
