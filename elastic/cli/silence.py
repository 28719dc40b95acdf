"""Decides when a wait that is silent says what it waits for: within seconds, again when that changes, then at growing distances."""

from __future__ import annotations

QUIET_S = 3.0
AT_MOST_S = 30.0


class Silence:
    def __init__(self, now: float) -> None:
        self._heard, self._said_at, self._said, self._pause_s = now, now, "", QUIET_S

    def hear(self, now: float) -> None:
        """Something else was said."""
        self._heard = now

    def is_quiet(self, now: float) -> bool:
        """Whether it is worth asking what to say."""
        return now - self._heard >= QUIET_S

    def is_to_say(self, words: str, now: float) -> bool:
        """Where it is so, the caller says them."""
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
