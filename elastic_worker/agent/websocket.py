"""One WebSocket over TLS to the rendezvous server. Standard library only; for one thread.

It sends and receives text messages. It does not reconnect and does not interpret the text.
"""

import base64
import contextlib
import hashlib
import os
import socket
import ssl
import struct
import time
import typing

from elastic_worker import settings

_MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_TEXT, _CLOSE, _PING, _PONG = 0x1, 0x8, 0x9, 0xA
_LONGEST_HEAD = 16 * 1024
LONGEST_FRAME = 1024 * 1024
"""Longer than the longest view that a rendezvous server may send."""
_SEND_TIMEOUT_S = 5.0


class Broken(OSError):
    """The connection is gone."""


class Denied(Exception):
    """The server answered the handshake with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__("the rendezvous server answered {}: {}".format(status, text))
        self.status = status


class WebSocket:
    """An open connection. `fileno` becomes readable when `receive` has data to read."""

    def __init__(self, sock: ssl.SSLSocket, left_over: bytes, minor: int = 0) -> None:
        self._sock = sock
        self._buffer = bytearray(left_over)
        self.minor = minor
        """Minor version of the messages that the server named; 0 if it named none."""
        self.received_at = time.monotonic()
        """Time at which data last arrived. A server answers each ping."""

    @classmethod
    def open(cls, *, host: str, port: int, path: str, token: str, tls: ssl.SSLContext, timeout_s: float) -> "WebSocket":
        plain = socket.create_connection((host, port), timeout=timeout_s)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock = tls.wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise
        try:
            return cls(sock, *_shake_hands(sock, host="{}:{}".format(host, port), path=path, token=token))
        except BaseException:
            sock.close()
            raise

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, text: str) -> None:
        """Send one text message."""
        self._send_frame(_TEXT, text.encode())

    def ping(self) -> None:
        """Send a ping; the answer updates `received_at`."""
        self._send_frame(_PING, b"")

    def receive(self) -> typing.List[str]:
        """Return the text messages that have arrived, without waiting. Raises Broken at the end of the connection."""
        self._sock.settimeout(0.0)
        is_over = False
        while len(self._buffer) <= LONGEST_FRAME:
            try:
                data = self._sock.recv(65536)
            except (ssl.SSLWantReadError, BlockingIOError, InterruptedError):
                break
            except OSError as error:
                raise Broken(str(error)) from error
            if not data:
                is_over = True
                break
            self._buffer += data
            self.received_at = time.monotonic()
        texts = self._unframe()
        if is_over and not texts:
            raise Broken("the server closed the connection")
        return texts

    def close(self) -> None:
        """Send a close frame if possible, and close."""
        with contextlib.suppress(OSError):
            self._send_frame(_CLOSE, struct.pack(">H", 1000))
        self._sock.close()

    def drop(self) -> None:
        """Close without a close frame."""
        self._sock.close()

    def _unframe(self) -> typing.List[str]:
        texts = []  # type: typing.List[str]
        while True:
            frame = _take_frame(self._buffer)
            if frame is None:
                return texts
            kind, payload = frame
            if kind == _TEXT:
                texts.append(payload.decode("utf-8", "replace"))
            elif kind == _PING:
                self._send_frame(_PONG, payload)
            elif kind == _CLOSE:
                if texts:
                    return texts
                raise Broken("the server closed the connection: {}".format(payload[2:].decode("utf-8", "replace") or "no reason given"))

    def _send_frame(self, kind: int, payload: bytes) -> None:
        mask = os.urandom(4)
        size = len(payload)
        if size < 126:
            head = struct.pack(">BB", 0x80 | kind, 0x80 | size)
        elif size < 65536:
            head = struct.pack(">BBH", 0x80 | kind, 0x80 | 126, size)
        else:
            head = struct.pack(">BBQ", 0x80 | kind, 0x80 | 127, size)
        masked = bytes(byte ^ mask[index & 3] for index, byte in enumerate(payload))
        try:
            self._sock.settimeout(_SEND_TIMEOUT_S)
            self._sock.sendall(head + mask + masked)
        except OSError as error:
            raise Broken(str(error)) from error


def _take_frame(buffer: bytearray) -> typing.Optional[typing.Tuple[int, bytes]]:
    """Remove one whole frame from the buffer, if there is one. Servers do not mask frames, and ours does not fragment them."""
    if len(buffer) < 2:
        return None
    size, start = buffer[1] & 0x7F, 2
    if size == 126:
        start = 4
    elif size == 127:
        start = 10
    if len(buffer) < start:
        return None
    if size == 126:
        (size,) = struct.unpack(">H", buffer[2:4])
    elif size == 127:
        (size,) = struct.unpack(">Q", buffer[2:10])
    if size > LONGEST_FRAME:
        raise Broken("the server sent a frame of {} bytes".format(size))
    if len(buffer) < start + size:
        return None
    kind, payload = buffer[0] & 0x0F, bytes(buffer[start : start + size])
    del buffer[: start + size]
    return kind, payload


def _shake_hands(sock: ssl.SSLSocket, *, host: str, path: str, token: str) -> typing.Tuple[bytes, int]:
    """Upgrade the connection to a WebSocket; return the bytes after the server's answer, and the minor version that it named."""
    key = base64.b64encode(os.urandom(16)).decode()
    lines = (
        "GET {} HTTP/1.1".format(path),
        "Host: {}".format(host),
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: {}".format(key),
        "Authorization: Bearer {}".format(token),
        "{}: {}".format(settings.PROTOCOL_HEADER, settings.PROTOCOL_VERSION),
        "",
        "",
    )
    sock.sendall("\r\n".join(lines).encode("latin-1"))
    data = bytearray()
    while b"\r\n\r\n" not in data:
        more = sock.recv(4096)
        if not more or len(data) > _LONGEST_HEAD:
            raise Broken("the server did not answer as a rendezvous server does")
        data += more
    head, _, rest = bytes(data).partition(b"\r\n\r\n")
    status, headers = _read_head(head.decode("latin-1"))
    if status != 101:
        raise Denied(status, rest.decode("utf-8", "replace")[:500])
    named = headers.get(settings.PROTOCOL_HEADER.lower())
    why = settings.unknown_version(named)
    if why:
        raise Denied(status, why)
    expected = base64.b64encode(hashlib.sha1((key + _MAGIC).encode()).digest()).decode()
    if headers.get("sec-websocket-accept") != expected:
        raise Broken("the server did not answer as a rendezvous server does")
    return rest, settings.minor_version(named)


def _read_head(head: str) -> typing.Tuple[int, typing.Dict[str, str]]:
    first, *rest = head.split("\r\n")
    parts = first.split(" ", 2)
    status = int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0
    headers = {}
    for line in rest:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return status, headers
