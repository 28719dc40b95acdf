"""Read a stub's request to the fork server, and the state of the stub process at the other end of the connection."""

import contextlib
import json
import os
import signal
import socket
import struct
import typing

LARGEST = 16 * 1024 * 1024
PATIENCE_S = 5.0
DESCRIPTORS = 4


class Malformed(ValueError):
    """The peer is not one of our stubs, or its request is malformed."""


class Request:
    """A worker to start: standard input, output and error, its folder, and the arguments and environment of an interpreter."""

    def __init__(
        self, connection: socket.socket, *, pid: int, descriptors: typing.List[int], fields: typing.Mapping[str, typing.Any]
    ) -> None:
        self.connection = connection
        self.pid = pid
        self.descriptors = descriptors
        self.arguments = [str(word) for word in fields["arguments"]]
        self.environment = {str(name): str(value) for name, value in fields["environment"].items()}
        self.umask = int(fields["umask"])
        self.blocked = frozenset(signal.valid_signals() & set(fields["blocked"]))
        """Signals that the stub found blocked when it started."""
        self.ignored = frozenset(signal.valid_signals() & set(fields["ignored"]))
        """Signals that the stub found ignored when it started."""

    @classmethod
    def read(cls, connection: socket.socket) -> "Request":
        """Read a request. The connection stays open in any case."""
        connection.settimeout(PATIENCE_S)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _ = struct.unpack("3i", credentials)
        if uid != os.getuid() or pid <= 0:
            raise Malformed("it runs as another user, or in another PID namespace")
        descriptors = []  # type: typing.List[int]
        try:
            head, descriptors, _, _ = socket.recv_fds(connection, 4, DESCRIPTORS)
            if len(head) != 4 or len(descriptors) != DESCRIPTORS:
                raise Malformed("the request has no descriptors")
            size = struct.unpack("!I", head)[0]
            if size > LARGEST:
                raise Malformed("the request is longer than {} bytes".format(LARGEST))
            return cls(connection, pid=pid, descriptors=descriptors, fields=json.loads(_read(connection, size)))
        except BaseException as error:
            close_all(descriptors)
            if isinstance(error, (KeyError, TypeError, AttributeError, ValueError)) and not isinstance(error, Malformed):
                raise Malformed("the request is incomplete: {!r}".format(error)) from error
            raise

    def folder(self) -> str:
        """Return the path of the working folder."""
        return os.readlink("/proc/{}/cwd".format(self.pid))

    def send_started(self, pid: int) -> None:
        """Send that the worker runs, and its pid."""
        with contextlib.suppress(OSError):
            self.connection.sendall(b"started" + struct.pack("!i", pid))

    def answer(self, text: str) -> None:
        """Send why no worker is started. Errors are ignored: the stub may have ended."""
        with contextlib.suppress(OSError):
            self.connection.sendall(text.encode("utf-8", "replace")[:4096])


def close_all(descriptors: typing.Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise Malformed("the request ended early")
        data += part
    return bytes(data)
