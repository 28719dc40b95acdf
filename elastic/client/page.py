"""How a job looks in a notebook; without one, a line for each change."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from html import escape
from typing import Any

from elastic.client.summary import Summary

HEADERS = ("job", "state", "workers", "world", "restarts", "waits for")


def row(job: Summary) -> tuple[str, ...]:
    world = "-" if job.world is None else str(job.world)
    restarts = ", ".join(f"{number} {cause}" for cause, number in sorted(job.restarts.items()) if number) or "0"
    said = job.message if job.state == "Failed" else job.waits_for
    return (f"{job.kind.name} {job.name}", job.state, f"{job.running} of {job.wanted}", world, restarts, said)


def as_html(job: Summary, explanation: str = "") -> str:
    heads = "".join(f"<th scope='col'>{escape(header)}</th>" for header in HEADERS)
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in row(job))
    below = f"<p>{escape(explanation)}</p>" if explanation else ""
    return f"<table><thead><tr>{heads}</tr></thead><tbody><tr>{cells}</tr></tbody></table>{below}"


class Table:
    """What IPython displays."""

    def __init__(self, job: Summary) -> None:
        self._job = job

    def _repr_html_(self) -> str:
        return as_html(self._job)

    def __repr__(self) -> str:
        return "  ".join(filter(None, row(self._job)))


def show(changes: Iterable[Summary]) -> None:
    handle: Any = None
    display = _display()
    for job in changes:
        if display is None:
            print(Table(job), flush=True)
        elif handle is None:
            handle = display(Table(job), display_id=True)
        else:
            handle.update(Table(job))


def _display() -> Any:
    """IPython's, inside a notebook."""
    module = sys.modules.get("IPython")
    return None if module is None or module.get_ipython() is None else sys.modules["IPython.display"].display
