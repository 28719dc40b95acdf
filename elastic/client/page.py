"""How a job looks in a notebook, live; without one, a line for each change and now and then for how far training is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from html import escape
from typing import Any

from elastic.client.plain import plain
from elastic.client.sample import Sample, shortened
from elastic.client.summary import Summary

HEADERS = ("job", "state", "workers", "world", "step", "speed", "loss", "restarts", "waits for")
LOOK_EVERY_S = 2.0
LINE_EVERY_S = 30.0
"""Without a notebook, while nothing changes but the step."""


def row(job: Summary, sample: Sample | None = None) -> tuple[str, ...]:
    newest = sample or Sample(uid="")
    world = job.world if newest.world is None or job.is_over else newest.world
    causes = ", ".join(f"{number} {cause}" for cause, number in sorted(job.restarts.items()) if number)
    restarts = f"{job.restart_count} ({causes})" if causes and job.restart_count else str(job.restart_count)
    said = job.message if job.state == "Failed" else job.awaits(datetime.now(UTC))
    progress = (newest.last_step or "-", newest.speed or "-", "-" if newest.loss is None else shortened(newest.loss))
    return (f"{job.kind.title} {job.name}", job.state, f"{job.running} of {job.wanted}", _or_dash(world), *progress, restarts, said)


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def as_html(job: Summary, explanation: str = "", sample: Sample | None = None) -> str:
    heads = "".join(f"<th scope='col'>{escape(header)}</th>" for header in HEADERS)
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in row(job, sample))
    below = f"<p>{escape(explanation)}</p>" if explanation else ""
    return f"<table><thead><tr>{heads}</tr></thead><tbody><tr>{cells}</tr></tbody></table>{below}"


class Table:
    """The table that IPython displays."""

    def __init__(self, job: Summary, sample: Sample | None) -> None:
        self._job, self._sample = job, sample

    def _repr_html_(self) -> str:
        return as_html(self._job, sample=self._sample)

    def __repr__(self) -> str:
        parts = dict(zip(HEADERS, row(self._job, self._sample), strict=True))
        progress = self._sample.progress if self._sample is not None else ""
        named = [f"{parts['workers']} workers", f"world {parts['world']}", progress, f"{parts['restarts']} restarts", parts["waits for"]]
        return plain("  ".join(filter(None, (parts["job"], parts["state"], *named))))


def show(changes: Iterable[Summary | None], sample: Callable[[], Sample | None]) -> None:
    """Show each change. None means a while without a change. `sample` asks how far training is, at each change and each None."""
    handle: Any = None
    display = _display()
    printed_at, printed = 0.0, ""
    job: Summary | None = None
    for change in changes:
        if (job := change or job) is None:
            continue
        if display is None:
            is_due = time.monotonic() - printed_at > LINE_EVERY_S
            if not (change or is_due):
                continue
            if (line := repr(Table(job, sample()))) != printed or is_due:
                print(line, flush=True)
                printed_at, printed = time.monotonic(), line
        elif handle is None:
            handle = display(Table(job, sample()), display_id=True)
        else:
            handle.update(Table(job, sample()))


def _display() -> Any:
    """IPython's, inside a notebook."""
    module = sys.modules.get("IPython")
    return None if module is None or module.get_ipython() is None else sys.modules["IPython.display"].display
