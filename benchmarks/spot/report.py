"""Draw the figures as a table and as a picture: for each way the share of node-seconds that became training, and the rest by its use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import mean

from benchmarks.spot.processes import Slice
from benchmarks.spot.replay import WAYS, Ledger, Way

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
WIDTH, LEFT, RIGHT, TOP = 860, 230, 60, 58
BAR, GAP = 18, 8
CLAIMS_FROM_S = 900.0
"""Seconds below which a slice has too few changes for a claim."""
PARTS = (
    ("trained", "training", "#5b8fb9"),
    ("left", "left at the notice", "#c9d8a8"),
    ("joining", "joining", "#e3c878"),
    ("pauses", "standing still", "#d99a3d"),
    ("repeated", "done again", "#b0413e"),
)
FONT = "font-family='system-ui, sans-serif'"


@dataclass(frozen=True, slots=True)
class Found:
    """The sum of all replays of one way, and the goodput of each."""

    way: Way
    ledger: Ledger
    goodputs: tuple[float, ...]


def found(way: Way, ledgers: Sequence[Ledger]) -> Found:
    total = Ledger()
    for ledger in ledgers:
        total.add(ledger)
    return Found(way, total, tuple(ledger.goodput for ledger in ledgers))


def table(by_interval: Mapping[float, Sequence[Found]]) -> str:
    head = ["way to train", *(_interval(seconds) for seconds in by_interval), "left at the notice", "joining", "standing still"]
    rows = [head, ["---"] * len(head)]
    for index, way in enumerate(WAYS):
        some = [results[index] for results in by_interval.values()]
        ledger = some[0].ledger
        parts = [f"{100 * getattr(ledger, name) / ledger.there:.1f} %" for name in ("left", "joining", "pauses")]
        rows.append([way.words, *(_goodput(one) for one in some), *parts])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def of_processes(slices: Sequence[Slice], *, slice_s: float, workers: int, processors: int) -> str:
    """Return the lines of each setting's goodput over its slices, with the load of the machine, and the limits of the figures."""
    found: dict[str, list[Slice]] = {}
    for one in slices:
        found.setdefault(one.setting, []).append(one)
    rows = []
    for name, some in found.items():
        goodputs, loads = [one.goodput for one in some], [one.load for one in some]
        changes = sum(one.changes for one in some)
        rows.append(
            f"{name}: goodput {mean(goodputs):.3f} ({min(goodputs):.3f} to {max(goodputs):.3f}), {_count(len(some), 'slice')} of "
            f"{slice_s / 60:g} min, {_count(changes, 'change')}, load {mean(loads):.1f} ({min(loads):.1f} to {max(loads):.1f})"
        )
    limits = f"Not said: anything about GPUs, larger models, networks between machines, or more than {_count(workers, 'node')}."
    if slice_s < CLAIMS_FROM_S:
        limits = f"It ran. Slices below {CLAIMS_FROM_S / 60:g} min are no measurement: no figure here is a claim."
    return "\n".join([*rows, f"The settings took turns on {_count(processors, 'processor')}, over the same slices of one trace. {limits}"])


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _goodput(one: Found) -> str:
    least, most = min(one.goodputs), max(one.goodputs)
    spread = f" ({least:.3f} to {most:.3f})" if most - least >= 0.001 else ""
    return f"{one.ledger.goodput:.3f}{spread}"


def _interval(seconds: float) -> str:
    return "goodput, a checkpoint after each step" if not seconds else f"a checkpoint each {seconds:g} s"


def draw(results: Sequence[Found], title: str) -> str:
    """Return an SVG that is written by hand, so that nothing has to be installed for it."""
    bottom = TOP + len(results) * (BAR + GAP)
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{bottom + 14}' viewBox='0 0 {WIDTH} {bottom + 14}' {FONT}>",
        f"<rect width='{WIDTH}' height='{bottom + 14}' fill='#ffffff'/>",
        f"<text x='20' y='20' font-size='14' fill='#222'>{escape(title)}</text>",
    ]
    x = 20.0
    for _, words, colour in PARTS:
        lines.append(f"<rect x='{x:.0f}' y='32' width='11' height='11' fill='{colour}'/>")
        lines.append(f"<text x='{x + 16:.0f}' y='42' font-size='12' fill='#222'>{escape(words)}</text>")
        x += 34 + 6.4 * len(words)
    for number, one in enumerate(results):
        lines += _bar(one, TOP + number * (BAR + GAP))
    return "\n".join([*lines, "</svg>", ""])


def _bar(one: Found, y: int) -> list[str]:
    middle = y + BAR - 5
    lines = [f"<text x='{LEFT - 10}' y='{middle}' font-size='13' text-anchor='end' fill='#222'>{escape(one.way.words)}</text>"]
    x = float(LEFT)
    for name, _, colour in PARTS:
        width = (WIDTH - LEFT - RIGHT) * max(0.0, getattr(one.ledger, name)) / one.ledger.there
        lines.append(f"<rect x='{x:.1f}' y='{y}' width='{width:.1f}' height='{BAR}' fill='{colour}'/>")
        x += width
    lines.append(f"<text x='{x + 6:.1f}' y='{middle}' font-size='12' fill='#222'>{one.ledger.goodput:.3f}</text>")
    return lines
