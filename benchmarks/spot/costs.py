"""Draw the costs of changes from the measurements of bench-rescale.

They come from its raw samples, or from the table in docs/rescale.md, whose cells are median, least and most.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rescaling.scenarios import SCENARIOS
from benchmarks.rescaling.settings import SETTINGS

PAGE = Path(__file__).parents[2] / "docs" / "rescale.md"
CELL = re.compile(r"([0-9.]+)(?: \(([0-9.]+) to ([0-9.]+), n=[0-9]+\))?")


@dataclass(frozen=True, slots=True)
class Samples:
    """Seconds by setting and scenario: single measurements, or in a summary least, median and most."""

    measured: Mapping[tuple[str, str], tuple[float, ...]]
    is_summary: bool
    source: str

    def draw(self, setting: str, scenario: str, by: random.Random) -> float:
        found = self.measured[setting, scenario]
        if self.is_summary:
            least, median, most = found
            return by.triangular(least, most, median)
        return by.choice(found)


def of_page(page: Path = PAGE) -> Samples:
    found: dict[tuple[str, str], tuple[float, ...]] = {}
    lines = page.read_text().splitlines()
    head = next(line for line in lines if line.startswith("| event | torchrun"))
    names = {setting.words: setting.name for setting in SETTINGS}
    columns = [names.get(cell) for cell in _cells(head)]
    scenarios = {words: name for name, words in SCENARIOS.items()}
    for line in lines[lines.index(head) + 2 :]:
        cells = _cells(line)
        if not cells or cells[0] not in scenarios:
            break
        for setting, cell in zip(columns, cells, strict=True):
            if setting is not None and (match := CELL.match(cell)) is not None:
                median = float(match[1])
                found[setting, scenarios[cells[0]]] = (float(match[2] or median), median, float(match[3] or median))
    return Samples(found, is_summary=True, source="the table of docs/rescale.md")


def of_raw(path: Path) -> Samples:
    """Read the file of `python -m benchmarks.rescale --raw`."""
    found: dict[tuple[str, str], tuple[float, ...]] = {}
    for one in json.loads(path.read_text()):
        if one["seconds"] is not None:
            key = one["setting"], one["scenario"]
            found[key] = (*found.get(key, ()), float(one["seconds"]))
    return Samples(found, is_summary=False, source=str(path))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
