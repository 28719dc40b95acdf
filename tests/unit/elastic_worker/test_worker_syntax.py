"""Check that scripts/worker_syntax.py finds what Python 3.9 cannot parse or run, and what an image of a user may lack."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
LAZY = "from __future__ import annotations\n"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """Return scripts/worker_syntax.py as a module."""
    spec = importlib.util.spec_from_file_location("scripts_worker_syntax", ROOT / "scripts" / "worker_syntax.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("match x:\n    case 1:\n        pass\n", "not Python 3.9"),
        ("Either = Beat | Join\n", "no union of types"),
        ("isinstance(x, int | None)\n", "no union of types"),
        ("def f(x: int | None) -> None: ...\n", "no union of types"),
        ("from enum import StrEnum\n", "no enum.StrEnum"),
        ("zip(a, b, strict=True)\n", "no strict zip"),
        ("@dataclass(frozen=True, slots=True)\nclass A: ...\n", "no slots or kw_only"),
        ("import msgspec\n", "imports msgspec"),
        ("from elastic_training.rendezvous.engine import Job\n", "imports elastic_training"),
        (LAZY + "def f(x: int | None) -> tuple[str, ...]: ...\n", ""),
        ("from ..words import Cause\nBIT = READ | WRITE\nboth = frozenset() | names\n", ""),
        ("from typing import Union\nEither = Union[int, str]\nisinstance(x, (int, str))\n", ""),
    ],
)
def test_each_rule_is_found_where_it_is_broken(script: ModuleType, tmp_path: Path, source: str, found: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    problems = list(script.problems(path, set()))
    assert len(problems) == (1 if found else 0), problems
    assert all(found in problem for problem in problems)
