"""Servers on loopback that answer as an etcd's JSON gateway might: right, refused, slow, silent, or hostile."""

import contextlib
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

Handle = Callable[["Request"], None]


class Request(http.server.BaseHTTPRequestHandler):
    """One request; `handle_call` answers it."""

    protocol_version = "HTTP/1.1"
    handle_call: Handle
    seen: list[tuple[str, Any, str]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.body = body
        type(self).seen.append((self.path, body, self.headers.get("Authorization", "")))
        with contextlib.suppress(OSError):
            type(self).handle_call(self)

    def answer(self, value: Any, status: int = 200) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None: ...


class Peer:
    """A server and what it was asked: path, body, token."""

    def __init__(self, handle: Handle) -> None:
        self.seen: list[tuple[str, Any, str]] = []
        kind = type("Call", (Request,), {"handle_call": staticmethod(handle), "seen": self.seen})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def peer(handle: Handle) -> Iterator[Peer]:
    made = Peer(handle)
    try:
        yield made
    finally:
        made.close()


def drip(request: Request) -> None:
    """Send a byte of the answer now and then, for ever."""
    request.send_response(200)
    request.send_header("Content-Length", "100000")
    request.end_headers()
    while True:
        request.wfile.write(b" ")
        request.wfile.flush()
        time.sleep(0.05)


def drip_head(request: Request) -> None:
    request.wfile.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        request.wfile.write(b"X-A: b\r\n")
        request.wfile.flush()
        time.sleep(0.05)


def flood(request: Request) -> None:
    """Answer with more bytes than anybody should read."""
    request.begin_stream()
    while True:
        request.chunk(b"x" * 1_000_000)


def silence(request: Request) -> None:
    """Answer nothing until the caller has gone."""
    request.rfile.read()


def end_at_once(request: Request) -> None:
    request.connection.close()
