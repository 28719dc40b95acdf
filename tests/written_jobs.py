"""Read the jobs of tests/fixtures and the table of mistakes, for unit tests and for tests against a real API server."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from elastic.cli.documents import documents

FIXTURES = Path(__file__).parent / "fixtures"


@dataclass(frozen=True)
class Mistake:
    name: str
    job: dict[str, Any]
    says: tuple[str, ...]
    server: str
    """The reaction of a server with our CRDs: `schema`, `rule`, `takes` or `unknown`."""
    rule: str
    """The server's message if a rule refuses the job."""


@functools.cache
def _jobs() -> dict[str, dict[str, Any]]:
    found = {}
    for file in sorted((FIXTURES / "jobs").glob("*.yaml")):
        for document in documents(file.read_text()):
            found.setdefault(file.stem, document.value)
            found[document.value["metadata"].get("name", file.stem)] = document.value
    return found


def job_names() -> list[str]:
    return sorted({job["metadata"].get("name") or "pytorch-smallest" for job in _jobs().values()})


def job(name: str, patch: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a fresh copy of a fixture, with a merge patch on top."""
    return merged(copy.deepcopy(_jobs()[name]), patch or {})


def merged(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    made = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merged(made.get(key), value)
    return made


def mistakes() -> list[Mistake]:
    found = []
    for entry in yaml.safe_load((FIXTURES / "mistakes.yaml").read_text()):
        says = tuple(entry["says"])
        rule = entry.get("rule", says[0].split(": ", 1)[1])
        found.append(Mistake(entry["mistake"], job(entry["base"], entry["patch"]), says, entry["server"], rule))
    return found
