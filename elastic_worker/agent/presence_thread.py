"""The common part of the presences of all backends: one thread that other threads and signals wake, and the newest facts.

A backend says in `_run` what the thread does, and in `_note_leave` what it keeps when the agent leaves.
"""

import os
import threading
import time
import typing

from elastic_worker.agent.view import View
from elastic_worker.agent.wake import Wake

LEAVE_S = 2.0


def process_id(name: str) -> str:
    """Names this process and no other: that of an agent which is started again with the same name differs."""
    return "{}/{}-{}-{}".format(name, int(time.time() * 1000), os.getpid(), os.urandom(3).hex())


class PresenceThread:
    """Lives as long as the agent. `changed` guards the state."""

    def __init__(self, *, on_signal: typing.Callable[[int], None], clock: typing.Callable[[], float] = time.monotonic) -> None:
        self._on_signal = on_signal
        self._clock = clock
        self.changed = threading.Condition()
        self._view = View({})
        self._refused = ""
        self._denied = ""
        self._away_since = clock()  # type: typing.Optional[float]
        self._is_ending = False
        self._wake = Wake()
        self._thread = threading.Thread(target=self._run, name="elastic-presence", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def wake_fd(self) -> int:
        """For signal.set_wakeup_fd: a signal wakes the thread, which reports it at once."""
        return self._wake.signal_fd

    @property
    def view(self) -> View:
        with self.changed:
            return self._view

    @property
    def refused(self) -> str:
        """Why this incarnation is refused, which must end; empty if it is not."""
        with self.changed:
            return self._refused

    @property
    def denied(self) -> str:
        """The peer's last answer if it denied this agent."""
        with self.changed:
            return self._denied

    @property
    def away_s(self) -> float:
        """How long there has been no connection."""
        with self.changed:
            return self._clock() - self._away_since if self._away_since is not None else 0.0

    def leave(self, reason: str, *, by_signal: bool = False) -> None:
        """Leave cleanly, and wait up to LEAVE_S until that is said."""
        with self.changed:
            if self._is_ending:
                return
            self._is_ending = True
            self._note_leave(reason, by_signal)
        self._wake.up()
        if threading.current_thread() is not self._thread and self._thread.is_alive():
            self._thread.join(LEAVE_S)

    def close(self) -> None:
        """Leave and free the sockets. No signal may be written to `wake_fd` after this."""
        self.leave("closed")
        if not self._thread.is_alive():
            self._wake.close()

    def _read_signals(self) -> None:
        for number in self._wake.signals():
            self._on_signal(number)

    def _run(self) -> None:
        raise NotImplementedError

    def _note_leave(self, reason: str, by_signal: bool) -> None:
        """Note that the agent leaves. The caller has the lock."""
        raise NotImplementedError
