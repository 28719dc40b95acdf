"""Draw the medians as bars on a logarithmic scale. The SVG is written without a library, so that nothing has to be installed for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

from benchmarks.rescaling.settings import SETTINGS

WIDTH, LEFT, RIGHT, TOP = 860, 250, 70, 82
BAR, GAP = 15, 16
LEAST_S, MOST_S = 0.1, 100.0
TICKS_S = (0.1, 0.3, 1, 3, 10, 30, 100)
TITLE = "Seconds from the event to the first step of the new world (logarithmic)"
FONT = "font-family='system-ui, sans-serif'"


def _x(seconds: float) -> float:
    share = math.log(min(max(seconds, LEAST_S), MOST_S) / LEAST_S) / math.log(MOST_S / LEAST_S)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def draw(bars: Mapping[str, Mapping[str, float | None]]) -> str:
    """Return the picture. `bars` has for each event the seconds of each setting, or None for a lost job."""
    parts: list[str] = []
    y = TOP
    for event, figures in bars.items():
        shown = [setting for setting in SETTINGS if setting.name in figures]
        middle = y + len(shown) * BAR / 2 + 4
        parts.append(f"<text x='{LEFT - 12}' y='{middle:.0f}' font-size='13' text-anchor='end' fill='#222'>{escape(event)}</text>")
        for setting in shown:
            seconds = figures[setting.name]
            end = _x(MOST_S if seconds is None else seconds)
            style = "fill-opacity='0.25'" if seconds is None else ""
            size = f"width='{end - LEFT:.1f}' height='{BAR - 2}'"
            words = "job lost" if seconds is None else f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2f} s"
            parts.append(f"<rect x='{LEFT}' y='{y}' {size} fill='{setting.colour}' {style}/>")
            parts.append(f"<text x='{end + 5:.1f}' y='{y + BAR - 4}' font-size='11' fill='#222'>{words}</text>")
            y += BAR
        y += GAP
    return "\n".join([*_head(y + 24), *_axis(y), *parts, "</svg>", ""])


def _head(height: int) -> list[str]:
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' viewBox='0 0 {WIDTH} {height}' {FONT}>",
        f"<rect width='{WIDTH}' height='{height}' fill='#ffffff'/>",
        f"<text x='40' y='22' font-size='14' fill='#222'>{TITLE}</text>",
    ]
    x, y = 40.0, 34
    for setting in SETTINGS:
        width = 28 + 6.2 * len(setting.words)
        if x + width > WIDTH:
            x, y = 40.0, y + 18
        lines.append(f"<rect x='{x:.0f}' y='{y}' width='11' height='11' fill='{setting.colour}'/>")
        lines.append(f"<text x='{x + 16:.0f}' y='{y + 10}' font-size='12' fill='#222'>{escape(setting.words)}</text>")
        x += width
    return lines


def _axis(bottom: int) -> list[str]:
    lines = []
    for tick in TICKS_S:
        x = _x(tick)
        lines.append(f"<line x1='{x:.1f}' y1='{TOP - 6}' x2='{x:.1f}' y2='{bottom - GAP + 4}' stroke='#ddd'/>")
        lines.append(f"<text x='{x:.1f}' y='{bottom}' font-size='11' text-anchor='middle' fill='#666'>{tick:g} s</text>")
    return lines
