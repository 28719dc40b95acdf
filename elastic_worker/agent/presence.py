"""Keep the agent's connection to the rendezvous server.

One thread reconnects, sends heartbeats, and keeps the newest view.
After each reconnect it sends the agent's whole state again, so that a broken connection or a restarted server loses nothing.
It decides nothing; the handler does.
"""

import collections
import json
import random
import ssl
import time
import typing

from elastic_worker.agent.presence_thread import PresenceThread, process_id
from elastic_worker.agent.view import View
from elastic_worker.agent.wake import wait_readable
from elastic_worker.agent.websocket import Broken, Denied, WebSocket
from elastic_worker.settings import Settings

BEAT_S = 9.0
SILENCE_S = 2 * BEAT_S + 2.0
"""A server that answers no ping for so long is gone or hangs. Another one may have replaced it."""
CONNECT_TIMEOUT_S = 5.0
FIRST_BACK_OFF_S = 0.05
LONGEST_BACK_OFF_S = 0.5
"""While nothing answers: a server that is being replaced is back within seconds."""
DENIED_BACK_OFF_S = 5.0
"""After the server denied this agent, or after a minute without an answer."""
LONG_AWAY_S = 60.0
OUTBOX = 16 * 1024
"""Messages that wait for the connection. Each of a thousand workers may give its peers 16 values at once."""

_AT = "at"
"""When the state was recorded, by the local monotonic clock. The message carries the seconds since then."""

SINCE_1_2 = ("alive", "step", "workers", "round", "provisional")
"""Fields of `join` and `ready` that a server of an older minor version does not know. It never gets them."""
KNOWN_BEFORE = ("join", "ready", "beat", "leave", "failed", "started", "finished")
"""Messages that a server of an older minor version knows."""
IN_PROCESS_MINOR = 2
"""Minor version of a server that changes worlds in process."""
JOB_OVER = "the job is over"
"""The server sends away the agents of a job that is finished or deleted. That is no error."""
LOOKING_MINOR = 3
"""Minor version of a server that asks what workers do."""
PACING_MINOR = 4
"""Minor version of a server that asks how long workers need for their steps."""
SAVING_MINOR = 5
"""Minor version of a server that hears which workers fail to save."""
SINCE = {"doings": LOOKING_MINOR, "paces": PACING_MINOR, "saves": SAVING_MINOR}
"""Messages, and the minor version of a server that takes them."""

Message = typing.Dict[str, typing.Any]
Introduction = typing.Tuple[Message, typing.List[Message]]
"""Fields that a new connection adds to Join, and messages that it repeats after Join."""


def _ago_s(at: float) -> float:
    return round(time.monotonic() - at, 3)


class Presence(PresenceThread):
    """The connection of one agent. It lives as long as the agent."""

    peer = "the rendezvous server"

    def __init__(self, settings: Settings, *, on_signal: typing.Callable[[int], None]) -> None:
        super().__init__(on_signal=on_signal)
        self.minor = 0
        """Minor version of the messages that the last server named."""
        self.introduce = lambda: ({}, [])  # type: typing.Callable[[], Introduction]
        """Return this agent's state in a change of worlds in process. It is called with the lock."""
        self.on_news = lambda: None  # type: typing.Callable[[], None]
        """Hear that there is a new view or new keys."""
        self._keys = []  # type: typing.List[typing.Tuple[int, typing.Dict[str, str]]]
        self._left_in_process = set()  # type: typing.Set[int]
        self._round = 0
        self._settings = settings
        self._tls = settings.tls()
        self._incarnation = process_id(settings.pod_uid or settings.member)
        self._held = None  # type: typing.Optional[Message]
        self._is_ready = False
        self._store = ""
        self._trouble = ""
        self._living = {}  # type: Message
        self._failed = None  # type: typing.Optional[Message]
        self._states = {}  # type: typing.Dict[str, Message]
        self._outbox = collections.deque(maxlen=OUTBOX)  # type: typing.Deque[Message]
        self._has_view = False  # whether the server sent a view on this connection

    # --- for the agent's thread ---

    def announce_ready(self, *, after: int, store: str, trouble: str = "", killed: int = 0) -> None:
        """Report that this agent left the world `after` and waits at the barrier for the next one."""
        with self.changed:
            self._is_ready = True
            self._store = store
            self._trouble = trouble
            self._living = {}
            self._failed = self._states.get("failed", self._failed)
            self._states.clear()
            self._view = View({"grace_s": self._view.grace_s, "closed": self._view.closed})
            message = {"t": "ready", "after": after, "store": store}  # type: Message
            if trouble:
                message["trouble"] = trouble
            if killed:
                message["killed"] = killed
            self._outbox.append(message)
        self._wake.up()

    def stand_by(self, *, round: int, step: typing.Optional[int] = None) -> None:
        """Report that this agent waits at the barrier with living processes, which hold the complete state of this step."""
        with self.changed:
            self._is_ready = True
            self._trouble = ""
            self._living = {"alive": True, "round": round}
            if step is not None:
                self._living["step"] = step
            after = self._held["generation"] if self._held is not None else 0
            self._outbox.append(dict(self._living, t="ready", after=after, store=self._store))
        self._wake.up()

    def start_outside(self) -> None:
        """Note that workers start in a world of their own; the server knows, because it asked for that."""

    def resume(self) -> None:
        """Leave the barrier for the same world, because the change is called off."""
        with self.changed:
            self._is_ready = False
            self._living = {}

    def note_round(self, round: int) -> None:
        """Present from now on that this agent has heard of this change in process."""
        with self.changed:
            self._round = max(self._round, round)

    def enter(self, view: View) -> None:
        """Present this world from now on as the one that this agent is in."""
        with self.changed:
            self._is_ready = False
            self._failed = None
            self._left_in_process.clear()
            self._held = {"id": view.id, "generation": view.generation, "rank": view.rank, "size": view.size, "store": view.store}
            self._held["uncounted"] = view.unacknowledged_restarts

    def move(self, view: View) -> None:
        """Enter this world in process. A failure in the world before counts in this one, because the server may not know it yet."""
        with self.changed:
            left, former = set(self._left_in_process), self._held["generation"] if self._held is not None else 0
            self.enter(view)
            if view.generation == former:
                return
            self._left_in_process = left | {0, former}
            self._states.pop("started", None)
            if self._states.get("failed", {}).get("replaced"):
                del self._states["failed"]  # the server formed this world because of it
            for message in self._states.values():
                message["generation"] = view.generation
                self._outbox.append(message)
        self._wake.up()

    def send(self, message: Message) -> None:
        """Send a message once. `introduce` repeats it if that is needed."""
        with self.changed:
            self._outbox.append(message)
        self._wake.up()

    def take_keys(self) -> typing.List[typing.Tuple[int, typing.Dict[str, str]]]:
        """Return the values of the exchange that have come since the last call, with their rounds."""
        with self.changed:
            taken, self._keys = self._keys, []
            return taken

    def report_state(self, kind: str, **fields: typing.Any) -> None:
        """Report a state of the current world once; it is sent again after each reconnect."""
        message = dict(fields, t=kind)
        if kind == "failed":
            message.setdefault(_AT, time.monotonic())
        with self.changed:
            if kind in self._states and (message.get("replaced") or not self._states[kind].get("replaced")):
                return
            if message.get("generation") in self._left_in_process and self._held is not None:
                message["generation"] = self._held["generation"]
            self._states[kind] = message
            self._outbox.append(message)
        self._wake.up()

    def _note_leave(self, reason: str, by_signal: bool) -> None:
        self._outbox.append({"t": "leave", "reason": reason, "by_signal": by_signal})

    # --- the thread ---

    def _run(self) -> None:
        back_off_s = FIRST_BACK_OFF_S
        while True:
            longest_s = DENIED_BACK_OFF_S
            self._has_view = False
            try:
                websocket = self._connect()
            except (OSError, ssl.SSLError, Denied) as error:
                self._note_denial(error)
                if not isinstance(error, Denied) and self.away_s < LONG_AWAY_S:
                    longest_s = LONGEST_BACK_OFF_S
            else:
                if self._serve(websocket):
                    return
            back_off_s = FIRST_BACK_OFF_S if self._has_view else min(back_off_s, longest_s)
            if self._should_end_after(back_off_s * random.uniform(0.5, 1.0)):
                return
            back_off_s *= 2

    def _connect(self) -> WebSocket:
        to = self._settings
        return WebSocket.open(host=to.host, port=to.port, path=to.path, token=to.token, tls=self._tls, timeout_s=CONNECT_TIMEOUT_S)

    def _serve(self, websocket: WebSocket) -> bool:
        """Use the connection until it ends; True if this side ended it."""
        try:
            return self._talk(websocket)
        except (OSError, ValueError, TypeError):  # a broken connection, or a malformed message
            websocket.drop()
            with self.changed:
                self._away_since = time.monotonic()
            return False

    def _note_denial(self, error: Exception) -> None:
        with self.changed:
            self._denied = str(error) if isinstance(error, Denied) else ""
            self.changed.notify_all()

    def _should_end_after(self, seconds: float) -> bool:
        """Wait before the next attempt. True if this presence is to end: then there is nothing left to send."""
        wait_readable(seconds, self._wake.fileno())
        self._read_signals()
        with self.changed:
            return self._is_ending or bool(self._refused)

    def _talk(self, websocket: WebSocket) -> bool:
        """Introduce this agent, then exchange messages until this side ends the connection. A broken or silent connection raises."""
        with self.changed:
            leaving = [message for message in self._outbox if message["t"] == "leave"]
            self._outbox.clear()
            self.minor = websocket.minor
            fields, repeated = self.introduce()
            self._outbox.append(dict(self._introduction(), **fields))
            self._outbox.extend(self._states.values())
            self._outbox.extend(repeated)
            self._outbox.extend(leaving)
            self._denied = ""
            self._away_since = None
        beat_at = time.monotonic() + BEAT_S
        while True:
            self._send_all(websocket)
            with self.changed:
                if self._is_ending and not self._outbox:
                    websocket.close()
                    return True
            wait_s = max(0.0, beat_at - time.monotonic())
            readable = wait_readable(wait_s, websocket.fileno(), self._wake.fileno())
            self._read_signals()
            if websocket.fileno() in readable and self._receive(websocket.receive()):
                websocket.close()
                return True
            if time.monotonic() >= beat_at:
                if time.monotonic() > websocket.received_at + SILENCE_S:
                    raise Broken("the server is silent")
                beat_at = time.monotonic() + BEAT_S
                websocket.send('{"t":"beat"}')
                websocket.ping()

    def _introduction(self) -> Message:
        message = {"t": "join", "incarnation": self._incarnation, "ready": self._is_ready, "store": self._store}  # type: Message
        if self._held is not None:
            message["held"] = dict(self._held, round=self._round) if self._round else self._held
        if self._is_ready:
            message.update(self._living)
        if self._is_ready and self._trouble:
            message["trouble"] = self._trouble
        if self._is_ready and self._failed is not None and not self._failed.get("by_library"):
            message["failed"] = True
            if "status" in self._failed:
                message["status"] = self._failed["status"]
            message["failed_ago_s"] = _ago_s(self._failed[_AT])
        return message

    def _send_all(self, websocket: WebSocket) -> None:
        while True:
            with self.changed:
                if not self._outbox:
                    return
                message = dict(self._outbox.popleft())
            if websocket.minor < SINCE.get(message["t"], 0):
                continue  # an older server has taken the place of the one that asked
            if websocket.minor < IN_PROCESS_MINOR:
                if message["t"] not in KNOWN_BEFORE:
                    continue
                message = _without_news(message)
            if websocket.minor < SAVING_MINOR and message["t"] == "unable":
                message = {"t": "unable", "words": message["words"]}
            if _AT in message:
                message["ago_s"] = _ago_s(message.pop(_AT))
            websocket.send(json.dumps(message, separators=(",", ":")))

    def _receive(self, texts: typing.List[str]) -> bool:
        """Handle messages of the server; True if it refuses this incarnation."""
        for text in texts:
            fields = json.loads(text)
            with self.changed:
                if "refused" in fields:
                    self._refused = str(fields["refused"])
                elif "keys" in fields:
                    self._keep_keys(fields["keys"])
                else:
                    self._view = View(fields)
                    self._has_view = True
                    if self._held is not None and (self._held["id"] == self._view.id or self._view.unacknowledged_restarts):
                        self._held["uncounted"] = self._view.unacknowledged_restarts
                self.changed.notify_all()
                if self._refused:
                    return True
        if texts:
            self.on_news()
        return False

    def _keep_keys(self, keys: typing.Any) -> None:
        if not isinstance(keys, dict) or not isinstance(keys.get("items"), dict):
            raise ValueError("the server sent keys without items")
        round = int(keys.get("round", 0))
        if any(known != round for known, _ in self._keys):
            self._keys = []
        self._keys.append((round, keys["items"]))


def _without_news(message: Message) -> Message:
    """Return the message without the fields that servers before minor version 2 do not know."""
    if message["t"] not in ("join", "ready"):
        return message
    known = {name: value for name, value in message.items() if name not in SINCE_1_2}
    if "round" in known.get("held", {}):
        known["held"] = {name: value for name, value in known["held"].items() if name != "round"}
    return known
