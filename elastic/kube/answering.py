"""The connections on which a client's answers come in. aiohttp closes a watch gently, and with TLS that waits for the server's goodbye.

Where the loop ends before it, as with a silent server, the connection stays open.
"""

from __future__ import annotations

import asyncio
import weakref
from types import SimpleNamespace

import aiohttp


class Answering:
    def __init__(self) -> None:
        self._transports = weakref.WeakSet[asyncio.Transport]()

    def trace(self) -> aiohttp.TraceConfig:
        """For the session."""
        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(self._began)
        return trace

    async def _began(self, _: aiohttp.ClientSession, __: SimpleNamespace, params: aiohttp.TraceRequestEndParams) -> None:
        connection = params.response.connection
        if connection is not None and connection.transport is not None:
            self._transports.add(connection.transport)

    def abort(self) -> None:
        """At the end of the session; the loop needs one more turn."""
        for transport in self._transports:
            transport.abort()
