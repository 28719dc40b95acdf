"""Watchers that connect and never read: what they cost the API server's memory, and those who write."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from pathlib import Path

import pytest
from api_process import CONFIG_MAPS, ApiProcess, config_map, running

pytestmark = pytest.mark.integration

DEAF, WRITES, SIZE = 150, 30, 900_000


def deaf(server: ApiProcess, stack: contextlib.ExitStack) -> None:
    context = ssl.create_default_context(cafile=server.folder / "ca.crt")
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    plain.connect(("127.0.0.1", server.port))
    talks = stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
    talks.sendall(f"GET {CONFIG_MAPS}?watch=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.token}\r\n\r\n".encode())
    talks.recv(100)


def memory_mb(server: ApiProcess) -> int:
    assert server._process is not None
    text = Path(f"/proc/{server._process.pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) >> 10


async def test_watchers_that_do_not_read_cost_little_and_hold_up_nobody(tmp_path: Path) -> None:
    with running(tmp_path) as server, contextlib.ExitStack() as stack:
        for _ in range(DEAF):
            deaf(server, stack)
        before, slowest = memory_mb(server), 0.0
        async with server.client() as client:
            for i in range(WRITES):
                began = time.monotonic()
                await client.make(CONFIG_MAPS, config_map(f"c{i}", x="x" * SIZE))
                slowest = max(slowest, time.monotonic() - began)
        grown = memory_mb(server) - before
        print(f"{DEAF} deaf watchers, {WRITES} writes of {SIZE} bytes: {grown} MB, slowest write {slowest:.2f} s")
        assert grown < 250, f"{grown} MB for what is {WRITES * SIZE >> 20} MB"
