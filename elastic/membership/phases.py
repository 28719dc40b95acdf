"""How the world of a job stands, for all who speak of it."""

from enum import StrEnum


class WorldPhase(StrEnum):
    """How the world of a job stands."""

    EMPTY = "empty"  # no member has come
    FORMING = "forming"  # the first world is not sealed yet
    RUNNING = "running"  # sealed, and its members work; one that was left out of it may still be stopping
    RE_FORMING = "re-forming"
    FINISHING = "finishing"  # some members have finished, and others are waited for
    FINISHED = "finished"
    CLOSED = "closed"  # the restarts are used up, or the group ends for another reason
    UNREADABLE = "unreadable"  # what the rendezvous server or the etcd says cannot be used
    UNREACHED = "unreached"  # the controller cannot reach the job's etcd
