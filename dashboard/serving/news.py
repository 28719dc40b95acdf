"""Number changes, so that each client of a stream gets what is newer than its last message.

A client costs one number. If something changes several times between two messages, it is sent once.
"""

from __future__ import annotations

import asyncio
import itertools

NODES = "nodes"
MOST_TOPICS = 20_000


class News:
    def __init__(self) -> None:
        self.version = 0
        self._versions: dict[str, int] = {}
        """By topic: a job's uid, or NODES; what changed last stands last."""
        self._dropped = 0
        self._changed = asyncio.Event()

    def tell(self, topic: str) -> None:
        self.version += 1
        self._versions.pop(topic, None)
        self._versions[topic] = self.version
        while len(self._versions) > MOST_TOPICS:
            oldest = next(iter(self._versions))
            self._dropped = self._versions.pop(oldest)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def since(self, version: int) -> list[str] | None:
        """Return topics with news, the oldest first; None if a client has missed too much and must begin again."""
        if version < self._dropped:
            return None
        return list(itertools.takewhile(lambda topic: self._versions[topic] > version, reversed(self._versions)))[::-1]

    def of(self, topic: str) -> int:
        """Return the version of a topic's last change."""
        return self._versions.get(topic, 0)

    async def wait_newer(self, version: int) -> None:
        while self.version <= version:
            await self._changed.wait()
