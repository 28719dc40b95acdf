"""Let pods reach servers of the host: connections to a port of the gateway are passed on to an address on this host."""

import asyncio
import socket

from elastic.local.takeover import both_ways

CONNECT_S = 10.0


async def serve(listening: socket.socket, host: str, port: int) -> None:
    """Pass connections on until cancelled."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                far_reader, far_writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError):
            writer.close()
            return
        await both_ways((reader, writer), (far_reader, far_writer))

    listening.setblocking(False)
    server = await asyncio.start_server(accept, sock=listening)
    async with server:
        await server.serve_forever()
