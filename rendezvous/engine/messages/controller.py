"""Messages between the controller and the engine: the expectation of a job, and its world.

Times are durations in seconds from the moment of sending, because the clocks of two hosts are never compared.
"""

from __future__ import annotations

from typing import Annotated

from ..values import dataclass, field
from .bounds import (
    MAX_MEMBERS,
    Bound,
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
    SomeSeconds,
    Step,
    Words,
)
from .doing import Hang
from .pace import MOST_STRAGGLERS, Straggler
from .saves import MOST_FAILING, FailingRank

LONGEST_RESTART_ID = 512


@dataclass(frozen=True)
class Restart:
    """One restart. Every reporter derives the same id, so that it counts once.

    id: `<world>/<pod>` for a failed or lost member, `<world>` for the whole group, `<pod>/<run>` for a container outside any world.
    generation: of the world that it ended, or of the current world at that time. lost: the pod's container ended, and the controller has
    not reported yet how. unsure: the cause is a guess, and that report will replace it. run, since 1.3: of the container whose reported end
    explained it, so that another server does not count this end again.
    """

    id: Annotated[str, Bound(least=1, most=LONGEST_RESTART_ID, is_plain=True)]
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
Restarts = Annotated[tuple[Restart, ...], Bound(most=MAX_UNSETTLED)]
MAX_CHARGES = 1024
MOST_SILENT = 8
"""Silent members that a report names."""
HeldRestarts = Annotated[tuple[Restart, ...], Bound(most=MAX_HELD)]
RestartCounts = Annotated[dict[CauseWord, Count], Bound(most=64)]
Ends = Annotated[tuple[Annotated[str, Bound(most=137, is_plain=True)], ...], Bound(most=MAX_MEMBERS)]
"""Ends of containers: pod uid/run."""


@dataclass(frozen=True)
class LeaveOrder:
    """A member that must leave: its deadline in seconds from now, the announced cause (as `plan` or `disruption`), and its pod.

    when_replaced: it may have to leave, and keeps its place until another member takes it.
    """

    member: Name
    by_s: Seconds = 0.0
    cause: CauseWord = "plan"
    pod_uid: PodUid = ""
    when_replaced: bool = False


@dataclass(frozen=True)
class Ended:
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


@dataclass(frozen=True)
class Charge:
    """Restarts of one cause, `age_s` seconds ago."""

    cause: CauseWord
    age_s: Seconds
    count: Count = 1


@dataclass(frozen=True)
class Budget:
    """Limits of a job: how many restarts it may have, and how long training may make no progress.

    by_cause: limits of single causes. max_restarts: the limit of all other charged causes together. window_s: only restarts of the last
    `window_s` seconds count. without_progress: restarts in a row without a further step. hang_s: training is restarted if it
    hangs for so long. first_step_s, since 1.3: until its first step, a job may take so long before anybody wonders.
    same_error: restarts in a row after attempts that ended with one error before a step. pace_s, since 1.4: workers measure how long they
    need for their steps, in windows of so many seconds; 0 if they do not.
    """

    max_restarts: Count | None = None
    by_cause: Annotated[dict[CauseWord, Count], Bound(most=64)] = field(default_factory=dict)
    window_s: SomeSeconds | None = None
    without_progress: Count | None = None
    hang_s: SomeSeconds | None = None
    first_step_s: SomeSeconds = 600.0
    same_error: Count | None = None
    pace_s: Seconds = 0.0


@dataclass(frozen=True)
class Expectation:
    """The controller's full state of one job, sent at each change; sending it twice changes nothing.

    pending: members whose pods cannot have joined yet; the world is formed without waiting for them.
    newcomers: members whose pods have not been Ready in a world yet. A server that has just started does not mistake them for members of
    the world that it finds, unless it finds one of them in it.
    ended: ends of containers that no World has confirmed yet.
    finished: members whose pods have ended with 0; a server that has just started does not know them.
    floor, charged, fruitless, step: from the job's status, for a server that has just started: the highest generation, the restarts within
    the budget's window, the restarts in a row without progress, and the step reached by then.
    restarts, unsettled, settled_to: the job's restart log (restart_log).
    closed: why the group has ended. Members are notified only once the status says it.
    term: how often the controllers' Lease changed hands. A message of an older leader is refused.
    speaker, number: the sending process and its sequence number. A message that arrives late is refused.
    hosts: of a job whose launcher starts the workers; such a job has no members. The engine passes them on unread.
    state_s: after so long the members of a world have its state, where training never reports a step.
    awaited, await_s: members with the state that may come back; a round waits so long before it forms a world without the state.
    """

    members: Names = ()
    pending: Names = ()
    leaving: Annotated[tuple[LeaveOrder, ...], Bound(most=MAX_MEMBERS)] = ()
    ended: Annotated[tuple[Ended, ...], Bound(most=MAX_MEMBERS)] = ()
    finished: Names = ()
    min: Size = 1
    max: Size = 1
    sizes: Annotated[tuple[Size, ...], Bound(most=MAX_MEMBERS)] = ()
    budget: Budget = Budget()
    restarts: RestartCounts = field(default_factory=dict)
    unsettled: Restarts = ()
    settled_to: Generation = 0
    closed: Words = ""
    charged: Annotated[tuple[Charge, ...], Bound(most=MAX_CHARGES)] = ()
    fruitless: Count = 0
    step: Step | None = None
    grace_s: Seconds = 30.0
    floor: KnownGeneration = 0
    term: Generation = 0
    speaker: Annotated[str, Bound(most=64)] = ""
    number: Generation = 0
    hosts: object = None
    newcomers: Names = ()
    state_s: Seconds = 30.0
    awaited: Names = ()
    await_s: Seconds = 0.0


@dataclass(frozen=True)
class RankedMember:
    """A member of a world, its rank there, and its incarnation (pod uid/start of the agent; empty from an older server)."""

    name: Name
    rank: Rank
    incarnation: NameOrNone = ""


@dataclass(frozen=True)
class StandingWorld:
    """The standing world: its seats (a restarted server may not know all their holders), its age here, whether it made a step."""

    size: Size
    age_s: Seconds
    has_stepped: bool = False


@dataclass(frozen=True)
class RescaleReport:
    """How the newest world was formed: one id in events, logs and status, the cause, and the milliseconds of each phase.

    Phases: detect (first signal until detected), notice (until members were notified), drain (until they were at the barrier), round
    (until the world was sealed), start (until all workers ran), firstStep (until training reported a step).
    step_before: the highest step of the world before this one. step_after: the first step reported in this world.
    state_lost: no member of this world has the state of the world before. began_unseen: the server was started after training had
    stopped, so the phases miss a part.
    rung: how the processes came into the world (Rung); empty if that is not known, or for the first world.
    killed, since 1.3: workers of the world before that did not stop within their grace.
    """

    id: Name
    cause: CauseWord
    reason: Words
    phases: Annotated[dict[CauseWord, Milliseconds], Bound(most=16)] = field(default_factory=dict)
    step_before: Step | None = None
    step_after: Step | None = None
    state_lost: bool = False
    began_unseen: bool = False
    rung: CauseWord = ""
    killed: Count = 0


@dataclass(frozen=True)
class SilentMember:
    """A member that the server has dropped, and that last spoke `ago_s` seconds ago."""

    name: Name
    ago_s: Seconds


@dataclass(frozen=True)
class WorldReport:
    """The members of a job's world now, and the reason. `members` is empty while a broken or absent world is being formed again.

    restarts: all, by cause. unacknowledged_restarts: those that the controller's expectation lacks, or knows with less certainty.
    explained: the reported ends (pod uid/run) that the server has processed. fruitless: restarts in a row without a further step; None
    until the first expectation. step: the highest step reported before the last of them. highest: the highest one ever, while no world
    works. Until the first expectation, generation is 0 and unacknowledged_restarts is empty, because the server cannot verify what members
    claim. standing: None while no world stands, and from an older server. asks: the controller must send its newest message about the job
    again, because the server was cut off or dropped the job's state. fault: a bug because of which the server leaves the job undecided.
    Since 1.3: hang: no step has come for long; None otherwise. Since 1.4: stragglers: the ranks that the others wait for; None
    if that is not known (yet). Since 1.5: silent: expected members that were dropped and have not come back.
    failing_saves: ranks whose newest save failed. ended_early: the first workers that ended with status 0 while others failed.
    """

    job: Name
    generation: Generation
    phase: CauseWord
    members: Annotated[tuple[RankedMember, ...], Bound(most=MAX_MEMBERS)] = ()
    waiting: Names = ()
    leaving: Names = ()
    restarts: RestartCounts = field(default_factory=dict)
    unacknowledged_restarts: Restarts = ()
    explained: Ends = ()
    fruitless: Count | None = None
    step: Step | None = None
    highest: Step | None = None
    reason: Words = ""
    closed: Words = ""
    rescale: RescaleReport | None = None
    standing: StandingWorld | None = None
    hosts: object = None
    forgotten: bool = False
    asks: bool = False
    fault: Words = ""
    hang: Hang | None = None
    stragglers: Annotated[tuple[Straggler, ...], Bound(most=MOST_STRAGGLERS)] | None = None
    ended_early: Words = ""
    silent: Annotated[tuple[SilentMember, ...], Bound(most=MOST_SILENT)] = ()
    failing_saves: Annotated[tuple[FailingRank, ...], Bound(most=MOST_FAILING)] = ()
