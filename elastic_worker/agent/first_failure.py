"""Decide which of several workers of one agent failed first. The others failed because it was gone, or because torch ended them. Pure."""

import dataclasses
import re
import signal
import typing

PEER_IS_GONE = re.compile(
    r"closed by peer|reset by peer|broken pipe|pair closure|remote process exited|ncclRemoteError|remote worker crashing"
    r"|connection was likely closed|connection refused",
    re.IGNORECASE,
)
"""Errors of gloo, NCCL and the store that another worker's end has brought about. rendezvous.engine.peer_errors has it too."""
RECENT_S = 10.0
"""The most seconds from a worker's last traceback to its end. The worker has survived an older traceback."""
SIGTERM = 128 + signal.SIGTERM


@dataclasses.dataclass(frozen=True)
class End:
    """The end of a worker. status: as in a shell, None if unknown; seen_at: when its agent saw the end; error: the line of its exception.

    error_at: when that began to be written, None without a traceback.
    """

    pid: int
    status: typing.Optional[int]
    seen_at: float
    error: str = ""
    error_at: typing.Optional[float] = None

    @property
    def began_at(self) -> float:
        """When this worker failed, as far as its agent can tell."""
        is_recent = self.error_at is not None and self.seen_at - RECENT_S <= self.error_at <= self.seen_at
        return self.error_at if self.error_at is not None and is_recent else self.seen_at

    @property
    def place(self) -> int:
        """Return 0 if the worker certainly failed by itself, and more, the more likely another worker's end was the cause."""
        if tells_of_peer(self.error):
            return 2
        if self.status not in (None, SIGTERM):
            return 0
        if self.began_at < self.seen_at:
            return 1
        return 3 if self.status is None else 4


def tells_of_peer(error: str) -> bool:
    """Return whether this line of an exception says that another worker's end was the cause."""
    return PEER_IS_GONE.search(error) is not None


def first(ends: typing.Iterable[End]) -> End:
    return min(ends, key=lambda end: (end.place, end.began_at))
