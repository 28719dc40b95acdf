"""What travels between the rendezvous server and its two kinds of peers: members (through a WebSocket) and the controller (HTTPS).

Everything here is a frozen struct with a bound on what it may hold, in both directions; every limit of a transport follows from these
bounds (elastic.membership.limits). Nothing here decides. Times are durations in seconds from the moment of sending, because the clocks of
two hosts are never compared.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

PLAIN = r"\A[!#-\[\]-~]*\Z"
"""Printable ASCII that JSON writes as it is: one byte a character. What names things here is made of nothing else."""
MAX_WORDS = 1024

Name = Annotated[str, Meta(min_length=1, max_length=253, pattern=PLAIN)]
NameOrNone = Annotated[str, Meta(max_length=253, pattern=PLAIN)]
Words = Annotated[str, Meta(max_length=MAX_WORDS)]
Seconds = Annotated[float, Meta(ge=0, le=366 * 86400)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Generation = Annotated[int, Meta(ge=0, le=2**53)]
KnownGeneration = Annotated[int, Meta(ge=0, le=2**52)]
"""A generation that the next ones are counted on from: they need room."""
Milliseconds = Annotated[int, Meta(ge=0, le=2**53)]
Step = Annotated[int, Meta(ge=0, le=2**53)]
CauseWord = Annotated[str, Meta(max_length=64, pattern=PLAIN)]
PodUid = Annotated[str, Meta(max_length=128, pattern=PLAIN)]
Address = Annotated[str, Meta(max_length=300, pattern=PLAIN)]

MAX_MEMBERS = 8192
Names = Annotated[tuple[Name, ...], Meta(max_length=MAX_MEMBERS)]
Size = Annotated[int, Meta(ge=1, le=MAX_MEMBERS)]
Rank = Annotated[int, Meta(ge=0, lt=MAX_MEMBERS)]


def clipped(words: str) -> str:
    """These words, no longer than a message may carry."""
    return words if len(words) <= MAX_WORDS else words[: MAX_WORDS - 3] + "..."


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of every message: frozen, keyword-only, defaults left out when written."""


class Restart(Wire, frozen=True):
    """One restart that was counted; whoever tells of it uses the same id, so that it counts once.

    id: `<world>/<pod>` for a member that failed or was lost, `<world>` for the whole group, `<pod>/<run>` for a container that was in no
    world. generation: of the world that it ended, or that stood then. lost: the pod's container ended with it, and the controller has yet
    to say how; unsure: that will be its cause, and the one given is a guess.
    """

    id: Annotated[str, Meta(min_length=1, max_length=512, pattern=PLAIN)]
    generation: Generation
    cause: CauseWord
    pod: NameOrNone = ""
    lost: bool = False
    unsure: bool = False

    @property
    def is_alone(self) -> bool:
        """Whether it ended a container that was in no world."""
        return bool(self.pod) and self.id.startswith(f"{self.pod}/")


MAX_HELD = 256
"""So many restarts one member keeps for the next server."""
MAX_OPEN = 2 * MAX_MEMBERS
"""So many restarts of a job are known one by one: two worlds in a row in which each member was lost or its worker failed."""
Restarts = Annotated[tuple[Restart, ...], Meta(max_length=MAX_OPEN)]
HeldRestarts = Annotated[tuple[Restart, ...], Meta(max_length=MAX_HELD)]
RestartCounts = Annotated[dict[CauseWord, Count], Meta(max_length=64)]


# --- the controller says ------------------------------------------------------------------------------------------------------------


class Leaving(Wire, frozen=True):
    """A member that was told to go: by when (seconds from now), and why (an announced cause, such as `plan` or `disruption`)."""

    member: Name
    by_s: Seconds = 0.0
    cause: CauseWord = "plan"


class Ended(Wire, frozen=True):
    """What the controller saw of a container's end, which a broken connection does not tell: told again and again, counted once.

    `run` keeps the ends of one pod apart, where its container is restarted in place: the container's restart count. is_last: the whole pod
    is over, so that it counts also where it was never heard of here.
    """

    member: Name
    pod_uid: PodUid
    cause: CauseWord
    run: Count = 0
    is_last: bool = False


class Charge(Wire, frozen=True):
    """Restarts of one cause, so many seconds ago."""

    cause: CauseWord
    age_s: Seconds
    count: Count = 1


class Budget(Wire, frozen=True):
    """What ends a job: how many restarts there may be, and how long training may stand still.

    by_cause: limits for single causes. max_restarts: for all others that count, together. window_s: only the restarts of the last so many
    seconds count for these. without_progress: restarts in a row without a step forward. hang_s: training that has reported steps, and
    reports no further one for so long, stands still and is started anew.
    """

    max_restarts: Count | None = None
    by_cause: Annotated[dict[CauseWord, Count], Meta(max_length=64)] = {}
    window_s: Annotated[float, Meta(gt=0)] | None = None
    without_progress: Count | None = None
    hang_s: Annotated[float, Meta(gt=0)] | None = None


class Expectation(Wire, frozen=True):
    """The full truth of the controller about one job, sent again whenever it changes; sending it twice changes nothing.

    pending: members whose pods cannot be here yet, so that nobody waits for them.
    ended: ends of containers that no World has confirmed yet.
    finished: members whose pods have ended with 0, which a server that has just started cannot know.
    floor, charged, fruitless, step: what the job's status says of the highest generation, of the restarts within the budget's window,
    of restarts in a row without progress, and of the step reached by then. A server that has just started knows none of it.
    restarts, open, booked_to: the job's restart log (elastic.membership.restart_log).
    closed: why the group has ended. Members hear it only when the status says it.
    term: how often the controllers' Lease changed hands. A word of an older leader is refused.
    speaker, number: the sending process and its sequence number. A word that arrives late is refused.
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
    open: Restarts = ()
    booked_to: Generation = 0
    closed: Words = ""
    charged: Annotated[tuple[Charge, ...], Meta(max_length=1024)] = ()
    fruitless: Count = 0
    step: Step | None = None
    grace_s: Seconds = 30.0
    floor: KnownGeneration = 0
    term: Generation = 0
    speaker: Annotated[str, Meta(max_length=64)] = ""
    number: Generation = 0


# --- the controller hears -----------------------------------------------------------------------------------------------------------


class Seat(Wire, frozen=True):
    """A member of a world and its rank there."""

    name: Name
    rank: Rank


class Rescale(Wire, frozen=True):
    """How the newest world came to be: one id through events, logs and status, its cause, and where the milliseconds went.

    Phases: detect (first sign until certain), notice (until members were told to come), drain (until they stood at the barrier), round
    (until the world was sealed), start (until all workers ran), firstStep (until training reported a step).
    """

    id: Name
    cause: CauseWord
    reason: Words
    phases: Annotated[dict[CauseWord, Milliseconds], Meta(max_length=16)] = {}


class World(Wire, frozen=True):
    """Who is in the world of a job now, and why. `members` is empty while a broken or absent world is being formed anew.

    restarts: all by cause. uncounted: one by one those that the controller's word lacks or knows less of. explained: which of the ends that
    it told of (pod uid/run) are taken into account. fruitless: restarts in a row without a step forward, None where the server has yet to
    hear from the controller; step: the highest that had been reported at the last of them. Until it has heard, generation is 0 and
    uncounted is empty, for it cannot judge what members claim.
    """

    job: Name
    generation: Generation
    phase: CauseWord
    members: Annotated[tuple[Seat, ...], Meta(max_length=MAX_MEMBERS)] = ()
    waiting: Names = ()
    leaving: Names = ()
    restarts: RestartCounts = {}
    uncounted: Restarts = ()
    explained: Annotated[tuple[Annotated[str, Meta(max_length=137, pattern=PLAIN)], ...], Meta(max_length=MAX_MEMBERS)] = ()
    fruitless: Count | None = None
    step: Step | None = None
    reason: Words = ""
    closed: Words = ""
    rescale: Rescale | None = None
    forgotten: bool = False


UNREADABLE = "unreadable"


def unreadable(job: str, why: str) -> World:
    """In the place of a world that cannot be told of, or not be read."""
    return World(
        job=job, generation=0, phase=UNREADABLE, reason=clipped(f"the rendezvous server's message about this job is unusable: {why}")
    )


# --- members say --------------------------------------------------------------------------------------------------------------------


class Held(Wire, frozen=True):
    """The world a member believes itself in; presented on every connection, so that a restarted server can rebuild it.

    uncounted: what the view of that world told of restarts that nobody might have written down: this member's share of them.
    """

    id: Name
    generation: KnownGeneration
    rank: Rank
    size: Size
    store: Address = ""
    uncounted: HeldRestarts = ()


class Up(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag=str.lower):
    """Base of what a member sends."""


class Join(Up, frozen=True):
    """First message of every connection: who I am, what I hold, and whether I stand at the barrier (then as in Ready).

    failed, status, failed_ago_s: at the barrier, that a worker of mine ended by itself in the world that I hold (as in Failed).
    """

    incarnation: Name
    held: Held | None = None
    ready: bool = True
    store: Address = ""
    trouble: Words = ""
    failed: bool = False
    status: Annotated[int, Meta(ge=0, le=1024)] | None = None
    failed_ago_s: Seconds = 0.0


class Ready(Up, frozen=True):
    """I stopped working in the world `after` (0: I never was in one) and stand at the barrier; my store, should I become rank 0.

    trouble: what broke the world for me, where it was neither the server's wish nor a worker's failure.
    """

    after: Generation = 0
    trouble: Words = ""
    store: Address = ""


class Beat(Up, frozen=True):
    """I run."""


class Leave(Up, frozen=True):
    """I go now, and cleanly. by_signal: because I was told to by one, whatever code I end with."""

    reason: Words = ""
    by_signal: bool = False


class Notice(Up, frozen=True):
    """I was told to be gone within `by_s` seconds."""

    by_s: Seconds = 0.0
    cause: CauseWord = "disruption"


class Failed(Up, frozen=True):
    """A worker of mine ended by itself in this generation; `status` as a shell would say it, 128+n for signal n, None if unknown.

    ago_s: how long ago, for a server that could not be told at once: of several workers the first one brought the others down.
    """

    generation: Generation
    status: Annotated[int, Meta(ge=0, le=1024)] | None = None
    detail: Words = ""
    ago_s: Seconds = 0.0


class Started(Up, frozen=True):
    """My workers of this generation run."""

    generation: Generation


class Finished(Up, frozen=True):
    """All my workers of this generation ended with status 0."""

    generation: Generation


FromMember = Join | Ready | Beat | Leave | Notice | Failed | Started | Finished


# --- members hear -------------------------------------------------------------------------------------------------------------------


class View(Wire, frozen=True):
    """All that one member needs to know. It is the whole truth each time, so that a lost message does not matter.

    generation, id, rank, size, store: the world it is in (generation 0: none).
    reform: not empty: stop working and come to the barrier, for this reason.
    waiting: why a member at the barrier is not in a world yet.
    finished: not empty: the work is done and no further world follows, for this reason: a member at the barrier ends with 0.
    closed: not empty: the job's world is closed for good, for this reason. done: everybody of the world finished or is gone.
    peers_finished: it is the only one of the world whose workers have not all ended with 0.
    uncounted: this member's share of those of the world it is in, or was in when the group was let end: to be shown to a server that
    knows nothing.
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
    uncounted: HeldRestarts = ()


class Refused(Wire, frozen=True):
    """This incarnation was replaced by a newer one of the same member and must end."""

    refused: Words


Values = Annotated[dict[Annotated[str, Meta(max_length=64)], float], Meta(max_length=32)]


class Report(Wire, frozen=True):
    """Training signals of one worker. Only its newest report is kept."""

    member: Name
    generation: Generation = 0
    step: Step | None = None
    values: Values = {}


class Answer(Wire, frozen=True, omit_defaults=False):
    """What a worker should do after its report. stop: at the next step. checkpoint_s: checkpoint now, this many seconds are left."""

    stop: bool = False
    reason: Words = ""
    checkpoint_s: float | None = None


class Signal(Wire, frozen=True):
    """A report as read by the autoscaler, with its age."""

    member: Name
    age_s: float
    generation: Generation = 0
    step: Step | None = None
    values: Values = {}
