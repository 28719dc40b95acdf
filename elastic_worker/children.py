"""The worker processes of this agent: how each ended, learnt beside torch, which reaps them; and the end of those that do not stop.

torch tells a rendezvous handler neither that a worker ended nor how. The kernel does: a process file descriptor becomes readable at a
child's end, and waitid with WNOWAIT reads its status without taking it from torch.
"""

import os
import select
import signal
import threading
import time
import typing

LOOK_S = 0.02
FINISH_LOOKS = 250
CALM_S = 0.25
NO_DESCRIPTOR = -1

Ended = typing.Callable[[int, typing.Optional[int]], None]


def children_of_this_process() -> typing.Set[int]:
    """The pids of our direct children."""
    pids = set()  # type: typing.Set[int]
    try:
        for task in os.listdir("/proc/self/task"):
            with open("/proc/self/task/{}/children".format(task)) as file:
                pids.update(int(word) for word in file.read().split())
    except (OSError, ValueError):
        return pids
    return pids


def end_of(pid: int) -> typing.Tuple[bool, typing.Optional[int]]:
    """Whether a child has ended, and how, as a shell says it; None where somebody else has read its status first."""
    try:
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return True, None
    if result is None:
        return False, None
    return True, result.si_status if result.si_code == os.CLD_EXITED else 128 + result.si_status


class Watch:
    """Watches the children that appear after `begin`; calls `on_start` once, and `on_end` for each end, from its own thread."""

    def __init__(self, *, on_start: typing.Callable[[], None], on_end: Ended) -> None:
        self._on_start = on_start
        self._on_end = on_end
        self._before = children_of_this_process()
        self._running = {}  # type: typing.Dict[int, int]
        self._seen = set()  # type: typing.Set[int]
        self._finished = set()  # type: typing.Set[int]
        self._ended_well = 0
        self._lock = threading.Lock()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="elastic-children", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Stop watching; the world of these children is over."""
        with self._lock:
            self._is_over = True

    def running(self) -> typing.List[int]:
        """The children that have not ended yet."""
        with self._lock:
            return list(self._running)

    @property
    def ended_well(self) -> int:
        """How many children have ended with 0."""
        with self._lock:
            return self._ended_well

    def finish(self, pid: int) -> bool:
        """End a child so that it counts as ended with 0, for us and for torch; False where it is no longer ours, or does not go.

        Only the thread that waits for torch's children may call this: subprocess takes a child whose status somebody else has read, as
        here, for one that ended with 0, and nobody may read it between its end and our reading.
        """
        with self._lock:
            if pid not in self._running or end_of(pid) != (False, None):
                return False
            self._finished.add(pid)
            os.kill(pid, signal.SIGKILL)
        for _ in range(FINISH_LOOKS):
            if os.waitpid(pid, os.WNOHANG)[0]:
                return True
            time.sleep(LOOK_S)
        with self._lock:
            self._finished.discard(pid)
        return False

    def kill(self, pids: typing.Iterable[int]) -> typing.List[int]:
        """End these children, if they are still the ones that we watch, and their process groups if they lead one."""
        killed = []
        with self._lock:
            for pid in pids:
                if pid not in self._running:
                    continue
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                killed.append(pid)
        return killed

    def _run(self) -> None:
        poller = select.poll()
        try:
            while not self._is_over:
                self._look_for_new(poller)
                # Without process descriptors the only way to see an end before torch reaps it is to look often.
                is_blind = NO_DESCRIPTOR in self._running.values()
                poller.poll((CALM_S if self._seen and not is_blind else LOOK_S) * 1000)
                for pid in self.running():
                    has_ended, status = end_of(pid)
                    if has_ended:
                        self._take_end(poller, pid, status)
        finally:
            with self._lock:
                for descriptor in self._running.values():
                    _close(descriptor)
                self._running.clear()

    def _look_for_new(self, poller: "select.poll") -> None:
        for pid in children_of_this_process() - self._before - self._seen:
            try:
                descriptor = os.pidfd_open(pid)
                poller.register(descriptor, select.POLLIN)
            except ProcessLookupError:
                continue
            except (OSError, AttributeError):
                descriptor = NO_DESCRIPTOR  # an old kernel, or a container that forbids it
            is_first = not self._seen
            self._seen.add(pid)
            with self._lock:
                self._running[pid] = descriptor
            if is_first:
                self._on_start()

    def _take_end(self, poller: "select.poll", pid: int, status: typing.Optional[int]) -> None:
        with self._lock:
            descriptor = self._running.pop(pid)
            status = 0 if pid in self._finished else status
            self._ended_well += status == 0
        if descriptor != NO_DESCRIPTOR:
            poller.unregister(descriptor)
        _close(descriptor)
        if not self._is_over:
            self._on_end(pid, status)


def _close(descriptor: int) -> None:
    if descriptor != NO_DESCRIPTOR:
        os.close(descriptor)
