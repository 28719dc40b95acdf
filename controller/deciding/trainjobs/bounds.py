"""Read how many nodes a TrainJob may have, from its annotations and its runtime's. Upstream's API has no fields for this."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastic.api.book import MOST_MEMBERS
from elastic.api.errors import Problem, shown
from elastic.api.names import NODES, OWN_PREFIX, REPORT

MIN_NODES, MAX_NODES = f"{OWN_PREFIX}min-nodes", f"{OWN_PREFIX}max-nodes"
KNOWN = (MIN_NODES, MAX_NODES, NODES)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and most nodes, and the number that the annotation asks for."""

    least: int
    most: int
    asked: int | None

    def nearest(self, count: int) -> int:
        """Return the allowed number that is nearest to `count`."""
        return min(max(count, self.least), self.most)


def bounds(job: Mapping[str, str], runtime: Mapping[str, str], *, nodes: int) -> tuple[Bounds, list[Problem]]:
    """Return the bounds by these annotations. Without any, the job always has its `nodes`."""
    problems: list[Problem] = []

    def read(key: str, annotations: Mapping[str, str]) -> int | None:
        word = annotations.get(key)
        if word is None:
            return None
        if word.isascii() and word.isdecimal() and len(word) < 9 and 1 <= int(word) <= MOST_MEMBERS:
            return int(word)
        problems.append(_problem(key, f"is {shown(word)}; write a number from 1 to {MOST_MEMBERS}"))
        return None

    least, most = (read(key, job if key in job else runtime) for key in (MIN_NODES, MAX_NODES))
    asked = read(NODES, job)
    if least is None:
        least = nodes if most is None else min(nodes, most)
    if most is None:
        most = max(nodes, least)
    if least > most:
        problems.append(_problem(MIN_NODES, f"is {least}, but {MAX_NODES} is {most}; lower the one or raise the other"))
    elif asked is not None and not least <= asked <= most:
        problems.append(_problem(NODES, f"is {asked}; this job may have {_range(least, most)}"))
    return Bounds(least, most, asked), problems


def unknown(annotations: Mapping[str, str]) -> list[Problem]:
    """Return the annotations that look like ours and have no meaning for a TrainJob."""
    known = (*KNOWN, REPORT)
    found = (key for key in annotations if key.startswith(OWN_PREFIX) and key not in known)
    return [_problem(key, f"has no meaning for a TrainJob; known are {', '.join(known)}") for key in found]


def annotations_of(item: Mapping[str, Any]) -> dict[str, str]:
    """Return an object's annotations."""
    return (item.get("metadata") or {}).get("annotations") or {}


def _problem(key: str, rest: str) -> Problem:
    return Problem(("metadata", "annotations", key), f"{key} {rest}")


def _range(least: int, most: int) -> str:
    return f"{least} to {most} nodes" if least < most else f"only {most} nodes, because {MIN_NODES} and {MAX_NODES} are not set apart"
