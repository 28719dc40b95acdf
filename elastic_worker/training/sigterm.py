"""Notes SIGTERM, so that a worker ends between two steps and the state can be saved.

All workers of a job may get SIGTERM at once, for example if the job is suspended. Then nobody else has the state.
"""

import contextlib
import os
import signal
import threading
import types
import typing

STATUS = 128 + signal.SIGTERM


class Sigterm:
    """The handler of SIGTERM while a loop runs. A handler that the program has installed stays."""

    def __init__(self) -> None:
        self.has_come = False
        self._is_waiting = False
        self._is_taken = False
        self._pid = 0

    def take(self) -> None:
        """Replace the default handler."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._pid, self._is_taken = os.getpid(), True
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def give_back(self) -> None:
        """Restore the default handler."""
        if self._is_taken and signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._is_taken = False

    @contextlib.contextmanager
    def ending(self) -> "typing.Iterator[None]":
        """Let SIGTERM raise SystemExit meanwhile: a worker that waits for the next world is not in any, and may never be again."""
        self._is_waiting = True
        try:
            if self.has_come:
                raise SystemExit(STATUS)
            yield
        finally:
            self._is_waiting = False

    def _on_sigterm(self, number: int, frame: typing.Optional[types.FrameType]) -> None:
        if os.getpid() != self._pid:  # a forked child, such as a loader process
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        self.has_come = True
        if self._is_waiting:
            raise SystemExit(STATUS)
