"""The waits of a job, and when what happened that decisions depend on.

`now` in these values is the caller's monotonic clock; nothing here is ever compared with another host's time.
"""

from __future__ import annotations

import math

from ..values import dataclass


@dataclass(frozen=True)
class Limits:
    """The waits of a job, in seconds. Each is the longest time that the engine gives somebody before it goes on without."""

    straggler_s: float = 5.0
    """for expected members that are not here yet, once enough are"""
    return_s: float = 1.0
    """for a broken connection to come back"""
    return_amid_failure_s: float = 0.4
    """for it to come back once a worker of another member has failed: the two are signs of one loss"""
    return_in_process_s: float = 0.15
    """the same, if the processes of the other members live on and stand still until then"""
    settle_s: float = 15.0
    """after the server's start, before silence counts as absence"""
    silence_s: float = 19.0
    """without a beat on a connection that is open"""
    peers_s: float = 1.0
    """after a worker's failure, for its peers to end by themselves: it may be that they were just finishing"""
    drain_s: float = 10.0
    """for a running member to come to the barrier, beyond its grace"""
    late_s: float = 30.0
    """after the work is done, for expected members that did not take part in its end, to come, hear of it, and go"""
    cut_off_s: float = 600.0
    """after the work is done, for a member of the world whose connection was lost: it may still work"""
    progress_s: float = 300.0
    """of life, after which a world has got somewhere, where training never tells of its steps"""


@dataclass(frozen=True)
class Phases:
    """When the steps of the newest rescale happened, on the engine's clock."""

    first_sign: float
    """the first sign of it: a connection broke, a member fell silent, a newcomer arrived, the controller spoke"""
    detected: float
    notified: float
    drained: float
    sealed: float
    started: float | None = None
    stepped: float | None = None


@dataclass(frozen=True)
class Timings:
    """Times at which things happened to a job and to its server."""

    up_since: float
    patient_until: float = 0.0
    """after the server stood still or was cut off: until then nobody counts as absent"""
    reached_at: float = math.inf
    """when the controller last gave a sign"""
    doubt_since: float | None = None
    """since when the server must take itself for cut off, and decides nothing"""
    word_until: float = 0.0
    """after a doubt: so long, or until the controller has spoken, nothing is decided"""
    first_doubt_at: float | None = None
    """when it first did so, as long as any member is silent"""
    succeeded_at: float | None = None
    """When a member presented a newer world of another server, which may be the successor of this one"""
    first_sign_at: float | None = None
    """when the first sign of the next change was there"""
    min_reached_at: float | None = None
    """since when enough members for a world are at the barrier"""
    phases: Phases | None = None
    """of the newest rescale"""
