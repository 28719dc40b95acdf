"""Show how an installation would change objects in the cluster, as the API server itself says in a dry run."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from elastic.api.crd import crd
from elastic.api.kinds import KINDS
from elastic.cli.installing import changing, looking, manifests
from elastic.cli.printing import as_data, has_colour
from elastic.kube.client import Kube
from elastic.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, Object

WRITTEN_BY_SERVER = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink")
LINES_AROUND = 2
MOST_LINES = 60
"""Most lines about one object; a definition's schema may differ in thousands."""
COLOURS = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True, slots=True)
class Difference:
    name: str
    before: Object | None
    """None: the object does not exist yet."""
    after: Object


async def of(kube: Kube, items: Sequence[Object], *, force: bool, has_kinds: bool) -> list[Difference]:
    """Return the objects that would change, definitions first."""
    found = []
    for item in [*(map(crd, KINDS.values()) if has_kinds else ()), *items]:
        there = await looking.there(kube, item)
        is_definition = item["kind"] == CUSTOM_RESOURCE_DEFINITIONS.kind
        after = item if there is None else await changing.tried(kube, item, force=force or is_definition)
        if there is None or _text(there) != _text(after):
            found.append(Difference(manifests.name(item), there, after))
    return found


def in_words(found: Sequence[Difference]) -> Iterator[str]:
    """Yield the lines of a unified diff. An object that does not exist yet has one line."""
    for one in found:
        if one.before is None:
            yield f"+ {one.name} is created"
            continue
        lines = list(difflib.unified_diff(_text(one.before), _text(one.after), n=LINES_AROUND, lineterm=""))[2:]
        yield f"  {one.name} changes:"
        yield from lines[:MOST_LINES]
        if len(lines) > MOST_LINES:
            yield f"  and {len(lines) - MOST_LINES} more lines"


def coloured(line: str) -> str:
    return click.style(line, fg=COLOURS[line[0]]) if line[:1] in COLOURS and has_colour() else line


def _text(item: Object) -> list[str]:
    metadata = {key: value for key, value in item["metadata"].items() if key not in WRITTEN_BY_SERVER and value}
    shown = {key: value for key, value in item.items() if key != "status"} | {"metadata": metadata}
    return as_data(_sorted(shown), "yaml").splitlines()


def _sorted(value: object) -> object:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(entry) for entry in value] if isinstance(value, list) else value
