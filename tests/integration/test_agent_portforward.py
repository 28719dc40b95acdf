"""Run the node agent's port-forward without a cluster, as the Python client asks for it: with a pair of channels for each port."""

from __future__ import annotations

import asyncio
import socket
import struct

import aiohttp
import pytest
from aiohttp import web

from elastic.local.agent import portforward

pytestmark = pytest.mark.integration
PATIENCE_S = 60.0


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write((await reader.readline()).upper())
    await writer.drain()
    writer.close()


async def serve(port: int) -> tuple[web.AppRunner, int]:
    """Serve port-forward. Port 1 leads to this port, and all other ports refuse."""

    async def dial(wanted: int) -> socket.socket:
        if wanted != 1:
            raise OSError(111, f"dial tcp 10.0.0.1:{wanted}: Connection refused")
        connection = socket.socket()
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        return connection

    async def forward(request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse(protocols=(portforward.CHANNEL_PROTOCOL,))
        await ws.prepare(request)
        await portforward.over_channels(ws, [1, 2], dial)
        return ws

    app = web.Application()
    app.router.add_get("/", forward)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, int(runner.addresses[0][1])


async def test_each_port_has_its_channels_and_a_port_nobody_serves_says_so() -> None:
    async with asyncio.timeout(PATIENCE_S), await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        runner, port = await serve(server.sockets[0].getsockname()[1])
        told: dict[int, bytes] = {}
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"http://127.0.0.1:{port}/", protocols=("v4.channel.k8s.io",)) as ws,
        ):
            await ws.send_bytes(b"\x00hello\n")
            async for message in ws:
                told[message.data[0]] = told.get(message.data[0], b"") + message.data[1:]
        await runner.cleanup()
    assert told[0] == struct.pack("<H", 1) + b"HELLO\n"
    assert told[1] == struct.pack("<H", 1)
    assert told[2] == struct.pack("<H", 2)
    assert told[3] == struct.pack("<H", 2) + b"failed to connect to port 2: dial tcp 10.0.0.1:2: Connection refused"
