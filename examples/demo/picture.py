"""Draw a demo that was played: above the number of workers, below the loss, and marks for what happened to the workers.

The SVG is written without a library, so that nothing has to be installed for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import pairwise

from story import Step

WIDTH, LEFT, RIGHT = 860, 84, 24
WORLD_TOP, WORLD_BOTTOM = 62, 142
LOSS_TOP, LOSS_BOTTOM = 176, 306
BOTTOM = LOSS_BOTTOM + 44
Scale = Callable[[float], float]
"""Maps a second to its place in the picture."""
FONT = "font-family='system-ui, sans-serif'"
BLUE, RED, GREY = "#2f6f9f", "#b0413e", "#666"


def draw(steps: Sequence[Step], marks: Sequence[tuple[float, str]], title: str) -> str:
    """Return the SVG. Raises ValueError if nothing was trained."""
    if len(steps) < 2:
        raise ValueError("there is no picture of a training with fewer than two steps")
    begin, end = min([steps[0].at, *(at for at, _ in marks)]), steps[-1].at

    def x(at: float) -> float:
        return LEFT + (at - begin) / (end - begin) * (WIDTH - LEFT - RIGHT)

    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{BOTTOM}' viewBox='0 0 {WIDTH} {BOTTOM}' {FONT}>",
        f"<rect width='{WIDTH}' height='{BOTTOM}' fill='#ffffff'/>",
        _text(20, 22, title, size=14, colour="#222"),
        *_pauses(steps, x),
        *_world(steps, x),
        *_loss(steps, x),
        *_marks(marks, x),
        *_seconds(begin, end, x),
    ]
    return "\n".join([*parts, "</svg>", ""])


def _text(x: float, y: float, words: str, *, size: int = 12, colour: str = GREY, anchor: str = "start") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' text-anchor='{anchor}' fill='{colour}'>{escape(words)}</text>"


def _pauses(steps: Sequence[Step], x: Scale) -> Iterator[str]:
    """Yield the pauses, from the last step of one world to the first step of the next."""
    for before, after in pairwise(steps):
        if after.round != before.round:
            left, right = x(before.at), x(after.at)
            size = f"width='{right - left:.1f}' height='{LOSS_BOTTOM - WORLD_TOP}'"
            yield f"<rect x='{left:.1f}' y='{WORLD_TOP}' {size} fill='#f3e3c3'/>"
            yield _text((left + right) / 2, LOSS_BOTTOM - 6, f"{after.at - before.at:.1f} s", size=11, anchor="middle")


def _world(steps: Sequence[Step], x: Scale) -> Iterator[str]:
    most = max(step.world for step in steps)

    def y(world: int) -> float:
        return WORLD_BOTTOM - world / most * (WORLD_BOTTOM - WORLD_TOP)

    for world in range(most + 1):
        yield f"<line x1='{LEFT}' y1='{y(world):.1f}' x2='{WIDTH - RIGHT}' y2='{y(world):.1f}' stroke='#ddd'/>"
        yield _text(LEFT - 10, y(world) + 4, str(world), anchor="end")
    yield _text(WIDTH - RIGHT, WORLD_BOTTOM - 8, "workers that train together", anchor="end")
    path = f"M {x(steps[0].at):.1f} {y(steps[0].world):.1f}"
    for before, after in pairwise(steps):
        if after.round != before.round:
            path += f" H {x(before.at):.1f} M {x(after.at):.1f} {y(after.world):.1f}"
    path += f" H {x(steps[-1].at):.1f}"
    yield f"<path d='{path}' fill='none' stroke='{BLUE}' stroke-width='3'/>"


def _loss(steps: Sequence[Step], x: Scale) -> Iterator[str]:
    logs = [math.log10(max(step.loss, 1e-12)) for step in steps]
    most = math.ceil(max(logs))
    least = min(math.floor(min(logs)), most - 1)

    def y(log: float) -> float:
        return LOSS_BOTTOM - (log - least) / (most - least) * (LOSS_BOTTOM - LOSS_TOP)

    for decade in range(least, most + 1):
        yield f"<line x1='{LEFT}' y1='{y(decade):.1f}' x2='{WIDTH - RIGHT}' y2='{y(decade):.1f}' stroke='#ddd'/>"
        yield _text(LEFT - 10, y(decade) + 4, f"{10.0**decade:g}", anchor="end")
    yield _text(WIDTH - RIGHT, LOSS_TOP + 14, "loss (logarithmic)", anchor="end")
    points = " ".join(f"{x(step.at):.1f},{y(log):.1f}" for step, log in zip(steps, logs, strict=True))
    yield f"<polyline points='{points}' fill='none' stroke='{BLUE}' stroke-width='1.5'/>"


def _marks(marks: Sequence[tuple[float, str]], x: Scale) -> Iterator[str]:
    for at, words in marks:
        yield f"<line x1='{x(at):.1f}' y1='{WORLD_TOP - 18}' x2='{x(at):.1f}' y2='{LOSS_BOTTOM}' stroke='{RED}' stroke-dasharray='4 3'/>"
        is_right = x(at) > WIDTH * 0.75
        yield _text(x(at) + (-5 if is_right else 5), WORLD_TOP - 22, words, colour=RED, anchor="end" if is_right else "start")


def _seconds(begin: float, end: float, x: Scale) -> Iterator[str]:
    gap = next(gap for gap in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**6) if (end - begin) / gap <= 12)
    for second in range(0, int(end - begin) + 1, gap):
        yield _text(x(begin + second), LOSS_BOTTOM + 18, f"{second} s", anchor="middle")
    yield _text(20, LOSS_BOTTOM + 38, "shaded: from the last step of a world to the first one of the next", size=11)
