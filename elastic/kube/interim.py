"""Bound the informational answers that a server can make an HTTP client read before its real answer.

aiohttp skips informational answers (100 Continue) one after another and never yields. A server that sent nothing else blocked the whole
process for as long as it liked.
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
"""Bytes that are parsed before it is looked at what they were: a message can be as short as 16."""


class Interim(aiohttp.ClientConnectionError):
    """More informational answers than any server has a use for."""

    def __init__(self) -> None:
        super().__init__(f"it sent more than {MOST_INTERIM} informational answers and no final one")


class BoundedHandler(ResponseHandler):
    """Reads one answer a request."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._interim, self._is_answered = 0, False

    def set_response_params(self, **params: Any) -> None:
        """Another request is sent."""
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
    """The connections that it makes from now on."""
    connector._factory = cast("partial[ResponseHandler]", partial(BoundedHandler, loop=asyncio.get_running_loop()))
    return connector
