"""The workers of one generation on this agent: how they ended, whether that was their own doing, and their end where they do not stop."""

import logging
import signal
import threading
import time
import typing

from elastic_worker import children
from elastic_worker.ending import Ending
from elastic_worker.presence import Presence, View

log = logging.getLogger(__name__)

OWN_END_S = 0.3
"""How long a worker's end by SIGTERM is held back: when it went with its whole pod, the agent's own signal comes within this time."""
SEEN_S = 0.5
"""How long to wait for the kernel's word on an end that torch has seen already."""


class Work:
    """What one generation's workers did. `is_terminating` is set when the whole pod is going."""

    def __init__(self, presence: Presence, *, generation: int, is_terminating: threading.Event) -> None:
        self._presence = presence
        self._is_terminating = is_terminating
        self.generation = generation
        self.is_asked_back = False
        self.has_finished = False
        self._has_failed = threading.Event()
        self._is_over = False
        self._ender = None  # type: typing.Optional[threading.Timer]
        self._watch = children.Watch(on_start=self._on_start, on_end=self._on_end)
        self._ending = Ending()

    def begin(self) -> None:
        self._watch.begin()

    def ask_back(self, grace_s: float) -> None:
        """The world changes: torch stops the workers now, and we those that do not stop within the grace."""
        self.is_asked_back = True
        pids = self._watch.running()
        self._ender = threading.Timer(grace_s, self._end, (pids, grace_s))
        self._ender.daemon = True
        self._ender.start()

    def finish_stuck(self, view: View) -> None:
        """End workers that will never end by themselves, where all other ranks of the world have ended with 0, so that they count as ended
        with 0 as well. For the thread in which torch looks after its workers, as `Watch.finish` says.
        """
        pids = self._watch.running()
        if view.generation != self.generation or not pids or not self._is_own_end():
            return
        if not (view.peers_finished if view.size > 1 else self._watch.ended_well):
            return
        for pid, wait in self._ending.stuck(pids, now=time.monotonic()).items():
            is_ended = self._watch.finish(pid)
            outcome = "ended it; it counts as ended with 0" if is_ended else "could not end it"
            log.error("worker process %s hangs in torch's known deadlock at the end of a gloo job, and we %s: %s", pid, outcome, wait)

    def close(self) -> None:
        """torch came back to the barrier. If nobody asked it to, a worker failed: see to it that the server knows."""
        if not self.is_asked_back and not self._has_failed.wait(SEEN_S):
            self._presence.state("failed", generation=self.generation, detail="torchrun restarts its workers")
        self.end()

    def end(self) -> None:
        """Nothing that these workers do matters any more."""
        self._is_over = True
        if self._ender is not None:
            self._ender.cancel()
        self._watch.end()

    def _on_start(self) -> None:
        self._presence.state("started", generation=self.generation)

    def _on_end(self, pid: int, status: typing.Optional[int]) -> None:
        if status == 0:
            if not self._watch.running() and self._is_own_end():
                self.has_finished = True
                self._presence.state("finished", generation=self.generation)
            return
        if status == 128 + signal.SIGTERM:
            self._is_terminating.wait(OWN_END_S)
        if not self._is_own_end():
            return
        fields = {"generation": self.generation, "detail": "worker process {}".format(pid)}  # type: typing.Dict[str, typing.Any]
        if status is not None:
            fields["status"] = status
        self._presence.state("failed", **fields)
        self._has_failed.set()

    def _is_own_end(self) -> bool:
        return not (self._is_over or self.is_asked_back or self._is_terminating.is_set() or self._has_failed.is_set())

    def _end(self, pids: typing.List[int], grace_s: float) -> None:
        killed = self._watch.kill(pids)
        if killed:
            log.warning("workers %s did not stop within %.1f s of being asked to, and were killed", killed, grace_s)
