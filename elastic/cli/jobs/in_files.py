"""Find the jobs that files name, for commands that act on existing jobs.

Only kind, name and namespace matter; the rest of a job may be invalid.
"""

from __future__ import annotations

from dataclasses import dataclass

import click

from elastic.api.kinds import KINDS, Kind
from elastic.cli.validate import Verdict, examine


@dataclass(frozen=True, slots=True)
class Named:
    kind: Kind
    name: str
    namespace: str | None
    """None if the file names no namespace."""


def named_in(files: tuple[str, ...]) -> tuple[list[Named], int]:
    """Return the jobs, and the number of other objects."""
    report = examine(files)
    for file, error in report.unreadable:
        raise click.ClickException(f"{file}: {error}")
    if not report.verdicts:
        raise click.ClickException(f"no job is in {', '.join(files)}")
    return [_named(verdict) for verdict in report.verdicts], len(report.others)


def _named(verdict: Verdict) -> Named:
    metadata = verdict.document.value.get("metadata")
    name, namespace = (metadata.get(key) if isinstance(metadata, dict) else None for key in ("name", "namespace"))
    kind = KINDS.get(verdict.kind or "")
    if kind is None or not isinstance(name, str) or not isinstance(namespace, str | None):
        raise click.ClickException(f"{verdict.place()}: kind and metadata.name are needed to find the job; `elastic validate` says more")
    return Named(kind, name, namespace)
