"""Decide when a silent wait says what it waits for: after seconds, again when the reason changes, and then at growing intervals."""

from __future__ import annotations

QUIET_S = 3.0
AT_MOST_S = 30.0


class Silence:
    def __init__(self, now: float) -> None:
        self._heard, self._said_at, self._said, self._pause_s = now, now, "", QUIET_S

    def hear(self, now: float) -> None:
        """Note that something else was printed."""
        self._heard = now

    def is_quiet(self, now: float) -> bool:
        """Return whether the wait has been silent for long enough to say something."""
        return now - self._heard >= QUIET_S

    def is_to_say(self, words: str, now: float) -> bool:
        """Return whether to say these words now. If so, the caller says them."""
        if not words or not self.is_quiet(now):
            return False
        if words == self._said:
            if now - self._said_at < self._pause_s:
                return False
            self._pause_s = min(2 * self._pause_s, AT_MOST_S)
        else:
            self._pause_s = QUIET_S
        self._said, self._said_at = words, now
        return True
