"""Watch this agent's workers of one generation: report how they ended and why, and kill those that do not stop."""

import contextlib
import logging
import os
import signal
import threading
import time
import typing

from elastic_worker.agent import children, device_errors, first_failure
from elastic_worker.agent.first_failure import End
from elastic_worker.agent.last_words import Failure, exception_line
from elastic_worker.agent.memory import OF_GPU, MemoryKills
from elastic_worker.agent.view import Rendezvous, View
from elastic_worker.agent.worker_stderr import WorkerStderr
from elastic_worker.gloo_deadlock import procfs
from elastic_worker.gloo_deadlock.last_workers import LastWorkers
from elastic_worker.warm.launch import FOLDER

log = logging.getLogger(__name__)

BY_LIBRARY = (3, 4)
"""Statuses with which the training library ends a worker (elastic_worker.training.control)."""

SIGTERM_DELAY_S = 0.3
"""How long the report of a worker that ended by SIGTERM is delayed. If the whole pod ends, the agent gets SIGTERM within this time."""
PEERS_WAIT_S = 0.3
"""How long to wait for the end of other workers if one seems to have fallen because of them."""
REPORT_WAIT_S = 1.0
"""How long to wait until ChildWatch reports an end that torch has seen already."""
LAST_REPORT_WAIT_S = 10.0
"""The same wait at the end of torchrun. A report that is not sent by then is lost: the job counts as unfinished until its pod has ended."""


class RankedWorker(typing.NamedTuple):
    """A worker that runs. pid: of the agent's child, which is the worker or its stub."""

    local_rank: int
    rank: int
    pid: int


class LocalWorkers:
    """The workers of one generation, or of several worlds that they enter in process.

    `is_terminating` is set once the whole pod is ending. `failure`: how the first of them failed. Generation 0: they run in a provisional
    world.
    """

    def __init__(
        self,
        presence: Rendezvous,
        *,
        generation: int,
        is_terminating: threading.Event,
        stderr: typing.Optional[WorkerStderr] = None,
        rank: int = 0,
        except_of: typing.Collection[int] = (),
    ) -> None:
        """Prepare the watch. rank: this agent's, with which the workers begin. except_of: threads whose child processes are no workers."""
        self._first_rank, self._rank_offset = rank, 0
        self.failure = None  # type: typing.Optional[Failure]
        self._stderr = stderr if stderr is not None else WorkerStderr()
        self._presence = presence
        self._is_terminating = is_terminating
        self.generation = generation
        self.is_rejoining = False
        self.killed_late = 0
        """How many of them did not stop within their grace."""
        self.has_finished = False
        self._has_failed = threading.Event()
        self._is_over = False
        self._killed = {}  # type: typing.Dict[int, str]
        self._at_door = set()  # type: typing.Set[int]
        self._kill_timer = None  # type: typing.Optional[threading.Timer]
        self._watch = children.ChildWatch(on_start=self._on_start, on_end=self._on_end, on_look=self._stderr.note, except_of=except_of)
        self._last_workers = LastWorkers()
        self._memory = MemoryKills()

    def begin(self) -> None:
        self._watch.begin()

    def move(self, generation: int, *, rank: int, local_size: int) -> None:
        """Note that these workers have entered another world in process, in which this agent has another rank."""
        self.generation = generation
        self._rank_offset = (rank - self._first_rank) * local_size

    def child_of(self, pid: int) -> int:
        """Return the child through which this worker process was started: the process itself, or its stub. 0 for other processes."""
        for child in self._watch.present():
            if child == pid:
                return child
            with contextlib.suppress(procfs.Unreadable):
                if procfs.worker_of(child) == pid:
                    return child
        return 0

    def ranked(self) -> typing.List[RankedWorker]:
        """Return the workers that run, by local rank, with their present ranks."""
        found = []
        for child in self._watch.present():
            try:
                variables = procfs.environment(child)
                rank = int(variables["RANK"]) + self._rank_offset
                found.append(RankedWorker(int(variables["LOCAL_RANK"]), rank, child))
            except (procfs.Unreadable, KeyError, ValueError):  # it has ended, or does not run its program yet
                continue
        return sorted(found)

    def use_library(self, child: int) -> None:
        """Note that this child's worker has said hello at the door, so that some of its statuses are the library's."""
        self._at_door.add(child)

    def kill(self, pid: int, words: str) -> None:
        """Kill a worker process. The report of its failure has these words."""
        child = self.child_of(pid)
        if child and self._is_spontaneous():
            self._killed[child] = words
            log.error("worker process %s is killed: %s", pid, words)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def can_replace(self, status: int) -> bool:
        """Return whether a worker that ended with this status failed by itself, while nobody stops the workers."""
        return self._is_spontaneous() and status not in (0, *BY_LIBRARY)

    def note_replaced(self, child: int, status: int) -> None:
        """Report a worker whose stub starts another one, so that torchrun sees no end. It counts like any failure."""
        now = time.monotonic()
        self._presence.report_state("failed", at=now, replaced=True, **self._report(self._end(child, status, now)))
        self._killed.pop(child, None)

    def rejoin(self, grace_s: float) -> None:
        """Note that the world changes: torch stops the workers now. Kill those that still run after the grace."""
        self.is_rejoining = True
        pids = self._watch.running()
        self._kill_timer = threading.Timer(grace_s, self._kill, (pids, grace_s))
        self._kill_timer.daemon = True
        self._kill_timer.start()

    def finish_deadlocked(self, view: View) -> None:
        """Kill deadlocked workers once all other ranks of the world have ended with 0; they count as ended with 0 too.

        Only the thread in which torch polls its workers may call this: see `ChildWatch.finish`.
        """
        pids = self._watch.running()
        if view.generation != self.generation or not pids or not self._is_spontaneous():
            return
        if not (view.peers_finished if view.size > 1 else self._watch.succeeded):
            return
        for pid, wait in self._last_workers.deadlocked(pids, now=time.monotonic()).items():
            is_ended = self._watch.finish(pid)
            outcome = "ended it; it counts as ended with 0" if is_ended else "could not end it"
            log.error("worker process %s hangs in torch's known deadlock at the end of a gloo job; this agent %s: %s", pid, outcome, wait)

    def close(self) -> None:
        """Make sure that the server learns of a failed worker: torch came back to the barrier, and nobody had asked it to."""
        if not self.is_rejoining and not self._has_failed.wait(REPORT_WAIT_S):
            self._presence.report_state("failed", generation=self.generation, detail="torchrun restarts its workers")
        self.end()

    def end_with_torchrun(self) -> None:
        """Stop watching once the ends of the workers are reported. Torchrun ends, because it saw its workers end."""
        if self._is_spontaneous():
            self._watch.wait_for_reports(LAST_REPORT_WAIT_S)
        self.end()

    def end(self) -> None:
        """Stop watching, because these workers no longer matter."""
        self._is_over = True
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self._watch.end()

    def _on_start(self) -> None:
        if self.generation:
            is_warm = {"warm": True} if FOLDER in os.environ else {}
            self._presence.report_state("started", generation=self.generation, **is_warm)

    def _on_end(self, pid: int, status: typing.Optional[int]) -> None:
        if status == 0:
            if not self._watch.running() and self._is_spontaneous():
                self.has_finished = True
                self._presence.report_state("finished", generation=self.generation)
            return
        seen_at = time.monotonic()
        if status == first_failure.SIGTERM:
            self._is_terminating.wait(SIGTERM_DELAY_S)
        if not self._is_spontaneous():
            return
        first = self._first_of(pid, status, seen_at)
        if not self._is_spontaneous():
            return
        self._presence.report_state("failed", at=first.began_at, **self._report(first))
        self._has_failed.set()

    def _report(self, first: End) -> typing.Dict[str, typing.Any]:
        """Return the fields of the report of a failure."""
        fields = {"generation": self.generation, "detail": "worker process {}".format(first.pid)}  # type: typing.Dict[str, typing.Any]
        if first.status is not None:
            fields["status"] = first.status
        memory = "" if first.pid in self._killed else self._memory.explain(first.status, first.error)
        if memory or OF_GPU.search(first.error):
            fields["out_of_memory"] = True
        if memory:
            fields["error"] = memory
        source = self._stderr.of(first.pid)
        if source is not None:
            self.failure = Failure(source.rank + self._rank_offset, source.tail(), memory or device_errors.explain(first.error))
            fields.update(rank=self.failure.rank, error=self.failure.line)
        if first.pid in self._killed:
            fields["error"] = self._killed[first.pid]
        if first.pid in self._at_door and first.status in BY_LIBRARY:
            fields["by_library"] = True
        return fields

    def _first_of(self, pid: int, status: typing.Optional[int], seen_at: float) -> End:
        """Return the first failure of this worker and those that end with it."""
        deadline = seen_at + PEERS_WAIT_S
        ends = {pid: self._end(pid, status, seen_at)}
        while True:
            for other in self._watch.running():
                has_ended, of_other = children.end_of(other) if other not in ends else (False, None)
                if has_ended and of_other != 0:
                    ends[other] = self._end(other, of_other, time.monotonic())
            first = first_failure.first(ends.values())
            is_waiting = first.place and not set(self._watch.running()) <= set(ends)
            if not is_waiting or time.monotonic() > deadline:
                return first
            time.sleep(children.POLL_S)

    def _end(self, pid: int, status: typing.Optional[int], seen_at: float) -> End:
        if pid in self._killed:
            return End(pid, status, seen_at, error=self._killed[pid])
        source = self._stderr.of(pid)
        if source is None:
            return End(pid, status, seen_at)
        return End(pid, status, seen_at, error=exception_line(source.tail()), error_at=source.error_at)

    def _is_spontaneous(self) -> bool:
        return not (self._is_over or self.is_rejoining or self._is_terminating.is_set() or self._has_failed.is_set())

    def _kill(self, pids: typing.List[int], grace_s: float) -> None:
        killed = self._watch.kill(pids)
        self.killed_late = len(killed)
        if killed:
            log.warning("workers %s did not stop within %.1f s and were killed", killed, grace_s)
