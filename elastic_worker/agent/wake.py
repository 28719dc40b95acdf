"""Wake a thread that waits for descriptors, through a pipe, from signals and other threads."""

import contextlib
import select
import socket
import typing


class Wake:
    """`fileno` becomes readable when somebody wakes the thread."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)

    @property
    def signal_fd(self) -> int:
        """The descriptor for signal.set_wakeup_fd."""
        return self._far.fileno()

    def fileno(self) -> int:
        return self._near.fileno()

    def up(self) -> None:
        """Wake the thread."""
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes the thread too
            self._far.send(b"\0")

    def signals(self) -> typing.List[int]:
        """Return the signals that have come since the last call."""
        try:
            return [number for number in self._near.recv(4096) if number]
        except BlockingIOError:
            return []

    def close(self) -> None:
        self._near.close()
        self._far.close()


def wait_readable(seconds: float, *descriptors: int) -> typing.Set[int]:
    """Wait, and return the readable descriptors. This uses poll, because select takes no descriptors above 1023."""
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poller.poll(max(0.0, seconds) * 1000)}
