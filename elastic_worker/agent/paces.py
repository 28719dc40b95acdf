"""Ask this agent's workers how long they need for their steps, and tell the rendezvous server.

A worker measures for some seconds, and sends the means of its steps. The agent adds how much the kernel throttled the container's CPUs
meanwhile. A worker's numbers are checked here, because one that JSON or the server refuses would cost the agent its connection.
"""

import math
import typing

from elastic_worker.agent.change import LocalWorker
from elastic_worker.agent.throttling import Throttling
from elastic_worker.agent.worker_messages import BrokenRule, Message, number_of

KIND = "pace"
PARTS = ("compute", "data", "outside", "wait", "send")
MOST_TOLD = 32
"""Workers of which an agent speaks (rendezvous.engine.messages.pace)."""
LONGEST_S = 86400.0
LEAST_WINDOW_S = 0.1
MOST_STEPS = 10**6
LEAST_GAP = 0.5
"""The agent reports at most twice in a window, even if workers send more."""
MOST_MILLI_CPUS = 10**6


class LocalPaces:
    """The paces of one agent's workers. Pure except for the throttling: the caller has sockets, threads and the clock."""

    def __init__(self, throttling: Throttling) -> None:
        self._throttling = throttling
        self._every_s = 0.0
        self._asked = {}  # type: typing.Dict[LocalWorker, float]
        self._row = {}  # type: typing.Dict[int, Message]
        self._told_at = float("-inf")

    def begin(self, every_s: float) -> None:
        """Ask workers to measure windows of `every_s` seconds from now on; 0 asks for none."""
        every_s = max(LEAST_WINDOW_S, min(every_s, LONGEST_S)) if every_s > 0 else 0.0
        if every_s != self._every_s:
            self._every_s, self._row = every_s, {}
            self._throttling.share()

    def keep(self, workers: typing.Iterable[LocalWorker]) -> None:
        """Forget the workers that have ended."""
        known = set(workers)
        if self._asked.keys() - known:
            self._asked = {worker: every_s for worker, every_s in self._asked.items() if worker in known}

    def lines(self, worker: LocalWorker) -> typing.List[Message]:
        """Return the question for this worker, if it has not got it yet."""
        if worker.is_done or self._asked.get(worker, 0.0) == self._every_s:
            return []
        self._asked[worker] = self._every_s
        return [{"t": KIND, "every_s": self._every_s}]

    def heard(
        self, worker: LocalWorker, message: Message, *, place: typing.Tuple[int, int], local_size: int, now: float
    ) -> typing.Optional[Message]:
        """Take the numbers of a worker. Return the message for the server once all workers have sent theirs, or one has sent them twice.

        place: generation and round of the present world.
        """
        pace = {part + "_us": round(1e6 * seconds_of(message, part + "_s")) for part in PARTS}
        pace["steps"] = min(number_of(message, "steps"), MOST_STEPS)
        if not self._every_s or number_of(message, "round") != place[1] or not pace["steps"]:
            return None
        is_again = worker.local_rank in self._row
        row = self._row
        row[worker.local_rank] = pace
        if (len(row) < local_size and not is_again) or now - self._told_at < LEAST_GAP * self._every_s:
            return None
        self._row, self._told_at = {}, now
        workers = [row.get(rank, {}) for rank in range(min(max(row) + 1, MOST_TOLD))]
        return {
            "t": "paces",
            "generation": place[0],
            "workers": workers,
            "throttled": round(100 * self._throttling.share()),
            "milli_cpus": min(round(1000 * self._throttling.limit()), MOST_MILLI_CPUS),
        }


def seconds_of(message: Message, name: str) -> float:
    """Return this number of seconds of a message."""
    found = message.get(name)
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not math.isfinite(found) or not 0 <= found <= LONGEST_S:
        raise BrokenRule("its {} is no number of seconds from 0 to {:.0f}".format(name, LONGEST_S))
    return float(found)
