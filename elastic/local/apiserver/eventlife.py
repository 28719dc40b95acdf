"""Delete events about an hour after they were last written, as a real API server does.

Otherwise they would fill the memory and disk of a cluster that runs for weeks. The hour begins again when the server starts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from elastic.local.apiserver.store import Entry, Stale, Store

EVENTS = "events"
EVERY_S = 60.0
KEPT_FOR = 60
"""Lifetime of an event, in multiples of EVERY_S."""
AT_ONCE = 50
"""Number of deletions until the event loop can serve requests again."""


class EventLife:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._versions: deque[int] = deque(maxlen=KEPT_FOR)
        """Revisions of the store at the last calls."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            for number, entry in enumerate(self.outlived()):
                self._remove(entry)
                if number % AT_ONCE == AT_ONCE - 1:
                    await asyncio.sleep(0)

    def outlived(self) -> list[Entry]:
        """Return the events that were last written before the last KEPT_FOR calls. Call this once every EVERY_S."""
        oldest = self._versions[0] if len(self._versions) == KEPT_FOR else 0
        self._versions.append(self._store.revision)
        return [entry for entry in self._store.entries(EVENTS) if entry.revision <= oldest]

    def _remove(self, entry: Entry) -> None:
        # Another task may have written or deleted the event meanwhile.
        with contextlib.suppress(Stale):
            self._store.remove(EVENTS, entry.namespace, entry.name, obj=entry.load(), expected=entry)
