"""The newest events of a job in short, for the log line of a decision that failed.

Each event gets an id. A line holds no free text of a member: its words may be secrets, and its length would be the member's choice.
"""

from collections import deque

from elastic.membership.wire import Beat, Failed, Finished, Join, Ready, Started
from elastic_training.rendezvous.engine.events import Event, Expected, Lost, Resumed, Said, Stepped, Tick

KEPT = 64
"""Number of events that a story keeps."""
LONGEST_NAME = 64
"""Longest part of a name in a line; a wire name may have 253 characters."""


class Story:
    """The last events of one job. It holds at most `KEPT` lines of a few hundred bytes."""

    __slots__ = ("_last_id", "_lines", "_quiet")

    def __init__(self) -> None:
        self._last_id = 0
        self._lines: deque[str] = deque(maxlen=KEPT)
        self._quiet = 0

    def note(self, event: Event, at: float) -> None:
        """Give the event the next id, and keep its line. Beats and ticks are only counted, because they would push out all others."""
        self._last_id += 1
        if _is_quiet(event):
            self._quiet += 1
            return
        before = f" (after {self._quiet} beats and ticks)" if self._quiet else ""
        self._lines.append(f"{self._last_id} at {at:.3f}: {in_short(event)}{before}")
        self._quiet = 0

    def lines(self) -> list[str]:
        """Return the kept events, the oldest first."""
        quiet = [f"{self._last_id}: the last of {self._quiet} beats and ticks"] if self._quiet else []
        return [*self._lines, *quiet][-KEPT:]


def in_short(event: Event) -> str:
    """Return the event in one short line, without free text."""
    match event:
        case Said(member=name, incarnation=incarnation, message=message):
            what = type(message).__name__.lower()
            return f"{what} of {_short(name)} ({_short(incarnation)}){_numbers(message)}"
        case Lost(member=name, incarnation=incarnation):
            return f"lost {_short(name)} ({_short(incarnation)})"
        case Expected(expectation=told):
            sizes = f"{len(told.members)} members, {len(told.leaving)} leaving, {len(told.ended)} ended, {told.min} to {told.max}"
            return f"expectation {told.number} of term {told.term}: {sizes}, floor {told.floor}{', closed' if told.closed else ''}"
        case Stepped(generation=generation, step=step):
            return f"step {step} in generation {generation}"
        case Tick(reached_at=reached_at):
            return f"tick, the controller's last sign at {reached_at:.3f}"
        case Resumed(pause_s=pause_s):
            return f"resumed after {pause_s:.1f} s"


def _numbers(message: object) -> str:
    """Return the numbers of a member's message."""
    match message:
        case Join(held=held, ready=ready):
            world = f" holds rank {held.rank} of {held.size} in generation {held.generation}" if held is not None else ""
            return f"{world}{' at the barrier' if ready else ''}"
        case Ready(after=after):
            return f" after generation {after}"
        case Failed(generation=generation, status=status):
            return f" in generation {generation} with status {status}"
        case Started(generation=generation) | Finished(generation=generation):
            return f" in generation {generation}"
    return ""


def _is_quiet(event: Event) -> bool:
    return isinstance(event, Tick) or (isinstance(event, Said) and isinstance(event.message, Beat))


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."
