"""Report the changes that a command made to jobs and nodes.

People get a line for each change when it happens. Programs get all changes as data at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import click

from elastic.cli.printing import as_data, output_option, plain
from elastic.kube.following import FollowedJob
from elastic.local.stopped import StoredJob

OUTPUT: Callable[[Callable[..., Any]], Callable[..., Any]] = output_option()


@dataclass(slots=True)
class Outcomes:
    output: str
    _items: list[dict[str, Any]] = field(default_factory=list)

    def tell(self, job: FollowedJob | StoredJob, did: str, words: str, **facts: Any) -> None:
        self._add({"kind": job.kind.name, "namespace": job.namespace, "name": job.name, "did": did, **facts}, words)

    def tell_of_node(self, name: str, did: str, words: str, **facts: Any) -> None:
        self._add({"kind": "Node", "name": name, "did": did, **facts}, words)

    def _add(self, item: dict[str, Any], words: str) -> None:
        self._items.append(item)
        self.say(words)

    def say(self, words: str) -> None:
        if words and self.output == "table":
            click.echo(plain(words))


@contextmanager
def told(output: str) -> Iterator[Outcomes]:
    """Yield the outcomes of a command, and print the data at the end. A command that fails half-way also prints the changes it made."""
    outcomes = Outcomes(output)
    try:
        yield outcomes
    finally:
        if output != "table":
            click.echo(as_data({"items": outcomes._items}, output))
