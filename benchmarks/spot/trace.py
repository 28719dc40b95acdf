"""How many spot nodes there are at each time: the format, a generator, and readers of public traces.

A trace is a CSV of seconds and nodes, with the header `time,nodes` or without one; of several lines with one time the last counts. Bamboo's
published traces (uclasystem/bamboo, doc/data) are such files. The traces of SkyPilot (skypilot-org/spot-traces) are JSON: one number each
`gap_seconds`.
"""

from __future__ import annotations

import bisect
import csv
import itertools
import json
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

CHURN_AN_HOUR, NODES = 14.3, 24
"""Changes in an hour and the number of nodes, as published for a spot cluster."""
PULL = 4.0
"""Nodes from the mean at which two changes of three go back towards it."""
MEAN_PART = 5 / 6
"""The part of the nodes that the cluster has on average."""


class BadTrace(ValueError):
    """A trace is invalid; the message names the file, the line, and what is wrong."""


@dataclass(frozen=True, slots=True)
class Change:
    """A new number of nodes, which holds from a time on."""

    at: float
    nodes: int


@dataclass(frozen=True, slots=True)
class Trace:
    """In order, each with another number than the one before; the first is at 0."""

    changes: tuple[Change, ...]
    length_s: float

    def spans(self) -> Iterator[tuple[float, float, int]]:
        """Begin, end and nodes of each time without a change."""
        for change, after in itertools.pairwise((*self.changes, Change(self.length_s, 0))):
            yield change.at, after.at, change.nodes

    @property
    def node_s(self) -> float:
        """Return all node-seconds of the trace."""
        return sum((end - begin) * nodes for begin, end, nodes in self.spans())

    @property
    def churn_an_hour(self) -> float:
        return (len(self.changes) - 1) / self.length_s * 3600

    def nodes_at(self, at: float) -> int:
        return self.changes[bisect.bisect_right(self.changes, at, key=lambda change: change.at) - 1].nodes

    def part(self, begin: float, end: float) -> Trace:
        """Return the trace between two times, which begins at 0 again."""
        later = [Change(change.at - begin, change.nodes) for change in self.changes if begin < change.at < end]
        return Trace((Change(0.0, self.nodes_at(begin)), *later), end - begin)

    def faster(self, times: float) -> Trace:
        """Return the trace with the same changes in a fraction of the time."""
        return Trace(tuple(Change(change.at / times, change.nodes) for change in self.changes), self.length_s / times)

    def calm(self) -> Trace:
        """Return a trace of the same length in which the nodes of the start stay."""
        return Trace(self.changes[:1], self.length_s)

    def scaled(self, most: int) -> Trace:
        """Return the trace in proportion with at most this number of nodes. A moment with nodes keeps at least one."""
        top = max(change.nodes for change in self.changes) or 1
        points = ((change.at, math.ceil(change.nodes * most / top)) for change in self.changes)
        return of_points(points, length_s=self.length_s)


def of_points(points: Iterable[tuple[float, int]], *, length_s: float) -> Trace:
    """Return the trace of these points, which are in order of time. A point that changes nothing is left out."""
    found: list[Change] = []
    for at, nodes in points:
        if found and found[-1].at == at:
            found.pop()
        if not found or found[-1].nodes != nodes:
            found.append(Change(at, nodes))
    return Trace(tuple(found), length_s)


def generated(*, hours: float, seed: int, nodes: int = NODES, churn_an_hour: float = CHURN_AN_HOUR) -> Trace:
    """Return changes at random times, each of one node, or of two or three at once. The number of nodes is drawn towards its mean."""
    draw = random.Random(seed)
    mean = nodes * MEAN_PART
    at, there, length_s = 0.0, round(mean), hours * 3600
    points = [(at, there)]
    while (at := at + draw.expovariate(churn_an_hour / 3600)) < length_s:
        size = draw.choices((1, 2, 3), (8, 1, 1))[0]
        is_gain = draw.random() < 1 / (1 + math.exp((there - mean) / PULL))
        wanted = min(nodes, there + size) if is_gain else max(1, there - size)
        # At the limit the change goes the other way, so that there are as many changes as asked for.
        there = wanted if wanted != there else there - size if is_gain else there + size
        points.append((at, there))
    return of_points(points, length_s=length_s)


def read(path: Path, *, nodes: int | None = None) -> Trace:
    """Read a file of either format. nodes: the most nodes that the trace may have."""
    text = path.read_text()
    points = _of_json(path, text) if path.suffix == ".json" else _of_csv(path, text)
    if len(points) < 2:
        raise BadTrace(f"{path}: it has {len(points)} points; a trace needs two")
    begin = points[0][0]
    limited = [(at - begin, count if nodes is None else min(count, nodes)) for at, count in points]
    return of_points(limited, length_s=limited[-1][0])


def write(trace: Trace, path: Path) -> None:
    lines = [f"{change.at:.1f},{change.nodes}" for change in trace.changes]
    path.write_text("\n".join(["time,nodes", *lines, f"{trace.length_s:.1f},{trace.changes[-1].nodes}", ""]))


def _of_csv(path: Path, text: str) -> list[tuple[float, int]]:
    points: list[tuple[float, int]] = []
    for number, row in enumerate(csv.reader(text.splitlines()), start=1):
        if not row or (number == 1 and [cell.strip() for cell in row] == ["time", "nodes"]):
            continue
        try:
            at, nodes = float(row[0]), int(row[1])
        except (ValueError, IndexError):
            raise BadTrace(f"{path}, line {number}: {','.join(row)!r} is not SECONDS,NODES") from None
        if not (math.isfinite(at) and nodes >= 0 and (not points or at >= points[-1][0])):
            raise BadTrace(f"{path}, line {number}: seconds must not go back, nor nodes below 0")
        points.append((at, nodes))
    return points


def _of_json(path: Path, text: str) -> list[tuple[float, int]]:
    try:
        raw = json.loads(text)
        gap_s, data = float(raw["metadata"]["gap_seconds"]), [int(count) for count in raw["data"]]
    except (ValueError, KeyError, TypeError) as error:
        raise BadTrace(f"{path} is not a trace of skypilot-org/spot-traces ({error!r}): it needs metadata.gap_seconds and data") from None
    if not (gap_s > 0 and all(count >= 0 for count in data)):
        raise BadTrace(f"{path}: gap_seconds must be above 0, and no number in data below it")
    return [(number * gap_s, count) for number, count in enumerate([*data, *data[-1:]])]
