"""Collect the steps that this agent's workers report, and decide when this member writes them for the job.

Rank 0 writes them. Another member writes only if rank 0 does not. So a step costs the job one write, and each member one event, however
many workers report it.
"""

import threading
import typing

from elastic_worker.etcd.group import Rules
from elastic_worker.etcd.records import Progress, Records

REPORT_S = 5.0
"""Seconds between two writes; at most a quarter of the time after which training counts as hanging."""
TURN_S = 1.0
"""Seconds that rank 0 has for a write before any member may write."""
RETRY_S = 1.0
REFUSED_S = 30.0


class Due(typing.NamedTuple):
    """The progress to write now, or the time to look again. Both are None if nothing waits."""

    progress: typing.Optional[Progress] = None
    look_again_at: typing.Optional[float] = None


class Steps:
    """The newest step. Any thread may note one, and the presence's thread asks what is due."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._generation = self._step = 0
        self._began_at = 0.0
        self._seen = (0, 0.0)
        self._tried_at = float("-inf")

    def note(self, generation: int, step: int, now: float) -> bool:
        """Note a step that a worker reported. Return whether it is the first step of its world."""
        with self._lock:
            if generation < self._generation:
                return False
            is_first = generation > self._generation
            if is_first:
                self._generation, self._step, self._began_at = generation, step, now
            self._step = max(step, self._step)
            return is_first

    def due(self, records: Records, *, rank: int, generation: int, rules: Rules, now: float) -> Due:
        """Return the progress that the member with this rank in this world has to write."""
        with self._lock:
            own, step, began_at = self._generation, self._step, self._began_at
        if self._seen[0] != records.progress_written:
            self._seen = (records.progress_written, now)
        known = records.progress
        is_first = known is None or known.generation != generation
        if own != generation or not own or (known is not None and not is_first and step <= known.in_world):
            return Due()
        at = (began_at if is_first else self._seen[1] + _gap_s(rules)) + (TURN_S if rank else 0.0)
        at = max(at, self._tried_at + RETRY_S)
        if now < at:
            return Due(look_again_at=at)
        self._tried_at = now
        return Due(Progress(max(step, known.step if known is not None else 0), generation, step))

    def put_off(self, now: float) -> None:
        """Wait before the next attempt, because etcd refused the write."""
        self._tried_at = now + REFUSED_S - RETRY_S


def _gap_s(rules: Rules) -> float:
    return REPORT_S if rules.hang_s is None else min(REPORT_S, rules.hang_s / 4)
