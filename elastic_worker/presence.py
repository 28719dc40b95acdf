"""This agent's presence at the rendezvous server: one thread that keeps a connection, beats, and holds the newest view.

Whatever it told the server is presented again after every reconnect, so that neither a cut nor a restart of the server matters.
It decides nothing; the handler does.
"""

import collections
import contextlib
import json
import os
import random
import select
import socket
import ssl
import threading
import time
import typing

from elastic_worker.channel import Broken, Channel, Denied
from elastic_worker.settings import Settings

BEAT_S = 9.0
SILENCE_S = 2 * BEAT_S + 2.0
"""A server that answered no ping for so long is gone, or stands still; another may have its place."""
CONNECT_TIMEOUT_S = 5.0
FIRST_BACK_OFF_S = 0.05
LONGEST_BACK_OFF_S = 0.5
"""Where nobody answers: a server that is replaced comes back within seconds."""
UNWELCOME_BACK_OFF_S = 5.0
"""Where the server answers and does not take us, or nobody has answered for a minute."""
LONG_AWAY_S = 60.0
OUTBOX = 256
LEAVE_S = 2.0

_AT = "at"
"""When a fact was noted, on our own clock; sent as the seconds since."""

Message = typing.Dict[str, typing.Any]


class View:
    """What the server last said about us. See the wire format of the rendezvous server for the fields."""

    def __init__(self, fields: typing.Mapping[str, typing.Any]) -> None:
        self.generation = int(fields.get("generation", 0))
        self.id = str(fields.get("id", ""))
        self.rank = int(fields.get("rank", 0))
        self.size = int(fields.get("size", 0))
        self.store = str(fields.get("store", ""))
        self.reform = str(fields.get("reform", ""))
        self.waiting = str(fields.get("waiting", ""))
        self.finished = str(fields.get("finished", ""))
        self.leaving = str(fields.get("leaving", ""))
        self.closed = str(fields.get("closed", ""))
        self.done = bool(fields.get("done", False))
        self.peers_finished = bool(fields.get("peers_finished", False))
        self.grace_s = float(fields.get("grace_s", 30.0))
        self.uncounted = fields.get("uncounted", [])


def _ago_s(at: float) -> float:
    return round(time.monotonic() - at, 3)


def _wait_readable(seconds: float, *descriptors: int) -> typing.Set[int]:
    """Which of these have something to read; unlike select, for descriptors of any number."""
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poller.poll(max(0.0, seconds) * 1000)}


class Presence:
    """The connection of one agent, as long as it lives."""

    def __init__(self, settings: Settings, *, on_signal: typing.Callable[[int], None]) -> None:
        self._settings = settings
        self._tls = settings.tls()
        self._on_signal = on_signal
        self._incarnation = "{}/{}-{}-{}".format(
            settings.pod_uid or settings.member, int(time.time() * 1000), os.getpid(), os.urandom(3).hex()
        )
        self.changed = threading.Condition()
        self._view = View({})
        self._refused = ""
        self._denied = ""
        self._away_since = time.monotonic()  # type: typing.Optional[float]
        self._held = None  # type: typing.Optional[Message]
        self._is_ready = False
        self._store = ""
        self._trouble = ""
        self._failed = None  # type: typing.Optional[Message]
        self._facts = {}  # type: typing.Dict[str, Message]
        self._outbox = collections.deque(maxlen=OUTBOX)  # type: typing.Deque[Message]
        self._is_ending = False
        self._is_heard = False  # by this connection's server, which has sent a view
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="elastic-presence", daemon=True)

    # --- for the agent's thread ---

    def start(self) -> None:
        self._thread.start()

    @property
    def wake_fd(self) -> int:
        """Where a byte per signal may be written (signal.set_wakeup_fd), so that the server hears of it at once."""
        return self._wake_out.fileno()

    @property
    def view(self) -> View:
        with self.changed:
            return self._view

    @property
    def refused(self) -> str:
        """Why this incarnation must end; empty while it may go on."""
        with self.changed:
            return self._refused

    @property
    def denied(self) -> str:
        """The server's last answer where it did not let us in."""
        with self.changed:
            return self._denied

    @property
    def away_s(self) -> float:
        """For how long there has been no connection."""
        with self.changed:
            return time.monotonic() - self._away_since if self._away_since is not None else 0.0

    def stand_at_barrier(self, *, after: int, store: str, trouble: str = "") -> None:
        """Say that we left the world `after` and wait for the next one."""
        with self.changed:
            self._is_ready = True
            self._store = store
            self._trouble = trouble
            self._failed = self._facts.get("failed", self._failed)
            self._facts.clear()
            self._view = View({"grace_s": self._view.grace_s, "closed": self._view.closed})
            message = {"t": "ready", "after": after, "store": store}  # type: Message
            if trouble:
                message["trouble"] = trouble
            self._outbox.append(message)
        self._wake()

    def enter(self, view: View) -> None:
        """Say, from now on, that we are in this world."""
        with self.changed:
            self._is_ready = False
            self._failed = None
            self._held = {"id": view.id, "generation": view.generation, "rank": view.rank, "size": view.size, "store": view.store}
            self._held["uncounted"] = view.uncounted

    def state(self, kind: str, **fields: typing.Any) -> None:
        """Tell a fact about the current world; it is told again after a reconnect."""
        message = dict(fields, t=kind)
        if kind == "failed":
            message[_AT] = time.monotonic()
        with self.changed:
            if kind in self._facts:
                return
            self._facts[kind] = message
            self._outbox.append(message)
        self._wake()

    def leave(self, reason: str, *, by_signal: bool = False) -> None:
        """Leave cleanly, and wait a moment for the word to be out."""
        with self.changed:
            if self._is_ending:
                return
            self._is_ending = True
            self._outbox.append({"t": "leave", "reason": reason, "by_signal": by_signal})
        self._wake()
        if threading.current_thread() is not self._thread and self._thread.is_alive():
            self._thread.join(LEAVE_S)

    def close(self) -> None:
        """Let go of what is left. No signal may be written to `wake_fd` any more."""
        self.leave("closed")
        if not self._thread.is_alive():
            self._wake_in.close()
            self._wake_out.close()

    # --- the thread ---

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a full pipe means that it is awake for certain
            self._wake_out.send(b"\0")

    def _run(self) -> None:
        back_off_s = FIRST_BACK_OFF_S
        while True:
            longest_s = UNWELCOME_BACK_OFF_S
            self._is_heard = False
            try:
                channel = self._connect()
            except (OSError, ssl.SSLError, Denied) as error:
                self._note_denial(error)
                if not isinstance(error, Denied) and self.away_s < LONG_AWAY_S:
                    longest_s = LONGEST_BACK_OFF_S
            else:
                if self._holds(channel):
                    return
            back_off_s = FIRST_BACK_OFF_S if self._is_heard else min(back_off_s, longest_s)
            if self._ends_while_waiting(back_off_s * random.uniform(0.5, 1.0)):
                return
            back_off_s *= 2

    def _connect(self) -> Channel:
        told = self._settings
        return Channel.open(host=told.host, port=told.port, path=told.path, token=told.token, tls=self._tls, timeout_s=CONNECT_TIMEOUT_S)

    def _holds(self, channel: Channel) -> bool:
        """Talk until the connection ends; True when it was we who ended it."""
        try:
            return self._talk(channel)
        except (OSError, ValueError, TypeError):  # a broken connection, or an answer that makes no sense
            channel.drop()
            with self.changed:
                self._away_since = time.monotonic()
            return False

    def _note_denial(self, error: Exception) -> None:
        with self.changed:
            self._denied = str(error) if isinstance(error, Denied) else ""
            self.changed.notify_all()

    def _ends_while_waiting(self, seconds: float) -> bool:
        """Wait before the next attempt; True where this presence is to end, for then nobody needs to hear of it."""
        _wait_readable(seconds, self._wake_in.fileno())
        self._take_signals()
        with self.changed:
            return self._is_ending or bool(self._refused)

    def _talk(self, channel: Channel) -> bool:
        """Present ourselves and go on until we end the connection; a broken or silent one raises."""
        with self.changed:
            leaving = [message for message in self._outbox if message["t"] == "leave"]
            self._outbox.clear()
            self._outbox.append(self._introduction())
            self._outbox.extend(self._facts.values())
            self._outbox.extend(leaving)
            self._denied = ""
            self._away_since = None
        beat_at = time.monotonic() + BEAT_S
        while True:
            self._send_all(channel)
            with self.changed:
                if self._is_ending and not self._outbox:
                    channel.close()
                    return True
            patience_s = max(0.0, beat_at - time.monotonic())
            readable = _wait_readable(patience_s, channel.fileno(), self._wake_in.fileno())
            self._take_signals()
            if channel.fileno() in readable and self._hear(channel.receive()):
                channel.close()
                return True
            if time.monotonic() >= beat_at:
                if time.monotonic() > channel.heard_at + SILENCE_S:
                    raise Broken("the server is silent")
                beat_at = time.monotonic() + BEAT_S
                channel.send('{"t":"beat"}')
                channel.ping()

    def _introduction(self) -> Message:
        message = {"t": "join", "incarnation": self._incarnation, "ready": self._is_ready, "store": self._store}  # type: Message
        if self._held is not None:
            message["held"] = self._held
        if self._is_ready and self._trouble:
            message["trouble"] = self._trouble
        if self._is_ready and self._failed is not None:
            message["failed"] = True
            if "status" in self._failed:
                message["status"] = self._failed["status"]
            message["failed_ago_s"] = _ago_s(self._failed[_AT])
        return message

    def _send_all(self, channel: Channel) -> None:
        while True:
            with self.changed:
                if not self._outbox:
                    return
                message = dict(self._outbox.popleft())
            if _AT in message:
                message["ago_s"] = _ago_s(message.pop(_AT))
            channel.send(json.dumps(message, separators=(",", ":")))

    def _hear(self, texts: typing.List[str]) -> bool:
        """Take in what the server said; True where it refuses us."""
        for text in texts:
            fields = json.loads(text)
            with self.changed:
                if "refused" in fields:
                    self._refused = str(fields["refused"])
                else:
                    self._view = View(fields)
                    self._is_heard = True
                    if self._held is not None and (self._held["id"] == self._view.id or self._view.uncounted):
                        self._held["uncounted"] = self._view.uncounted
                self.changed.notify_all()
                if self._refused:
                    return True
        return False

    def _take_signals(self) -> None:
        try:
            numbers = self._wake_in.recv(4096)
        except BlockingIOError:
            return
        for number in numbers:
            if number:
                self._on_signal(number)
