"""Talks with this worker's agent in a thread of its own, and holds the facts on which that thread and the main thread must agree.

The agent sends the present state of a change again and again, so each message is compared with the newest one. This module never
imports torch: the thread must answer while the main thread is blocked inside a collective.
"""

import base64
import faulthandler
import json
import os
import select
import socket
import sys
import threading
import time
import typing

from elastic_worker.training import environment
from elastic_worker.training.connections import Connections
from elastic_worker.training.forks import keep_from_children
from elastic_worker.training.idle import Idle

PHASES = ("hold", "stop", "abort", "form", "run")
GOES_ON = ("hold", "stop", "run")
"""Phases of a later round in which the present world still trains. `run` calls the later round's change off."""
LONGEST_LINE = 64 * 1024
LONGEST_KEY = 256
LONGEST_VALUE = 32 * 1024
MOST_KEYS = 64 * 1024
LONGEST_WORDS = 300
SEND_S = 10.0
"""Seconds until an agent that reads nothing counts as gone."""
BREAK_EVERY_S = 0.05
"""A group that is being formed opens further connections, so the break is repeated until the main thread notices it."""
LOOK_EVERY_S = 1.0
LEAVE_S = 10.0
"""Seconds that the main thread has to leave a world that is finished, besides three times its longest step."""
FIRST_STEP_S = 300.0
"""Allowance for a process that has committed no step yet, because compilers and caches run then."""
OUTSIDE_S = 600.0
"""Allowance for the program's own work between two steps, such as an evaluation."""
AGENT_GONE, STUCK = 3, 4
"""Exit codes. The agent reports them as no failure of the program (elastic_worker.agent.workers)."""

Fields = typing.Mapping[str, typing.Any]


class Over(RuntimeError):
    """A newer round has ended the one that a call belongs to."""


class Change(typing.NamedTuple):
    """The present state of a change, as the agent sends it."""

    round: int
    phase: str
    fields: Fields

    @property
    def place(self) -> typing.Tuple[int, int]:
        """Return the position of this state among all states of all rounds."""
        return self.round, PHASES.index(self.phase)


NO_CHANGE = Change(-1, "run", {})


class Control:
    """Connection to the agent. `start` says hello; every other method may be called by any thread."""

    def __init__(self, path: str, connections: Connections, *, leave: typing.Callable[[int], typing.Any] = os._exit) -> None:
        self.news = threading.Condition()
        self.step = 0
        """Number of committed steps."""
        self.pace_s = 0.0
        """Seconds of each window over which the worker's pace is measured; 0 if nobody wants to know it."""
        self.plain = None  # type: typing.Optional[str]
        """Reason why this job does not change worlds in process, once the agent has said so."""
        self.meets_peers = lambda: True  # type: typing.Callable[[], bool]
        """Returns whether the main thread may be waiting for the group that is broken off."""
        self._connections = connections
        self._leave = leave
        self._change = NO_CHANGE
        self._entered = -1
        """Round of the world that the main thread is in, or forms."""
        self._held_at = 0
        self.is_inside = self._is_forming = self._is_finishing = self._is_done = self._is_at_boundary = False
        self._breaks = None  # type: typing.Optional[int]
        """Epoch of the connections that are broken off until the main thread notices."""
        self._deadline = None  # type: typing.Optional[typing.Tuple[float, str]]
        self._forming_until = None  # type: typing.Optional[float]
        self._began = 0.0
        self.longest_step_s = None  # type: typing.Optional[float]
        self._values = (-1, {})  # type: typing.Tuple[int, typing.Dict[str, bytes]]
        self._sending = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(SEND_S)
        self._socket.connect(path)
        self._poll = select.poll()  # not select.select, which fails at descriptors above 1023
        self._poll.register(self._socket, select.POLLIN)
        # The agent must see the end of this process, and a loader process's copy of the socket would hide it.
        keep_from_children(self._socket)

    # --- the main thread: the loop

    def start(self, **hello: object) -> None:
        """Say hello, and begin to listen."""
        self.send("hello", **hello)
        self._idle = Idle(threading.get_native_id(), threading.get_ident())
        threading.Thread(target=self._listen, name="elastic-control", daemon=True).start()

    def begin_step(self) -> bool:
        """Wait while a change holds the next step; return False if the world ends before that step."""
        with self.news:
            self.news.wait_for(lambda: not (self._is_news("hold") and self.step >= self._held_at))
            if self._is_leaving():
                return False
            self.is_inside = True
            self._began = time.monotonic()
            return True

    def check_step(self) -> None:
        """Raise Over if the world has ended inside the step."""
        with self.news:
            if self._is_leaving() and self._change.phase != "stop":
                raise Over("round {} has ended round {}".format(self._change.round, self._entered))

    def commit(self) -> None:
        """Count the step that `begin_step` began."""
        with self.news:
            self.step += 1
            self.is_inside = False
            lasted = time.monotonic() - self._began
            self.longest_step_s = max(lasted, self.longest_step_s or 0.0)

    def give_up_step(self) -> None:
        """Note that the step has ended without a commit."""
        with self.news:
            self.is_inside = False

    def finish(self, is_finishing: bool) -> None:
        """Note whether the main thread waits for its peers after the last step. It then also leaves for a change that it stops at."""
        with self.news:
            self._is_finishing = is_finishing

    def is_ending(self, within_s: float = 0.0) -> bool:
        """Return whether the present world ends before the next step; wait up to so many seconds for the news."""
        with self.news:
            return bool(self.news.wait_for(self._is_leaving, within_s))

    def complain(self, words: str) -> None:
        """Tell the agent that the step's body has raised an error."""
        self.send("complains", round=self._entered, words=words[:LONGEST_WORDS])

    # --- the main thread: from world to world

    def next_change(self, after: typing.Tuple[int, int]) -> typing.Optional[Change]:
        """Wait for a state beyond this place; return None once the agent has called the job a plain one."""
        with self.news:
            self.news.wait_for(lambda: self.plain is not None or self._change.place > after)
            return None if self.plain is not None else self._change

    @property
    def place(self) -> typing.Tuple[int, int]:
        """Return the place of the present world's end: later states are news."""
        return self._entered, PHASES.index("run")

    def at_boundary(self, round: int, step: typing.Optional[int]) -> None:
        """Tell the agent that the main thread has left the world; breaking off ends with this."""
        with self.news:
            self._breaks = self._deadline = self._forming_until = None
            self.is_inside, self._is_at_boundary = False, True
        self.send("at", round=round, step=step)

    def enter(self, round: int, within_s: float) -> None:
        """Begin to form the world of this round; it is broken off after so many seconds without an `extend`."""
        with self.news:
            self._entered = round
            self._breaks = None
            self._is_forming, self._is_at_boundary = True, False
            self._check(round)
        self.extend(round, within_s)

    def extend(self, round: int, within_s: float) -> None:
        """Give the main thread so many seconds from now to form the world."""
        with self.news:
            self._forming_until = time.monotonic() + within_s
            self._deadline = (self._forming_until + LEAVE_S, "round {} is not formed".format(round))

    def formed(self, round: int) -> None:
        """Tell the agent that the world stands, and wait until everybody trains. Raises Over if the world ends first."""
        with self.news:
            self._check(round)
            self._deadline = self._forming_until = None
            self._is_forming = False
        self.send("formed", round=round)
        with self.news:
            # A hold of the next round also says that this world trains: the agent sends the newest state only.
            self.news.wait_for(lambda: self._change.place >= (round, PHASES.index("run")))
            if self._change.round > round and self._change.phase not in GOES_ON:
                raise Over("round {} has ended round {}".format(self._change.round, round))

    def unformed(self, round: int, words: str) -> None:
        """Tell the agent why this world could not be formed, unless another round has begun."""
        with self.news:
            is_over = self._is_over(round)
            self._is_forming = False
            self._deadline = self._forming_until = self._breaks = None
        if not is_over:
            self.send("unformed", round=round, words=words[:LONGEST_WORDS])

    @property
    def entered(self) -> int:
        """Return the round of the world that the main thread is in."""
        return self._entered

    # --- any thread

    def send(self, kind: str, **fields: object) -> None:
        """Send a message; the listening thread notices if the agent is gone."""
        line = json.dumps({"t": kind, **fields}, separators=(",", ":")).encode() + b"\n"
        try:
            with self._sending:
                self._socket.sendall(line)
        except socket.timeout:
            self._end("The agent has read nothing for {:g} s.".format(SEND_S))
        except OSError:
            pass

    def done(self, *, early: bool = False, error: str = "") -> None:
        """Tell the agent once that the loop has ended: from now on this worker stays in its world, and outlives the agent.

        early: the program left the loop before the end of the training. error: the line of the exception that ends it.
        """
        with self.news:
            was_done, self._is_done, self._deadline, self._breaks = self._is_done, True, None, None
        if not was_done:
            self.send("done", **({"early": True, "words": error[:LONGEST_WORDS]} if early else {}))

    def put(self, round: int, key: str, value: bytes) -> None:
        """Hand a value to all workers of this round."""
        if len(key) > LONGEST_KEY or len(value) > LONGEST_VALUE:
            words = "the key {!r} has {} bytes; at most {} are exchanged under {} characters"
            raise ValueError(words.format(key[:80], len(value), LONGEST_VALUE, LONGEST_KEY))
        with self.news:
            self._check(round)
            self._values_of(round)[key] = value
        self.send("put", round=round, key=key, value=base64.b64encode(value).decode())

    def get(self, round: int, keys: typing.Sequence[str], within_s: float) -> typing.List[bytes]:
        """Return the values of these keys; wait for them until the round has ended."""
        with self.news:
            if not self.wait_in(round, lambda: all(key in self._values_of(round) for key in keys), within_s):
                missing = [key for key in keys if key not in self._values_of(round)]
                raise RuntimeError("no peer has sent {} within {:g} s".format(", ".join(missing[:8]), within_s))
            values = self._values_of(round)
            return [values[key] for key in keys]

    def wait_in(self, round: int, is_done: "typing.Callable[[], bool]", within_s: float) -> bool:
        """Wait for something that notifies `news`, and return whether it is done. Raise Over if the round ends first."""
        with self.news:
            self.news.wait_for(lambda: self._is_over(round) or is_done(), within_s)
            self._check(round)
            return is_done()

    def known(self, round: int) -> typing.Dict[str, bytes]:
        """Return what is known of this round."""
        with self.news:
            return dict(self._values_of(round))

    def forget(self, round: int, key: str) -> bool:
        """Drop a value in this process only."""
        with self.news:
            return self._values_of(round).pop(key, None) is not None

    # --- under the lock

    def _values_of(self, round: int) -> typing.Dict[str, bytes]:
        if self._values[0] < round:
            self._values = (round, {})
        return self._values[1] if self._values[0] == round else {}

    def _is_over(self, round: int) -> bool:
        """Return whether a round is finished. A hold or a stop does not end a world yet: it still does steps."""
        is_still_going = round == self._entered and not self._is_forming and self._change.phase in GOES_ON
        return self._change.round > round and not is_still_going

    def _check(self, round: int) -> None:
        if self._is_over(round):
            raise Over("round {} has ended round {}".format(self._change.round, round))

    def _is_news(self, phase: str) -> bool:
        return self._change.round > self._entered and self._change.phase == phase

    def _is_leaving(self) -> bool:
        if self._change.round <= self._entered or self._change.phase in ("hold", "run"):
            return False
        return self._change.phase != "stop" or self.step >= int(self._change.fields.get("step", 0))

    # --- the thread

    def _listen(self) -> None:
        unread = b""
        while True:
            lines, unread = self._read(unread)
            for line in lines:
                try:
                    message = json.loads(line)
                    kind = message["t"]
                    if kind == "change":
                        self._on_change(message)
                    elif kind == "keys":
                        self._on_keys(message)
                    elif kind == "pace":
                        self.pace_s = float(message["every_s"])
                    elif kind == "stranger" and not environment.is_provisional():
                        self._on_change({"phase": "plain", "why": environment.NOT_ITS_WORKER})
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    self._end("The agent sent a line that cannot be read: {!r}: {}.".format(line[:80], error))
                    return
            if lines is GONE:
                self._end("The agent is gone.")
                return
            with self.news:
                if self._forming_until is not None and time.monotonic() > self._forming_until:
                    self._breaks = self._connections.epoch
                epoch, deadline = self._breaks, self._deadline
            if epoch is None:
                self._idle.begin()
            elif self._connections.break_off(epoch) == 0 and self.meets_peers() and self._idle.look():
                self._stuck("gloo has forgotten an operation when its connections ended")
            if deadline is not None and time.monotonic() > deadline[0]:
                self._stuck(deadline[1])

    def _read(self, unread: bytes) -> typing.Tuple[typing.Sequence[bytes], bytes]:
        """Return the lines that have come, without waiting longer than until the next look."""
        try:
            if not self._poll.poll(1000 * (LOOK_EVERY_S if self._breaks is None and not self._is_forming else BREAK_EVERY_S)):
                return [], unread
            some = self._socket.recv(LONGEST_LINE)
        except (OSError, ValueError):
            return GONE, b""
        *lines, unread = (unread + some).split(b"\n")
        return (lines, unread) if some and len(unread) <= LONGEST_LINE else (GONE, b"")

    def _on_change(self, message: Fields) -> None:
        held = None
        with self.news:
            if self.plain is not None or self._is_done:
                return
            if message["phase"] == "plain":
                if self._entered < 0:
                    self.plain, self._is_done = str(message.get("why", "")), True
                    self.news.notify_all()
                return
            if message["phase"] not in PHASES:
                return
            change = Change(int(message["round"]), message["phase"], message)
            if change.place > self._change.place:
                self._change = change
                if change.phase == "hold":
                    self._held_at = self.step + (1 if self.is_inside else 0)
                is_in_reach = self.is_inside or self._is_finishing or self._is_forming
                is_in_step = not self._is_at_boundary and (change.phase != "stop" or self._is_finishing or self._is_forming)
                if self._is_leaving() and (change.phase == "abort" or is_in_step):
                    self._breaks = self._connections.epoch
                    until = time.monotonic() + self._allowance_s(is_in_reach)
                    self._deadline = (until, "the world that round {} ended".format(change.round))
                self.news.notify_all()
            if change.place == self._change.place and change.phase == "hold":
                held = self._held_at
        if held is not None:
            self.send("holds", round=change.round, step=held)

    def _allowance_s(self, is_in_reach: bool) -> float:
        if not is_in_reach:
            return OUTSIDE_S
        return LEAVE_S + (FIRST_STEP_S if self.longest_step_s is None else 3 * self.longest_step_s)

    def _on_keys(self, message: Fields) -> None:
        with self.news:
            values = self._values_of(int(message["round"])) if int(message["round"]) >= self._values[0] else {}
            for key, value in message["items"].items():
                if len(values) < MOST_KEYS:
                    values[key] = base64.b64decode(value)
            self.news.notify_all()

    def _stuck(self, words: str) -> None:
        sys.stderr.write("elastic_worker: the main thread is stuck: {}. Its stack follows; this process ends.\n".format(words))
        faulthandler.dump_traceback(all_threads=True)
        self._leave(STUCK)

    def _end(self, words: str) -> None:
        if not self._is_done:
            sys.stderr.write("elastic_worker: {} This process ends.\n".format(words))
            self._leave(AGENT_GONE)


GONE = ()  # type: typing.Tuple[bytes, ...]
"""Stands for the lines of a connection that has ended."""
