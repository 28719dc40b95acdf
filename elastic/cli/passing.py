"""Which lines of a progress bar are shown: each is written over the one before it, many times a second."""

from __future__ import annotations

EVERY_S = 1.0


class Passing:
    """The newest of each pod, at most once a second."""

    def __init__(self) -> None:
        self._shown_at: dict[str, float] = {}

    def is_due(self, pod: str, now: float) -> bool:
        """Where it is, the caller shows it."""
        if now - self._shown_at.get(pod, -EVERY_S) < EVERY_S:
            return False
        self._shown_at[pod] = now
        return True
