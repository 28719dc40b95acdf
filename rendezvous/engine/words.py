"""Words of the engine. Each enum member's value is the word as messages and records have it."""

from __future__ import annotations

from enum import Enum


class Word(str, Enum):
    """A text of a closed set, as the standard library's StrEnum of Python 3.11."""

    def __str__(self) -> str:
        return str.__str__(self)

    def __format__(self, format_spec: str) -> str:
        return str.__format__(self, format_spec)


class Cause(Word):
    """The reason why a worker ended, or why a world changed. elastic.api.words has the same words for users."""

    START = "start"
    PLAN = "plan"
    DISRUPTION = "disruption"
    COLLATERAL = "collateral"
    OUT_OF_MEMORY = "outOfMemory"
    HANG = "hang"
    USER = "user"


CHARGED = frozenset({Cause.USER, Cause.OUT_OF_MEMORY, Cause.HANG})
"""The causes that count against maxRestarts, because the job itself is to blame."""


class WorldPhase(Word):
    """The state of a job's world."""

    EMPTY = "empty"  # no member has come
    FORMING = "forming"  # the first world is not sealed yet
    RUNNING = "running"  # sealed, and its members work; members that were left out may still be stopping
    RE_FORMING = "re-forming"
    FINISHING = "finishing"  # some members have finished, and others are waited for
    FINISHED = "finished"
    CLOSED = "closed"  # the restarts are used up, or the group ends for another reason
    UNREADABLE = "unreadable"  # the message of the rendezvous server or the record in the etcd is invalid
    UNREACHED = "unreached"  # the controller cannot reach the job's etcd


UNEXPLAINED = "no peer was lost or failed"
UNFORMED = "could not enter the world"


def tells_of_broken_communication(reason: str) -> bool:
    """Return whether this reason of a change says that workers did not reach each other, and nothing else that explains it."""
    return UNEXPLAINED in reason or UNFORMED in reason
