"""How often decisions about one job failed, and what follows: try again, start over, or leave the job undecided for a while.

A decision fails only because of a bug in the engine. It knows numbers and times alone, and neither the job nor its connections.
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
    """Reaction of the hub to a failed decision."""

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
        """End of the time in which the job is left undecided; None while decisions are made."""
        self.reason = ""
        """Why the job was left undecided; empty again once a decision succeeded."""

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

    def succeeded(self) -> None:
        """Forget failures before a decision that succeeded."""
        self._in_a_row = 0
        self.reason = ""

    def may_decide(self, *, now: float) -> bool:
        """Return whether decisions may be made again, or were never stopped."""
        return self.undecided_until is None or now >= self.undecided_until
