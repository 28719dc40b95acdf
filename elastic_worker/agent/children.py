"""Watch the worker processes of this agent: report how each ended, and kill those that do not stop.

torch does not report the end of a worker to a rendezvous handler. The kernel does: a process file descriptor becomes readable when the
child ends, and waitid with WNOWAIT reads the status without reaping the child, which stays torch's. On a busy machine torch may reap it
first; then torch's own Popen object has the status.
"""

import gc
import os
import select
import signal
import subprocess
import threading
import time
import typing

POLL_S = 0.02
FINISH_POLLS = 250
REAPED_POLLS = 50
SLOW_POLL_S = 0.25
NO_DESCRIPTOR = -1

Ended = typing.Callable[[int, typing.Optional[int]], None]


def children_of_this_process(except_of: typing.Collection[int] = ()) -> typing.Set[int]:
    """Return the pids of our direct children, except those that the threads `except_of` have started."""
    pids = set()  # type: typing.Set[int]
    try:
        for task in os.listdir("/proc/self/task"):
            if int(task) in except_of:
                continue
            with open("/proc/self/task/{}/children".format(task)) as file:
                pids.update(int(word) for word in file.read().split())
    except (OSError, ValueError):
        return pids
    return pids


def end_of(pid: int) -> typing.Tuple[bool, typing.Optional[int]]:
    """Return whether a child has ended, and its status as a shell reports it.

    The status is None if the child was reaped already and no Popen object has it.
    """
    try:
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return True, status_of_reaped(pid)
    if result is None:
        return False, None
    return True, result.si_status if result.si_code == os.CLD_EXITED else 128 + result.si_status


def status_of_reaped(pid: int) -> typing.Optional[int]:
    """Return the status that a Popen object of this process has of a child.

    The object may have reaped the child a moment before it notes the status.
    """
    owners = [found for found in gc.get_objects() if issubclass(type(found), subprocess.Popen) and getattr(found, "pid", 0) == pid]
    for _ in range(REAPED_POLLS if owners else 0):
        for owner in owners:
            if owner.returncode is not None:
                return int(owner.returncode if owner.returncode >= 0 else 128 - owner.returncode)
        time.sleep(POLL_S)
    return None


class ChildWatch:
    """Watches children that appear after its creation.

    Its thread calls `on_start` once, `on_look` with those that run each time it looks, and `on_end` for each child that ends.
    """

    def __init__(
        self,
        *,
        on_start: typing.Callable[[], None],
        on_end: Ended,
        on_look: typing.Callable[[typing.List[int]], None] = lambda pids: None,
        except_of: typing.Collection[int] = (),
    ) -> None:
        """Prepare the watch. except_of: ids of threads whose child processes are not watched."""
        self._except_of = except_of
        self._on_start = on_start
        self._on_look = on_look
        self._on_end = on_end
        self._before = children_of_this_process()
        self._running = {}  # type: typing.Dict[int, int]
        self._seen = set()  # type: typing.Set[int]
        self._finished = set()  # type: typing.Set[int]
        self._succeeded = 0
        self._lock = threading.Lock()
        self._unreported = set()  # type: typing.Set[int]
        self._reported = threading.Condition(self._lock)
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="elastic-children", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Stop watching, because the world of these children has ended."""
        with self._lock:
            self._is_over = True

    def wait_for_reports(self, timeout_s: float) -> None:
        """Wait until the end of each child has been reported."""
        with self._reported:
            self._reported.wait_for(lambda: not self._unreported, timeout_s)

    def running(self) -> typing.List[int]:
        """Return the children that have not ended yet, as far as the thread has seen them."""
        with self._lock:
            return list(self._running)

    def present(self) -> typing.Set[int]:
        """Return the children that exist now, including those that the thread has not seen yet."""
        return children_of_this_process(self._except_of) - self._before

    @property
    def succeeded(self) -> int:
        """Return how many children have ended with 0."""
        with self._lock:
            return self._succeeded

    def finish(self, pid: int) -> bool:
        """Kill a child and let it count as ended with 0, here and in torch. Return False if it has ended already, or does not end.

        subprocess assumes status 0 for a child that was reaped elsewhere, as it is here. Only the thread in which torch polls its children
        may call this, so that torch cannot reap the child first.
        """
        with self._lock:
            if pid not in self._running or end_of(pid) != (False, None):
                return False
            self._finished.add(pid)
            os.kill(pid, signal.SIGKILL)
        for _ in range(FINISH_POLLS):
            if os.waitpid(pid, os.WNOHANG)[0]:
                return True
            time.sleep(POLL_S)
        with self._lock:
            self._finished.discard(pid)
        return False

    def kill(self, pids: typing.Iterable[int]) -> typing.List[int]:
        """Kill those of these children that still run, and return them."""
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
                self._on_look(self.running())
                # Without process descriptors, only frequent polling sees an end before torch reaps the child.
                must_poll = NO_DESCRIPTOR in self._running.values()
                poller.poll((SLOW_POLL_S if self._seen and not must_poll else POLL_S) * 1000)
                for pid in self.running():
                    has_ended, status = end_of(pid)
                    if has_ended:
                        self._handle_end(poller, pid, status)
        finally:
            with self._reported:
                for descriptor in self._running.values():
                    _close(descriptor)
                self._running.clear()
                self._unreported.clear()
                self._reported.notify_all()

    def _look_for_new(self, poller: "select.poll") -> None:
        for pid in self.present() - self._seen:
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
                self._unreported.add(pid)
            if is_first:
                self._on_start()

    def _handle_end(self, poller: "select.poll", pid: int, status: typing.Optional[int]) -> None:
        with self._lock:
            descriptor = self._running.pop(pid)
            status = 0 if pid in self._finished else status
            self._succeeded += status == 0
        if descriptor != NO_DESCRIPTOR:
            poller.unregister(descriptor)
        _close(descriptor)
        if not self._is_over:
            self._on_end(pid, status)
        with self._reported:
            self._unreported.discard(pid)
            self._reported.notify_all()


def _close(descriptor: int) -> None:
    if descriptor != NO_DESCRIPTOR:
        os.close(descriptor)
