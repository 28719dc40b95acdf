"""Serve the holder's socket: read requests of one line, answer them, and hand descriptors over.

This module does not know the meaning of requests. A client that does not read its answers, or sends an invalid request, loses its
connection.
"""

import os
import selectors
import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from elastic.local.sandbox import SandboxError

MAX_REQUEST = 4 * 1024 * 1024
MAX_FDS = 3


@dataclass(slots=True)
class Client:
    connection: socket.socket
    pending: bytearray = field(default_factory=bytearray)
    fds: list[int] = field(default_factory=list)
    follows: bool = False
    """Whether the client hears of every run's end, or gets only answers to its requests."""


Answer = Callable[[Client, dict[str, Any], list[int]], dict[str, Any]]
"""Returns the answer to a request. It puts the answer's descriptors into the list, and they are closed afterwards."""


class Clients:
    def __init__(self, selector: selectors.BaseSelector, answer: Answer, left: Callable[[Client], None]) -> None:
        self._selector = selector
        self._do = answer
        self._left = left
        self._clients: list[Client] = []

    def accept(self, server: socket.socket) -> None:
        connection, _ = server.accept()
        connection.setblocking(False)
        client = Client(connection)
        self._clients.append(client)
        self._selector.register(connection, selectors.EVENT_READ, lambda _: self._read(client))

    def tell(self, client: Client, message: dict[str, Any], fds: list[int]) -> None:
        if client not in self._clients:
            return
        line = msgspec.json.encode(message) + b"\n"
        try:
            sent = socket.send_fds(client.connection, [line], fds)
        except OSError:
            sent = 0
        if sent < len(line):
            self._forget(client)

    def tell_followers(self, message: dict[str, Any]) -> None:
        for client in [client for client in self._clients if client.follows]:
            self.tell(client, message, [])

    def _read(self, client: Client) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(client.connection, 1 << 16, MAX_FDS)
        except OSError:
            data, fds = b"", []
        client.fds += fds
        client.pending += data
        if not data or len(client.pending) > MAX_REQUEST:
            self._forget(client)
            return
        *lines, rest = client.pending.split(b"\n")
        client.pending = bytearray(rest)
        for line in lines:
            try:
                request = msgspec.json.decode(line, type=dict[str, Any])
            except msgspec.DecodeError:
                self._forget(client)
                return
            self._answer(client, request)

    def _forget(self, client: Client) -> None:
        if client not in self._clients:
            return
        for fd in client.fds:
            os.close(fd)
        self._selector.unregister(client.connection)
        client.connection.close()
        self._clients.remove(client)
        self._left(client)

    def _answer(self, client: Client, request: dict[str, Any]) -> None:
        handed: list[int] = []
        try:
            reply = self._do(client, request, handed)
        except SandboxError as error:
            reply = {"refused": str(error)}
        except (OSError, KeyError, ValueError, TypeError, msgspec.ValidationError) as error:
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        self.tell(client, {"reply": request.get("seq"), "fds": len(handed), **reply}, handed)
        for fd in handed:
            os.close(fd)
