"""Bound how many requests the server of an API service is passed at once, because it may be slow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from elastic.local.apiserver.errors import StatusError

MOST_AT_ONCE = 200


@dataclass(slots=True)
class Places:
    server: str
    held: int = 0
    """Requests that the server has not finished yet."""

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Hold a place for the length of a block. Raise StatusError if none is free."""
        if self.held >= MOST_AT_ONCE:
            words = f"{self.server} has {MOST_AT_ONCE} requests that it has not answered; try again later"
            raise StatusError(429, "TooManyRequests", words, details={"retryAfterSeconds": 1}, headers={"Retry-After": "1"})
        self.held += 1
        try:
            yield
        finally:
            self.held -= 1
