"""A rendezvous at which nothing happens; tests note in a class of their own what is reported to it."""

from __future__ import annotations

import threading

from elastic_worker.agent.view import View


class SilentRendezvous:
    """A rendezvous that nobody else is at, for an agent that a test drives."""

    peer, away_s, denied, refused, wake_fd = "nobody", 0.0, "", "", -1

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.view = View({})

    def start(self) -> None: ...

    def close(self) -> None: ...

    def announce_ready(self, *, after: int, store: str, trouble: str = "", killed: int = 0) -> None: ...

    def enter(self, view: View) -> None: ...

    def leave(self, reason: str, by_signal: bool = False) -> None: ...
