"""Note SIGTERM, so that a worker ends between two steps and the state can be saved.

All workers of a job may get SIGTERM at once, for example if the job is suspended. Then nobody else has the state.

Python runs a handler only when the main thread comes back from a collective. So a thread hears of SIGTERM too, and ends the process if the
step does not end in time.
"""

import os
import signal
import socket
import threading
import types
import typing

T = typing.TypeVar("T")

STATUS = 128 + signal.SIGTERM


class _BrokenOff(SystemExit):
    """SIGTERM came while the main thread waited."""


class Sigterm:
    """The handler of SIGTERM while a loop runs. A handler that the program has installed stays."""

    def __init__(self) -> None:
        self.has_come = False
        self._is_waiting = False
        self._is_taken = False
        self._is_ending = threading.Event()
        """Whether the main thread heeds SIGTERM, or the loop has ended."""

    def take(self, patience_s: "typing.Callable[[], float]") -> None:
        """Replace the default handler. patience_s: returns the seconds that the present step may still take after SIGTERM."""
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
            return
        self._is_taken = True
        os.register_at_fork(after_in_child=self.give_back)  # a child, such as a loader process, ends by SIGTERM as before
        # The reader stays open: Python complains of each signal that it cannot write.
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        if before != -1:  # the program listens itself
            signal.set_wakeup_fd(before)
            self._writer.close()
        threading.Thread(target=self._guard, args=(self._reader, patience_s), name="elastic-sigterm", daemon=True).start()
        signal.signal(signal.SIGTERM, self._on_sigterm)

    def give_back(self) -> None:
        """Restore the default handler."""
        if not self._is_taken:
            return
        self._is_taken = False
        self._is_ending.set()
        if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self._writer.fileno() != -1:
            signal.set_wakeup_fd(-1)
            self._writer.close()  # which ends the thread, if it still reads

    def heed(self) -> None:
        """Note that the main thread ends the process itself, however long it takes to save."""
        self._is_ending.set()

    def unless_it_comes(self, wait: "typing.Callable[[], typing.Optional[T]]") -> "typing.Optional[T]":
        """Call a function that may wait for long, and return its result; break it off and return None if SIGTERM comes."""
        self._is_waiting = True
        try:
            return None if self.has_come else wait()
        except _BrokenOff:
            return None
        finally:
            self._is_waiting = False

    def _on_sigterm(self, number: int, frame: typing.Optional[types.FrameType]) -> None:
        self.has_come = True
        if self._is_waiting:
            self._is_waiting = False
            raise _BrokenOff(STATUS)

    def _guard(self, reader: socket.socket, patience_s: "typing.Callable[[], float]") -> None:
        while True:
            numbers = reader.recv(64)
            if not numbers:
                return
            if signal.SIGTERM in numbers:
                break
        if not self._is_ending.wait(patience_s()):
            words = b"SIGTERM came, and the step did not end in time. This process ends; workers that go on have the state."
            os.write(2, b"elastic_worker: " + words + b"\n")
            os._exit(STATUS)
