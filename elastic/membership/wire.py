"""Messages between the rendezvous server and its two kinds of peers: members (WebSocket) and the controller (HTTPS).

Each message is a frozen struct, and each of its fields is bounded; every limit of a transport follows from these
bounds (elastic.membership.limits). Nothing here decides. Times are durations in seconds from the moment of sending, because the clocks of
two hosts are never compared.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from elastic.api.book import PLAIN
from elastic.membership.bounds import (
    MAX_MEMBERS,
    Address,
    CauseWord,
    Count,
    Generation,
    KnownGeneration,
    Milliseconds,
    Name,
    NameOrNone,
    Names,
    PodUid,
    Rank,
    Seconds,
    Size,
    Step,
    Up,
    Words,
    clipped,
)
from elastic.membership.doing import Doings, Hang, Watch
from elastic.membership.hosts import HostFacts, HostState
from elastic.membership.in_place import Change, FromWorkers, Workers
from elastic.membership.pace import MOST_STRAGGLERS, Paces, Straggler
from elastic.membership.phases import WorldPhase


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of every message: frozen, keyword-only, defaults left out when written."""


LONGEST_RESTART_ID = 512


class Restart(Wire, frozen=True):
    """One restart. Every reporter derives the same id, so that it counts once.

    id: `<world>/<pod>` for a failed or lost member, `<world>` for the whole group, `<pod>/<run>` for a container outside any world.
    generation: of the world that it ended, or of the current world at that time. lost: the pod's container ended, and the controller has
    not reported yet how. unsure: the cause is a guess, and that report will replace it. run, since 1.3: of the container whose reported end
    explained it, so that another server does not count this end again.
    """

    id: Annotated[str, Meta(min_length=1, max_length=LONGEST_RESTART_ID, pattern=PLAIN)]
    generation: Generation
    cause: CauseWord
    pod: NameOrNone = ""
    lost: bool = False
    unsure: bool = False
    run: Count | None = None

    @property
    def is_alone(self) -> bool:
        """Whether it ended a container outside any world."""
        return bool(self.pod) and self.id.startswith(f"{self.pod}/")


MAX_HELD = 256
"""How many restarts one member keeps for the next server."""
MAX_UNSETTLED = 2 * MAX_MEMBERS
"""How many unsettled restarts a job may have: two worlds in a row in which every member was lost or failed."""
Restarts = Annotated[tuple[Restart, ...], Meta(max_length=MAX_UNSETTLED)]
MAX_CHARGES = 1024
HeldRestarts = Annotated[tuple[Restart, ...], Meta(max_length=MAX_HELD)]
RestartCounts = Annotated[dict[CauseWord, Count], Meta(max_length=64)]


class Leaving(Wire, frozen=True):
    """A member that must leave: its deadline in seconds from now, the announced cause (as `plan` or `disruption`), and its pod.

    when_replaced: it may have to leave, and keeps its place until another member takes it.
    """

    member: Name
    by_s: Seconds = 0.0
    cause: CauseWord = "plan"
    pod_uid: PodUid = ""
    when_replaced: bool = False


class Ended(Wire, frozen=True):
    """The end of a container as the controller saw it; a broken connection does not show that. Sent repeatedly, counted once.

    run: the container's restart count, which tells the ends of one pod apart. is_last: the whole pod has ended, so the end counts even if
    this server never knew the member. usage_error: the agent of this run never came to the rendezvous, because its command is wrong: the
    end explains no loss, and counts by itself. own_limit: the pod exceeded a limit of its own; its agent may still have said goodbye.
    """

    member: Name
    pod_uid: PodUid
    cause: CauseWord
    run: Count = 0
    is_last: bool = False
    usage_error: bool = False
    own_limit: bool = False


class Charge(Wire, frozen=True):
    """Restarts of one cause, `age_s` seconds ago."""

    cause: CauseWord
    age_s: Seconds
    count: Count = 1


class Budget(Wire, frozen=True):
    """Limits of a job: how many restarts it may have, and how long training may make no progress.

    by_cause: limits of single causes. max_restarts: the limit of all other charged causes together. window_s: only restarts of the last
    `window_s` seconds count. without_progress: restarts in a row without a further step. hang_s: training is restarted if it
    hangs for so long. first_step_s, since 1.3: until its first step, a job may take so long before anybody wonders.
    same_error: restarts in a row after attempts that ended with one error before a step. pace_s, since 1.4: workers measure how long they
    need for their steps, in windows of so many seconds; 0 if they do not.
    """

    max_restarts: Count | None = None
    by_cause: Annotated[dict[CauseWord, Count], Meta(max_length=64)] = {}
    window_s: Annotated[float, Meta(gt=0)] | None = None
    without_progress: Count | None = None
    hang_s: Annotated[float, Meta(gt=0)] | None = None
    first_step_s: Annotated[float, Meta(gt=0)] = 600.0
    same_error: Count | None = None
    pace_s: Seconds = 0.0


class Expectation(Wire, frozen=True, rename={"unsettled": "open", "settled_to": "booked_to"}):
    """The controller's full state of one job, sent at each change; sending it twice changes nothing.

    pending: members whose pods cannot have joined yet; the world is formed without waiting for them.
    newcomers: members whose pods have not been Ready in a world yet. A server that has just started does not mistake them for members of
    the world that it finds, unless it finds one of them in it.
    ended: ends of containers that no World has confirmed yet.
    finished: members whose pods have ended with 0; a server that has just started does not know them.
    floor, charged, fruitless, step: from the job's status, for a server that has just started: the highest generation, the restarts within
    the budget's window, the restarts in a row without progress, and the step reached by then.
    restarts, unsettled, settled_to: the job's restart log (elastic.membership.restart_log).
    closed: why the group has ended. Members are notified only once the status says it.
    term: how often the controllers' Lease changed hands. A message of an older leader is refused.
    speaker, number: the sending process and its sequence number. A message that arrives late is refused.
    hosts: of a job whose launcher starts the workers; such a job has no members.
    state_s: after so long the members of a world have its state, where training never reports a step.
    awaited, await_s: members with the state that may come back; a round waits so long before it forms a world without the state.
    """

    members: Names = ()
    pending: Names = ()
    leaving: Annotated[tuple[Leaving, ...], Meta(max_length=MAX_MEMBERS)] = ()
    ended: Annotated[tuple[Ended, ...], Meta(max_length=MAX_MEMBERS)] = ()
    finished: Names = ()
    min: Size = 1
    max: Size = 1
    sizes: Annotated[tuple[Size, ...], Meta(max_length=MAX_MEMBERS)] = ()
    budget: Budget = Budget()
    restarts: RestartCounts = {}
    unsettled: Restarts = ()
    settled_to: Generation = 0
    closed: Words = ""
    charged: Annotated[tuple[Charge, ...], Meta(max_length=MAX_CHARGES)] = ()
    fruitless: Count = 0
    step: Step | None = None
    grace_s: Seconds = 30.0
    floor: KnownGeneration = 0
    term: Generation = 0
    speaker: Annotated[str, Meta(max_length=64)] = ""
    number: Generation = 0
    hosts: HostFacts | None = None
    newcomers: Names = ()
    state_s: Seconds = 30.0
    awaited: Names = ()
    await_s: Seconds = 0.0


class RankedMember(Wire, frozen=True):
    """A member of a world, its rank there, and its incarnation (pod uid/start of the agent; empty from an older server)."""

    name: Name
    rank: Rank
    incarnation: NameOrNone = ""


class Standing(Wire, frozen=True):
    """The standing world: its seats (a restarted server may not know all their holders), its age here, whether it made a step."""

    size: Size
    age_s: Seconds
    has_stepped: bool = False


class Rescale(Wire, frozen=True):
    """How the newest world was formed: one id in events, logs and status, the cause, and the milliseconds of each phase.

    Phases: detect (first signal until detected), notice (until members were notified), drain (until they were at the barrier), round
    (until the world was sealed), start (until all workers ran), firstStep (until training reported a step).
    step_before: the highest step reported before. step_after: the first step reported in this world. state_lost: no member of this world
    has the state of the world before. began_unseen: the server was started after training had stopped, so the phases miss a part.
    rung: how the processes came into the world (Rung); empty if that is not known, or for the first world.
    killed, since 1.3: workers of the world before that did not stop within their grace.
    """

    id: Name
    cause: CauseWord
    reason: Words
    phases: Annotated[dict[CauseWord, Milliseconds], Meta(max_length=16)] = {}
    step_before: Step | None = None
    step_after: Step | None = None
    state_lost: bool = False
    began_unseen: bool = False
    rung: CauseWord = ""
    killed: Count = 0


class World(Wire, frozen=True, rename={"unacknowledged_restarts": "uncounted"}):
    """The members of a job's world now, and the reason. `members` is empty while a broken or absent world is being formed again.

    restarts: all, by cause. unacknowledged_restarts: those that the controller's expectation lacks, or knows with less certainty.
    explained: the reported ends (pod uid/run) that the server has processed. fruitless: restarts in a row without a further step; None
    until the first expectation. step: the highest step reported before the last of them. highest: the highest one ever, while no world
    works. Until the first expectation, generation is 0 and unacknowledged_restarts is empty, because the server cannot verify what members
    claim. standing: None while no world stands, and from an older server. asks: the controller must send its newest message about the job
    again, because the server was cut off or dropped the job's state. fault: a bug because of which the server leaves the job undecided.
    Since 1.3: hang: no step has come for long; None otherwise. Since 1.4: stragglers: the ranks that the others wait for; None
    if that is not known (yet).
    """

    job: Name
    generation: Generation
    phase: CauseWord
    members: Annotated[tuple[RankedMember, ...], Meta(max_length=MAX_MEMBERS)] = ()
    waiting: Names = ()
    leaving: Names = ()
    restarts: RestartCounts = {}
    unacknowledged_restarts: Restarts = ()
    explained: Annotated[tuple[Annotated[str, Meta(max_length=137, pattern=PLAIN)], ...], Meta(max_length=MAX_MEMBERS)] = ()
    fruitless: Count | None = None
    step: Step | None = None
    highest: Step | None = None
    reason: Words = ""
    closed: Words = ""
    rescale: Rescale | None = None
    standing: Standing | None = None
    hosts: HostState | None = None
    forgotten: bool = False
    asks: bool = False
    fault: Words = ""
    hang: Hang | None = None
    stragglers: Annotated[tuple[Straggler, ...], Meta(max_length=MOST_STRAGGLERS)] | None = None


def unreadable(job: str, why: str) -> World:
    """Return what replaces a world that cannot be encoded or decoded."""
    reason = clipped(f"the rendezvous server's message about this job is unusable: {why}")
    return World(job=job, generation=0, phase=WorldPhase.UNREADABLE, reason=reason)


class Held(Wire, frozen=True, rename={"unacknowledged_restarts": "uncounted"}):
    """The world that a member assumes it is in; sent on every connection, so that a restarted server can rebuild it.

    unacknowledged_restarts: restarts from the view of that world that may not be stored in the status yet: this member's share of them.
    round, since 1.2: the last change in process that it heard of (elastic.membership.in_place).
    """

    id: Name
    generation: KnownGeneration
    rank: Rank
    size: Size
    store: Address = ""
    unacknowledged_restarts: HeldRestarts = ()
    round: KnownGeneration = 0


class AtBarrier(Up, frozen=True, kw_only=True):
    """Message of a member at the barrier. store: its store, used if it becomes rank 0.

    trouble: what broke the world for it, if neither the server nor a failed worker did. Since 1.2: alive: its processes live, and wait at
    the boundary. step: of the complete state that they hold; None if they hold none. round: the change in process that called them.
    """

    trouble: Words = ""
    store: Address = ""
    alive: bool = False
    step: Step | None = None
    round: Generation = 0


class Join(AtBarrier, frozen=True, kw_only=True):
    """First message of every connection: the incarnation, the world it holds, and whether it waits at the barrier.

    failed, status, failed_ago_s: at the barrier, one of its workers ended by itself in the held world (as in Failed). workers, since
    1.2: how many workers it has that can enter another world without a restart; 0 if there is one that cannot. provisional, since 1.2: its
    processes started in a world of their own after it left the held one, so they have that world's state only from a save.
    """

    incarnation: Name
    held: Held | None = None
    ready: bool = True
    failed: bool = False
    status: Annotated[int, Meta(ge=0, le=1024)] | None = None
    failed_ago_s: Seconds = 0.0
    workers: Workers = 0
    provisional: bool = False


class Ready(AtBarrier, frozen=True, kw_only=True):
    """The member left the world `after`, where `killed` workers (since 1.3) did not stop in time, and waits at the barrier."""

    after: Generation = 0
    killed: Count = 0


class Beat(Up, frozen=True):
    """A heartbeat."""


class Leave(Up, frozen=True):
    """The member leaves cleanly. by_signal: because of a signal, regardless of its exit code."""

    reason: Words = ""
    by_signal: bool = False


class Failed(Up, frozen=True):
    """A worker of the member ended by itself in this generation. status: as in a shell, 128+n for signal n, None if unknown.

    ago_s: how long ago; the first of several failures caused the others. rank, error: the worker's, and its exception's line, if seen.
    Since 1.2: by_library: the training library ended the process, because of what happened to its world. out_of_memory: the kernel killed
    it. replaced: another process takes its place, and the member's other workers wait for it with the state.
    """

    generation: Generation
    status: Annotated[int, Meta(ge=0, le=1024)] | None = None
    detail: Words = ""
    ago_s: Seconds = 0.0
    rank: Count | None = None
    error: Words = ""
    by_library: bool = False
    replaced: bool = False
    out_of_memory: bool = False


class Started(Up, frozen=True):
    """The member's workers of this generation run. warm, since 1.2: a fork server with torch imported started them."""

    generation: Generation
    warm: bool = False


class Finished(Up, frozen=True):
    """All workers of the member in this generation ended with status 0."""

    generation: Generation


FromMember = Join | Ready | Beat | Leave | Failed | Started | Finished | Doings | Paces | FromWorkers


class View(Wire, frozen=True, rename={"unacknowledged_restarts": "uncounted"}):
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
    size: Annotated[int, Meta(ge=0, le=MAX_MEMBERS)] = 0
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


class Refused(Wire, frozen=True):
    """Tell an incarnation that a newer one of the same member replaced it, so that it ends."""

    refused: Words
