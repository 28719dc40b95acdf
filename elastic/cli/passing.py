"""Decide which lines of a progress bar are shown: the bar overwrites its line many times a second."""

from __future__ import annotations

EVERY_S = 1.0


class Passing:
    """Lets through the newest line of each pod, at most once a second."""

    def __init__(self) -> None:
        self._shown_at: dict[str, float] = {}

    def is_due(self, pod: str, now: float) -> bool:
        """Return whether a line of this pod may be shown now. If so, the caller shows it."""
        if now - self._shown_at.get(pod, -EVERY_S) < EVERY_S:
            return False
        self._shown_at[pod] = now
        return True
