"""Messages between a member and the engine.

A member says one of `FromMember`, and hears views. Times are durations in seconds from the moment of sending.
"""

from __future__ import annotations

from typing import Annotated, Union

from ..values import dataclass
from .bounds import (
    MAX_MEMBERS,
    Address,
    Bound,
    CauseWord,
    Count,
    Generation,
    KnownGeneration,
    Name,
    NameOrNone,
    Rank,
    Seconds,
    Size,
    Step,
    Words,
)
from .controller import HeldRestarts
from .doing import Doings, Watch
from .in_place import Change, FromWorkers, Workers
from .pace import Paces
from .saves import Saves

Status = Annotated[int, Bound(least=0, most=1024)]
"""An exit status as in a shell: 128+n for signal n."""


@dataclass(frozen=True)
class Held:
    """The world that a member assumes it is in; sent on every connection, so that a restarted server can rebuild it.

    unacknowledged_restarts: restarts from the view of that world that may not be stored in the status yet: this member's share of them.
    round, since 1.2: the last change in process that it heard of (in_place).
    """

    id: Name
    generation: KnownGeneration
    rank: Rank
    size: Size
    store: Address = ""
    unacknowledged_restarts: HeldRestarts = ()
    round: KnownGeneration = 0


@dataclass(frozen=True)
class Join:
    """First message of every connection: the incarnation, the world it holds, and whether it waits at the barrier.

    failed, status, failed_ago_s: at the barrier, one of its workers ended by itself in the held world (as in Failed). workers, since
    1.2: how many workers it has that can enter another world without a restart; 0 if there is one that cannot. provisional, since 1.2: its
    processes started in a world of their own after it left the held one, so they have that world's state only from a save. The others are
    as in Ready.
    """

    incarnation: Name
    held: Held | None = None
    ready: bool = True
    failed: bool = False
    status: Status | None = None
    failed_ago_s: Seconds = 0.0
    workers: Workers = 0
    provisional: bool = False
    trouble: Words = ""
    store: Address = ""
    alive: bool = False
    step: Step | None = None
    round: Generation = 0


@dataclass(frozen=True)
class Ready:
    """The member left the world `after`, where `killed` workers (since 1.3) did not stop in time, and waits at the barrier.

    trouble: what broke the world for it, if neither the server nor a failed worker did. store: its store, used if it becomes rank 0. Since
    1.2: alive: its processes live, and wait at the boundary. step: of the complete state that they hold; None if they hold none. round: the
    change in process that called them.
    """

    after: Generation = 0
    killed: Count = 0
    trouble: Words = ""
    store: Address = ""
    alive: bool = False
    step: Step | None = None
    round: Generation = 0


@dataclass(frozen=True)
class Beat:
    """A heartbeat."""


@dataclass(frozen=True)
class Leave:
    """The member leaves cleanly. by_signal: because of a signal, regardless of its exit code."""

    reason: Words = ""
    by_signal: bool = False


@dataclass(frozen=True)
class Failed:
    """A worker of the member ended by itself in this generation. status: as in a shell, 128+n for signal n, None if unknown.

    ago_s: how long ago; the first of several failures caused the others. rank, error: the worker's, and its exception's line, if seen.
    Since 1.2: by_library: the training library ended the process, because of what happened to its world. out_of_memory: the kernel killed
    it. replaced: another process takes its place, and the member's other workers wait for it with the state.
    """

    generation: Generation
    status: Status | None = None
    detail: Words = ""
    ago_s: Seconds = 0.0
    rank: Count | None = None
    error: Words = ""
    by_library: bool = False
    replaced: bool = False
    out_of_memory: bool = False


@dataclass(frozen=True)
class Started:
    """The member's workers of this generation run. warm, since 1.2: a fork server with torch imported started them."""

    generation: Generation
    warm: bool = False


@dataclass(frozen=True)
class Finished:
    """All workers of the member in this generation ended with status 0."""

    generation: Generation


FromMember = Union[Join, Ready, Beat, Leave, Failed, Started, Finished, Doings, Paces, Saves, FromWorkers]


@dataclass(frozen=True)
class View:
    """All that one member needs to know. Always the full state, so that a lost message does not matter.

    generation, id, rank, size, store: the world it is in (generation 0: none).
    reform: if not empty: stop the workers and return to the barrier, for this reason.
    waiting: why a member at the barrier is not in a world yet.
    finished: if not empty: the work is done and no further world follows, for this reason; a member at the barrier ends with 0.
    closed: if not empty: the job's world is closed for good, for this reason. done: all members of the world have finished or are gone.
    peers_finished: it is the only one of the world whose workers have not all ended with 0.
    unacknowledged_restarts: this member's share of the restarts that the status lacks, to be presented to a server that has just started.
    Since 1.2: change: the change in process that it takes part in. provisional: it starts its workers in a world of its own, where they
    wait for a place in the job's world. Since 1.3: watch: what its agent shall find out about its workers. Since 1.4: pace_s: its workers
    measure how long they need for their steps, in windows of so many seconds; 0 if they do not.
    """

    generation: Generation = 0
    id: NameOrNone = ""
    rank: Rank = 0
    size: Annotated[int, Bound(least=0, most=MAX_MEMBERS)] = 0
    store: Address = ""
    reform: Words = ""
    waiting: Words = ""
    finished: Words = ""
    leaving: CauseWord = ""
    closed: Words = ""
    done: bool = False
    peers_finished: bool = False
    grace_s: Seconds = 30.0
    unacknowledged_restarts: HeldRestarts = ()
    change: Change | None = None
    provisional: bool = False
    watch: Watch = Watch.NOT
    pace_s: Seconds = 0.0
