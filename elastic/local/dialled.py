"""Open the connections of an HTTP client by a function of ours, for places that no address reaches from here."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import aiohttp

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.tracing import Trace

Dial = Callable[[str, int], Awaitable[socket.socket]]
"""Connects to the host and port of a URL; raises OSError with the reason."""


class DialledConnector(aiohttp.BaseConnector):
    """Opens a connection for each request, because another process may have taken the same name by the next one."""

    def __init__(self, dial: Dial, *, most: int = 100) -> None:
        super().__init__(force_close=True, limit=most)
        self._dial = dial

    async def _create_connection(self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout) -> ResponseHandler:
        host, port = req.url.host or "", req.url.port or 0
        tls = req.ssl if isinstance(req.ssl, ssl.SSLContext) and req.is_ssl() else None
        try:
            connection = await self._dial(host, port)
            connection.setblocking(False)
            _, protocol = await self._loop.create_connection(
                self._factory, sock=connection, ssl=tls, server_hostname=host if tls is not None else None
            )
        except ssl.CertificateError as error:
            raise aiohttp.ClientConnectorCertificateError(req.connection_key, error) from error
        except OSError as error:
            raise aiohttp.ClientConnectorError(req.connection_key, error) from error
        return protocol


async def bounded(answer: aiohttp.ClientResponse, *, most: int) -> bytes:
    """Return the whole body. Raises ValueError if it has more than that many bytes."""
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > most:
            raise ValueError(f"the answer is longer than {most} bytes")
    return bytes(body)


def reason(error: Exception) -> str:
    """Return why a request was not answered, without the words that aiohttp adds."""
    cause: Exception = error
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
    elif isinstance(error, aiohttp.ClientResponseError):
        return "the answer is no HTTP"  # its own words quote the answer
    return (cause.strerror if isinstance(cause, OSError) else None) or str(cause) or type(cause).__name__
