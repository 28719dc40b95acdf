"""Look at this agent's workers while the rendezvous asks for it, and tell it what each of them does.

A thread of its own looks, because a process may take its time to show its stacks. Nothing waits for that thread.
"""

import logging
import sys
import threading
import time
import typing

from elastic_worker.agent.presence import LOOKING_MINOR
from elastic_worker.agent.view import ChangingRendezvous
from elastic_worker.agent.workers import LocalWorkers, RankedWorker
from elastic_worker.looking.source_lines import SourceLines
from elastic_worker.looking.watching import LOOK_S, Look, Watched, text_of, title_of

log = logging.getLogger(__name__)

WRITE = "write"
ASKED = ("look", WRITE)
"""Values of View.watch (rendezvous.engine.messages.doing)."""
MOST_TOLD = 32
LONGEST_TEXT = 64 * 1024
"""Characters of one worker's stacks in the log of the pod."""
ENDED = {"kind": "unknown", "does": "has ended"}


class Looks:
    """The looks of one agent. They live as long as the agent."""

    def __init__(self, presence: ChangingRendezvous, *, look_s: float = LOOK_S) -> None:
        """Prepare the thread. look_s: seconds between two looks."""
        self._presence = presence
        self._look_s = look_s
        self._lines = SourceLines()
        self._workers = None  # type: typing.Optional[LocalWorkers]
        self._watched = {}  # type: typing.Dict[int, Watched]
        self._has_written = False
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="elastic-looks", daemon=True)

    # --- for the agent's thread

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def threads(self) -> typing.FrozenSet[int]:
        """Return the ids of threads whose child processes are no workers: looking may run a program."""
        return frozenset((self._thread.native_id,)) if self._thread.native_id is not None else frozenset()

    def begin(self, workers: LocalWorkers) -> None:
        """Look at these workers from now on."""
        with self._presence.changed:
            self._workers = workers
            self._presence.changed.notify_all()

    def end(self) -> None:
        """Forget the workers, because they have ended."""
        with self._presence.changed:
            self._workers = None

    def close(self) -> None:
        """Let the thread end."""
        with self._presence.changed:
            self._is_over = True
            self._presence.changed.notify_all()

    # --- the thread

    def _run(self) -> None:
        next_at = 0.0
        while True:
            with self._presence.changed:
                if not self._is_asked():
                    self._watched, self._has_written, next_at = {}, False, 0.0
                    self._presence.changed.wait_for(lambda: self._is_over or self._is_asked())
                self._presence.changed.wait_for(self._is_urgent, max(0.0, next_at - time.monotonic()))
                if self._is_over:
                    return
                workers, view = self._workers, self._presence.view
            if not self._is_asked() or workers is None:
                continue
            next_at = time.monotonic() + self._look_s
            try:
                self._look(workers.ranked()[:MOST_TOLD], generation=view.generation, size=view.size, is_written=self._is_to_write())
            except Exception:
                log.exception("the look at the workers failed; the next one follows in %.0f s", self._look_s)

    def _is_asked(self) -> bool:
        view, workers = self._presence.view, self._workers
        return view.watch in ASKED and workers is not None and workers.generation == view.generation

    def _is_to_write(self) -> bool:
        return self._presence.view.watch == WRITE and not self._has_written

    def _is_urgent(self) -> bool:
        return self._is_over or not self._is_asked() or self._is_to_write()

    def _look(self, workers: typing.List[RankedWorker], *, generation: int, size: int, is_written: bool) -> None:
        """Look at each worker, and send what they do, by local rank."""
        doings = [dict(ENDED) for _ in range(max((worker.local_rank + 1 for worker in workers), default=0))][:MOST_TOLD]
        known = self._watched
        self._watched = {pid: known.get(pid) or Watched(pid, look_s=self._look_s, lines=self._lines) for _, _, pid in workers}
        for worker in workers:
            look = self._watched[worker.pid].look(size=size * len(workers), is_complete=is_written)
            if worker.local_rank < len(doings):
                doings[worker.local_rank] = look.fields
            if is_written:
                _write(look, worker)
        self._has_written = self._has_written or is_written
        if self._presence.view.watch != WRITE:
            self._has_written = False
        if doings and self._presence.minor >= LOOKING_MINOR:
            self._presence.send({"t": "doings", "generation": generation, "workers": doings})


def _write(look: Look, worker: RankedWorker) -> None:
    """Write a worker's stacks to the log of the pod."""
    try:
        print(text_of(look, "elastic_worker: " + title_of(look, worker.rank), LONGEST_TEXT), file=sys.stderr, flush=True)
    except OSError as error:
        log.warning("the stacks of rank %s could not be written: %s", worker.rank, error)
