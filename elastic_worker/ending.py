"""Watches the last training processes of a world whose other ranks have all ended with 0, and says which of them will never end.

It looks at them every few seconds; standstill judges what it sees. What may still be at work is left alone, and the log says why.
"""

import logging
import platform
import time
import typing

from elastic_worker import procfs, standstill

log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0
STILL_S = 30.0
"""How long a process must have stood in the known wait."""
SILENT_S = 30.0
"""How long the last ones may take before the log says what they do: to end last is nothing special."""
MOST_WORDS = 20
MOST_TRIES = 20
TRY_S = 0.005


class Ending:
    """The last processes of this agent in one world."""

    def __init__(
        self, *, look: typing.Callable[[int], standstill.Look] = procfs.look, worker_of: typing.Callable[[int], int] = procfs.worker_of
    ) -> None:
        self._look = look
        self._worker_of = worker_of
        self._calls = standstill.CALLS.get(platform.machine())
        self._since = None  # type: typing.Optional[float]
        self._next = 0.0
        self._looks = {}  # type: typing.Dict[int, standstill.Look]
        self._still_since = {}  # type: typing.Dict[int, float]
        self._told = set()  # type: typing.Set[str]

    def stuck(self, pids: typing.Sequence[int], *, now: float) -> typing.Dict[int, str]:
        """Which of these children of the agent, the last ones of their world, will never end, with the wait that each is in."""
        if self._since is None:
            self._since = self._next = now
        if now < self._next or self._calls is None:
            return {}
        self._next = now + LOOK_EVERY_S
        found = {}
        for pid in pids:
            words = self._judge(pid, self._calls)
            if words:
                self._still_since.pop(pid, None)
                self._tell(pid, words, waited_s=now - self._since)
            elif now - self._still_since.setdefault(pid, now) >= STILL_S:
                found[pid] = standstill.told(self._worker_of(pid), self._looks[pid])
        return found if len(found) == len(pids) else {}

    def _judge(self, pid: int, calls: standstill.Calls) -> str:
        """Why this process may still be at work."""
        before = self._looks.pop(pid, None)
        try:
            worker = self._worker_of(pid)
            now = self._look_at_rest(worker)
        except procfs.Unreadable as error:
            return "what it does cannot be read: {}".format(error)
        self._looks[pid] = now
        return standstill.doubt(worker, before, now, calls) if before is not None else "it was looked at for the first time"

    def _look_at_rest(self, worker: int) -> standstill.Look:
        """torch's own threads wake up some hundred times a second for nothing; one that is awake just now is soon asleep again."""
        for _ in range(MOST_TRIES):
            seen = self._look(worker)
            if standstill.is_at_rest(seen):
                break
            time.sleep(TRY_S)
        return seen

    def _tell(self, pid: int, words: str, *, waited_s: float) -> None:
        if waited_s < SILENT_S or words in self._told or len(self._told) >= MOST_WORDS:
            return
        self._told.add(words)
        log.warning("all other ranks ended with 0 %.0f s ago, worker process %s has not: %s; it is left alone", waited_s, pid, words)
