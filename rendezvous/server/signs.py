"""Note when the leading controller last gave a sign, which shows that this server is not cut off.

A sign proves that its sender held the Lease a moment ago, so the sender reached the API server. The stream of a standby proves nothing: the
standby may be on the same cut-off node. A controller of release 0.4 gives no signs of its own. Its open stream counts, as it did there.
"""

import contextlib
import math
from collections.abc import Callable, Iterator


class Signs:
    """The signs of all controllers of one server."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at = math.inf
        self._term = 0
        self._listeners: set[Callable[[], float]] = set()

    @contextlib.contextmanager
    def listening(self, answered_at: Callable[[], float] | None) -> Iterator[None]:
        """Note a connected controller.

        `answered_at` says when a controller without signs of its own last acknowledged what it was sent; None for all others.
        """
        if self._at == math.inf:
            self._at = self._clock()  # from now on decisions need a sign
        if answered_at is None:
            yield
            return
        self._at = self._clock()
        self._listeners.add(answered_at)
        try:
            yield
        finally:
            self._listeners.discard(answered_at)

    def led(self, term: int) -> bool:
        """Note a sign of the controller that leads in this term. Return False if a later term is known."""
        if term < self._term:
            return False
        self._term = term
        self._at = max(self._at, self._clock())
        return True

    def last_at(self) -> float:
        """Return when the last sign came; infinity as long as no controller has ever listened."""
        answers = [min(self._clock(), answered_at()) for answered_at in self._listeners]
        self._at = max([self._at, *answers])
        return self._at
