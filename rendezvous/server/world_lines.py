"""The lines about jobs' worlds that one controller gets: whole worlds, or only what changed.

Each line is encoded when it is written, in pieces of bounded size between which other work gets its turn. A thread would not help, because
encoding holds the interpreter's lock. A job whose lines are long or many waits, and no other job with it.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any

from elastic.membership import limits
from elastic.membership.wire import Decoder, WorldReport, encode, unreadable
from elastic.membership.world_changes import WorldChange, changes
from elastic_training.rendezvous.server.hub import Hub
from elastic_training.rendezvous.server.metered import Use

log = logging.getLogger(__name__)

JOB_BYTES = 4 * 2**20
"""Bytes of lines about one job that may go out at once."""
JOB_BYTES_PER_S = 512 * 2**10
CHECKED = 256 * 2**10
"""A longer line is sent without checking that it can be read: the controller checks it too."""

_worlds = Decoder[WorldReport](WorldReport)
_changes = Decoder[Any](WorldChange)


class WorldLines:
    """The lines for one controller, which knows nothing at first."""

    def __init__(self, hub: Hub, *, clock: Callable[[], float], only_changes: bool) -> None:
        self._hub = hub
        self._clock = clock
        self._only_changes = only_changes
        self._told: dict[str, tuple[WorldReport, int]] = {}
        """By job: its world as the controller knows it, and how many lines told it."""
        self._sent: dict[str, Use] = {}
        self._late: dict[str, None] = {}
        self._unreadable: dict[str, str] = {}
        """The newest logged reason of each job of which a world could not be sent."""
        self.version = -1
        """The version of the hub up to which the controller has the news."""

    @property
    def is_late(self) -> bool:
        """Whether a job's news wait because its lines had too many bytes."""
        return bool(self._late)

    def news(self) -> Iterator[bytes]:
        """Yield the lines about all that changed since the last call."""
        version, self.version = self.version, self._hub.version
        changed, gone = self._hub.changed_since(version)
        late, self._late = self._late, {}
        for uid in {**late, **dict.fromkeys(changed)}:
            used = self._sent.setdefault(uid, Use(self._clock()))
            if used.drained(now=self._clock(), per_s=JOB_BYTES_PER_S) >= JOB_BYTES:
                self._late[uid] = None
            elif (world := self._hub.world(uid)) is not None:
                for line in self._lines(world):
                    used.add(len(line))
                    yield line
        for uid in gone:
            self._sent.pop(uid, None)
            self._unreadable.pop(uid, None)
            yield from self._lines(WorldReport(job=uid, generation=0, phase="forgotten", forgotten=True))

    def _lines(self, world: WorldReport) -> Iterator[bytes]:
        """Yield the lines about one job. A short line replaces a world that no controller could read: it costs only that job."""
        before, lines = self._told.pop(world.job, (None, 0)) if not world.forgotten else (None, 0)
        try:
            if not self._only_changes:
                yield _line(world, _worlds, most=limits.WORLD_LINE)
                return
            for change in changes(before, world, after=lines):
                lines += 1
                yield _line(change, _changes, most=limits.CHANGE_LINE)
        except ValueError as error:
            self._log_unreadable(world.job, str(error))
            world, lines = unreadable(world.job, str(error)), 1
            if not self._only_changes:
                yield encode(world) + b"\n"
                return
            yield from (encode(change) + b"\n" for change in changes(None, world, after=0))
        if world.forgotten:
            self._told.pop(world.job, None)
        else:
            self._told[world.job] = (world, lines)

    def _log_unreadable(self, uid: str, error: str) -> None:
        """Log why a job's world cannot be sent, unless the same error of this job was the last one in the log."""
        if self._unreadable.get(uid) != error:
            self._unreadable[uid] = error
            log.error("a world cannot be sent to the controller", extra={"uid": uid, "error": error})


def _line(message: object, decoder: Decoder[Any], *, most: int) -> bytes:
    """Return the line of a message. Raises ValueError if its reader would refuse it."""
    line = encode(message) + b"\n"
    if len(line) > most:
        raise ValueError(f"it has more than {most} bytes")
    if len(line) <= CHECKED:
        decoder.check(line)
    return line
