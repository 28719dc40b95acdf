"""Count failed decisions about one job, and say what follows: try again, start over, or leave the job undecided for a while.

A decision fails only because of a bug in the engine. This module uses only numbers and times, and neither the job nor its connections.
"""

from enum import Enum

RETRY_S = 1.0
"""Seconds from a failed decision to the next one."""
IN_A_ROW = 3
"""The job's state is dropped after this many failed decisions in a row."""
OFTEN_S = 600.0
"""A second drop within this time shows that a fresh state does not help."""
UNDECIDED_S = 60.0
"""How long the job is left undecided then."""


class Remedy(Enum):
    """The hub's action after a failed decision."""

    RETRY = "retry"
    START_OVER = "start over"
    WAIT = "wait"


class Undecided(Exception):
    """The engine did not decide about a job. Nothing of the message was applied; its sender sends it again."""


class FaultLadder:
    """The failed decisions of one job."""

    __slots__ = ("_dropped_at", "_in_a_row", "reason", "undecided_until")

    def __init__(self) -> None:
        self._in_a_row = 0
        self._dropped_at: float | None = None
        self.undecided_until: float | None = None
        """The end of the time without decisions; None while decisions are made."""
        self.reason = ""
        """The fault in words, for the controller; empty again once the job healed."""

    def failed(self, error: BaseException, *, now: float) -> Remedy:
        """Count one more failed decision, and return what follows from it."""
        self._in_a_row += 1
        if self._in_a_row < IN_A_ROW:
            return Remedy.RETRY
        self._in_a_row = 0
        is_often = self._dropped_at is not None and now < self._dropped_at + OFTEN_S
        self._dropped_at = now
        if not is_often:
            return Remedy.START_OVER
        self.undecided_until = now + UNDECIDED_S
        self.reason = (
            f"the rendezvous server cannot decide about this job because of a bug ({type(error).__name__}); it tries again every "
            f"{UNDECIDED_S:g} s, and workers that train go on"
        )
        return Remedy.WAIT

    def succeeded(self, *, has_word: bool) -> bool:
        """Note a decision that succeeded. Return whether that heals the job, of which the controller must hear.

        `has_word`: whether the controller's expectation is known. Without it the engine has decided on nothing yet.
        """
        self._in_a_row = 0
        is_healed = bool(self.reason) and has_word
        if is_healed:
            self.reason = ""
        return is_healed

    def is_waiting(self, *, now: float) -> bool:
        """Return whether the job must still be left undecided. Once it returned False, decisions are made again."""
        if self.undecided_until is not None and now < self.undecided_until:
            return True
        self.undecided_until = None
        return False
