"""Watch the last worker processes of a world whose other ranks have all ended with 0, and find those that are deadlocked.

It takes a snapshot every few seconds, and `diagnosis` compares two of them. A process that may still work is left alone, and the log says
why.
"""

import logging
import platform
import time
import typing

from elastic_worker.gloo_deadlock import diagnosis, procfs

log = logging.getLogger(__name__)

SNAPSHOT_EVERY_S = 5.0
STILL_S = 30.0
"""Seconds for which a process must have been in the known wait."""
SILENT_S = 30.0
"""Seconds until the log says what the last workers do. Some time is normal, because a worker always ends last."""
MOST_REASONS = 20
MOST_ATTEMPTS = 20
ATTEMPT_S = 0.005


class LastWorkers:
    """Watches the last processes of this agent in one world."""

    def __init__(
        self,
        *,
        snapshot: typing.Callable[[int], diagnosis.Snapshot] = procfs.snapshot,
        worker_of: typing.Callable[[int], int] = procfs.worker_of,
    ) -> None:
        self._take = snapshot
        self._worker_of = worker_of
        self._calls = diagnosis.CALLS.get(platform.machine())
        self._since = None  # type: typing.Optional[float]
        self._next = 0.0
        self._snapshots = {}  # type: typing.Dict[int, diagnosis.Snapshot]
        self._still_since = {}  # type: typing.Dict[int, float]
        self._logged = set()  # type: typing.Set[str]

    def deadlocked(self, pids: typing.Sequence[int], *, now: float) -> typing.Dict[int, str]:
        """Return the wait of each child process, in words, if all of them are deadlocked; otherwise return an empty dict."""
        if self._since is None:
            self._since = self._next = now
        if now < self._next or self._calls is None:
            return {}
        self._next = now + SNAPSHOT_EVERY_S
        found = {}
        for pid in pids:
            reason = self._judge(pid, self._calls)
            if reason:
                self._still_since.pop(pid, None)
                self._log(pid, reason, waited_s=now - self._since)
            elif now - self._still_since.setdefault(pid, now) >= STILL_S:
                found[pid] = diagnosis.describe(self._worker_of(pid), self._snapshots[pid])
        return found if len(found) == len(pids) else {}

    def _judge(self, pid: int, calls: diagnosis.Calls) -> str:
        """Return why this process may still work; empty if it is deadlocked."""
        before = self._snapshots.pop(pid, None)
        try:
            worker = self._worker_of(pid)
            now = self._snapshot_at_rest(worker)
        except procfs.Unreadable as error:
            return "its state cannot be read: {}".format(error)
        self._snapshots[pid] = now
        return diagnosis.doubt(worker, before, now, calls) if before is not None else "it was looked at for the first time"

    def _snapshot_at_rest(self, worker: int) -> diagnosis.Snapshot:
        """Take a snapshot while torch's own threads are asleep. They wake up about a hundred times a second, for a moment each."""
        for _ in range(MOST_ATTEMPTS):
            taken = self._take(worker)
            if diagnosis.is_at_rest(taken):
                break
            time.sleep(ATTEMPT_S)
        return taken

    def _log(self, pid: int, reason: str, *, waited_s: float) -> None:
        if waited_s < SILENT_S or reason in self._logged or len(self._logged) >= MOST_REASONS:
            return
        self._logged.add(reason)
        log.warning("all other ranks ended with 0 %.0f s ago, worker process %s has not: %s; it is left alone", waited_s, pid, reason)
