"""Bound the informational answers that a server can make an HTTP client read before its real answer.

aiohttp skips informational answers (100 Continue) one after another and yields only between two reads of the socket. A total time limit
ends a flood of them. Until then the flood takes a whole core and holds the event loop up for 0.3 s at a time, or for seconds with uvloop.
aiohttp offers no public way to count them, so `bound` replaces the factory of a connector's protocols. With a release that lacks this
private name, connections stay unbounded and the total time limits remain.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, TypeVar, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler

Connector = TypeVar("Connector", bound=aiohttp.BaseConnector)
MOST_INTERIM = 16
AT_ONCE = 16 * 1024
"""Bytes that are parsed before the messages in them are counted: a message can be as short as 16."""


class Interim(aiohttp.ClientConnectionError):
    """More informational answers than any server has a use for."""

    def __init__(self) -> None:
        super().__init__(f"it sent more than {MOST_INTERIM} informational answers and no final one")


class BoundedHandler(ResponseHandler):
    """Read one answer for each request."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._interim, self._is_answered = 0, False

    def set_response_params(self, **params: Any) -> None:
        """Begin to count for another request."""
        self._interim, self._is_answered = 0, False
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data) or 1, AT_ONCE):
            if self.transport is None or (start and self.transport.is_closing()):
                return
            super().data_received(data[start : start + AT_ONCE])

    def feed_data(self, data: Any, size: int = 0) -> None:
        if self._is_answered:
            self._cut()
            return
        if 100 <= data[0].code < 200 and data[0].code != 101:
            self._interim += 1
            if self._interim > MOST_INTERIM:
                self._cut()
                self.set_exception(Interim())
                return
        else:
            self._is_answered = True
        super().feed_data(data, size)

    def _cut(self) -> None:
        if self.transport is not None:
            self.transport.abort()


def bound(connector: Connector) -> Connector:
    """Bound the connections that a connector makes from now on, and return it."""
    if isinstance(getattr(connector, "_factory", None), partial):
        connector._factory = cast("partial[ResponseHandler]", partial(BoundedHandler, loop=asyncio.get_running_loop()))
    return connector
