"""Lets pods reach servers of the host from their own network: what connects to the gateway at a port is passed on to an address here."""

import asyncio
import contextlib
import socket

CHUNK = 64 * 1024
CONNECT_S = 10.0


async def serve(listening: socket.socket, host: str, port: int) -> None:
    """Passes connections on until cancelled."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                far_reader, far_writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError):
            writer.close()
            return
        await asyncio.gather(_pass_on(reader, far_writer), _pass_on(far_reader, writer))

    listening.setblocking(False)
    server = await asyncio.start_server(accept, sock=listening)
    async with server:
        await server.serve_forever()


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(CHUNK):
            target.write(data)
            await target.drain()
    with contextlib.suppress(ConnectionError):
        target.close()
