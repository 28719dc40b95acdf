"""The steps that this agent's workers report, and when this member writes them down for the job.

Rank 0 does; another member only where rank 0 does not, so that a step costs the job one write and each member one event, however many
workers report it.
"""

import threading
import typing

from elastic_worker.etcd.group import Rules
from elastic_worker.etcd.records import Progress, Records

REPORT_S = 5.0
"""Between two writes, at most a quarter of the time after which training hangs."""
TURN_S = 1.0
"""For rank 0 to write; then it is everybody's turn."""
RETRY_S = 1.0
REFUSED_S = 30.0


class Due(typing.NamedTuple):
    """What is to be written now; or when to look again, None where nothing waits."""

    progress: typing.Optional[Progress] = None
    look_again_at: typing.Optional[float] = None


class Steps:
    """Any thread may note a step; the presence's thread asks what is due."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._generation = self._step = 0
        self._began_at = 0.0
        self._seen = (0, 0.0)
        self._tried_at = float("-inf")

    def note(self, generation: int, step: int, now: float) -> bool:
        """A worker reports a step; whether it is the first one of its world."""
        with self._lock:
            if generation < self._generation:
                return False
            is_first = generation > self._generation
            if is_first:
                self._generation, self._step, self._began_at = generation, step, now
            self._step = max(step, self._step)
            return is_first

    def due(self, records: Records, *, rank: int, generation: int, rules: Rules, now: float) -> Due:
        """What this member, of this rank in this world, writes."""
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
        """Etcd refused it: ask again later."""
        self._tried_at = now + REFUSED_S - RETRY_S


def _gap_s(rules: Rules) -> float:
    return REPORT_S if rules.hang_s is None else min(REPORT_S, rules.hang_s / 4)
