"""Listen for this agent's workers at a Unix socket, and exchange lines of JSON with them.

Only processes that this agent started may come in. A worker that breaks a rule loses its connection, and nothing else: the door ends no
process and decides nothing. Every buffer has a bound, and no call waits for a worker. For one thread.
"""

import contextlib
import json
import logging
import os
import select
import shutil
import socket
import struct
import tempfile
import time
import typing

log = logging.getLogger(__name__)

LONGEST_LINE = 64 * 1024
LONGEST_BACKLOG = 64 * 1024 * 1024
"""Bytes that a worker may leave unread: all values of an exchange may come at once (change.MOST_EXCHANGE)."""
MOST_CONNECTIONS = 8
MESSAGES_A_SECOND, BURST = 20.0, 100.0
STRANGER = "stranger"
STRANGER_S = 5.0
"""Seconds for which an unknown process may stay connected, because a stub learns late which process it stands for."""
STRANGER_POLL_S = 0.05
LONGEST_PATH = 100
CREDENTIALS = struct.Struct("3i")

Message = typing.Dict[str, typing.Any]


class Connection:
    """The connection of one process. `child` is the agent's child through which it was started, 0 until that is known."""

    def __init__(self, sock: socket.socket, *, pid: int, now: float) -> None:
        self.sock = sock
        self.pid = pid
        self.child = 0
        self.since = now
        self.is_open = True
        self.incoming = bytearray()
        self.outgoing = bytearray()
        self._allowance, self._counted_at = BURST, now

    def is_too_fast(self, now: float) -> bool:
        """Count one message. Return whether it exceeds the rate."""
        self._allowance = min(BURST, self._allowance + MESSAGES_A_SECOND * (now - self._counted_at)) - 1.0
        self._counted_at = now
        return self._allowance < 0.0


Event = typing.Tuple[Connection, typing.Optional[Message]]
"""A message of a worker, or None at the end of its connection."""


class WorkerDoor:
    """The socket and its connections. `child_of` returns the agent's child through which a process was started, 0 for a stranger."""

    def __init__(self, *, child_of: typing.Callable[[int], int], clock: typing.Callable[[], float] = time.monotonic) -> None:
        """Open the socket. Raise OSError if there is no place for it."""
        self._child_of = child_of
        self._clock = clock
        self.most = MOST_CONNECTIONS
        self._connections = []  # type: typing.List[Connection]
        self._ended = []  # type: typing.List[Connection]
        self._folder = _folder()
        self.path = os.path.join(self._folder, "world")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(self.path)
            self._listener.listen(16)
            self._listener.setblocking(False)
        except OSError:
            self.close()
            raise

    def turn(self, seconds: typing.Optional[float], wake: int) -> typing.List[Event]:
        """Wait for something to happen, at most for these seconds. Return the messages of workers and the ends of their connections."""
        if self._ended:
            seconds = 0.0
        elif any(not connection.child for connection in self._connections):
            seconds = STRANGER_POLL_S if seconds is None else min(seconds, STRANGER_POLL_S)
        ready = self._poll(seconds, wake)
        if self._listener.fileno() in ready:
            self._accept()
        self._meet_strangers()
        events = []  # type: typing.List[Event]
        for connection in list(self._connections):
            found = ready.get(connection.sock.fileno(), 0) if connection.is_open else 0
            if found & select.POLLOUT:
                self._flush(connection)
            if found & ~select.POLLOUT:
                events.extend((connection, message) for message in self._read(connection))
        ended, self._ended = self._ended, []
        return events + [(connection, None) for connection in ended]

    def send(self, connection: Connection, message: Message) -> None:
        """Send a message as far as the worker reads, and keep the rest. Drop a worker that does not read."""
        if not connection.is_open:
            return
        connection.outgoing += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self._flush(connection)
        if len(connection.outgoing) > LONGEST_BACKLOG:
            self.drop(connection, "it does not read")

    def turn_away(self, connection: Connection, why: str) -> None:
        """Tell a process that it is no worker of this agent, and close its connection. Without these words, the agent would be gone."""
        self.send(connection, {"t": STRANGER})
        self.drop(connection, why)

    def drop(self, connection: Connection, why: str = "") -> None:
        """Close a connection. Its end comes as an event of the next turn."""
        if not connection.is_open:
            return
        if why:
            log.warning("the connection of worker process %s is closed: %s", connection.pid, why)
        connection.is_open = False
        connection.sock.close()
        self._connections.remove(connection)
        self._ended.append(connection)

    def close(self) -> None:
        """Drop everybody and remove the socket."""
        self._listener.close()
        for connection in list(self._connections):
            self.drop(connection)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _poll(self, seconds: typing.Optional[float], wake: int) -> typing.Dict[int, int]:
        poller = select.poll()
        poller.register(wake, select.POLLIN)
        if len(self._connections) < self.most:
            poller.register(self._listener, select.POLLIN)
        for connection in self._connections:
            if connection.child:
                poller.register(connection.sock, select.POLLIN | (select.POLLOUT if connection.outgoing else 0))
        return dict(poller.poll(None if seconds is None else max(0.0, seconds) * 1000))

    def _accept(self) -> None:
        while len(self._connections) < self.most:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setblocking(False)
            pid, uid, _ = CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
            connection = Connection(sock, pid=pid, now=self._clock())
            self._connections.append(connection)
            if uid != os.getuid() or pid <= 0:
                self.turn_away(connection, "it runs as another user, or in another PID namespace")

    def _meet_strangers(self) -> None:
        for connection in list(self._connections):
            if connection.child:
                continue
            connection.child = self._child_of(connection.pid)
            if not connection.child and self._clock() >= connection.since + STRANGER_S:
                self.turn_away(connection, "it is no worker that this agent started")

    def _read(self, connection: Connection) -> typing.List[Message]:
        messages = []  # type: typing.List[Message]
        try:
            data = connection.sock.recv(LONGEST_LINE)
        except (BlockingIOError, InterruptedError):
            return messages
        except OSError:
            data = b""
        connection.incoming += data
        *lines, rest = connection.incoming.split(b"\n")
        connection.incoming = bytearray(rest)
        why = "a line is longer than {} bytes".format(LONGEST_LINE) if max(map(len, [*lines, rest])) > LONGEST_LINE else ""
        for line in lines if not why else []:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if not isinstance(message, dict):
                why = "a line is no JSON object"
            elif connection.is_too_fast(self._clock()):
                why = "it sent more than {:.0f} messages a second".format(MESSAGES_A_SECOND)
            if why:
                break
            messages.append(message)
        if why or not data:
            self.drop(connection, why)
        return messages

    def _flush(self, connection: Connection) -> None:
        try:
            while connection.outgoing:
                del connection.outgoing[: connection.sock.send(connection.outgoing[:LONGEST_LINE])]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.drop(connection)


def _folder() -> str:
    """Make a folder that only this user may enter. A long TMPDIR would leave no room for the socket's name."""
    places = [tempfile.gettempdir()] if len(os.fsencode(tempfile.gettempdir())) < LONGEST_PATH - 40 else []
    for place in [*places, "/tmp", "/dev/shm"]:
        with contextlib.suppress(OSError):
            return tempfile.mkdtemp(prefix="elastic-", dir=place)
    raise OSError("no folder for temporary files is writable")
