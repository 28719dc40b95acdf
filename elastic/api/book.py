"""The particulars of restarts, of disruptions, and of pods that were refused or lost that a job's status keeps for a while.

So that each restart is counted once and within the budget's window, and pods are not made again and again without a pause.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

MOST_KNOWN = 64
"""The most recent pods that are known by their number, for each replica type."""
MOST_GROUPED = 16_384
"""The most restarts that are stored together as one entry."""
MOST_GENERATION = 2**48
"""Largest generation. No job has so many groups, so a larger number is from another program. The rendezvous server counts to 2^53, and
needs room for later groups."""
Generation: TypeAlias = Annotated[int, Meta(ge=0, le=MOST_GENERATION, extra_json_schema={"format": "int64"})]
MOST_MEMBERS = 8192
"""Largest number of workers of a job for which the rendezvous server's messages have room."""
MOST_TIMES = 1_000_000
"""Counters stay there."""
PLAIN = r"\A[!#-\[\]-~]*\Z"
"""Printable ASCII that JSON does not escape: one byte a character. Messages to the rendezvous server consist of it."""
Times: TypeAlias = Annotated[int, Meta(ge=0, le=MOST_TIMES, extra_json_schema={"format": "int32"})]
MOST_MILLISECONDS = 2**53
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=MOST_MILLISECONDS, extra_json_schema={"format": "int64"})]
Step: TypeAlias = Annotated[int, Meta(ge=0, le=2**53, extra_json_schema={"format": "int64"})]
CauseWord: TypeAlias = Annotated[str, Meta(max_length=64, pattern=PLAIN)]
PodUid: TypeAlias = Annotated[str, Meta(max_length=253, pattern=PLAIN)]
Time: TypeAlias = Annotated[datetime, Meta(tz=True)]


class Charge(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Restarts of one cause at about one time."""

    cause: CauseWord
    at: Time
    count: Times = 1


class Restart(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """One counted restart that may be reported again."""

    id: Annotated[str, Meta(min_length=1, max_length=512, pattern=PLAIN)]
    generation: Generation
    """The group that it ended."""
    cause: CauseWord
    pod: PodUid = ""
    """Uid of the pod that failed or was lost."""
    pods: Annotated[tuple[PodUid, ...], Meta(max_length=MOST_GROUPED)] = ()
    """Uids of the pods of many restarts that differ in nothing else, where there are many; each has the id with its pod in place of `*`."""
    lost: bool = False
    """Its container ended with it, and it is not known how."""
    unsure: bool = False
    """The cause is a guess until then."""


class Refusal(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Pods of one replica type that were refused in a row, by nodes or by the API server."""

    type: str
    node: str = ""
    """The node that refused the newest; empty: the API server refused to create it."""
    message: str = ""
    count: Times = 1
    at: Time
    """When the newest try was refused, after which the next one waits pauseSeconds."""
    pause_seconds: Times = 0


class Made(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A pod that was made when others of its type had been made before."""

    index: Times
    at: Time


class Replacements(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Pods of one replica type that were made of late, and those of them that were lost in a row soon after."""

    type: str
    made: Annotated[tuple[Made, ...], Meta(max_length=MOST_KNOWN)] = ()
    """The newest ones that are not known to be lost."""
    lost: Annotated[tuple[Times, ...], Meta(max_length=MOST_KNOWN)] = ()
    """The numbers of those that were lost since the newest try."""
    count: Times = 0
    """How many were lost in a row."""
    tries: Times = 0
    """How often in a row a place was lost again."""
    at: Time | None = None
    """When the newest try was lost, after which the next one waits pauseSeconds."""
    pause_seconds: Times = 0
    message: str = ""
    """The fate of the newest that was lost."""


class Announced(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A signal that does not say itself by when a worker is lost: the time as counted from its first sight."""

    signal: Annotated[str, Meta(max_length=317)]
    by: Time


class Disruption(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """The cluster announced that workers of one node must go, or may have to; or it ended them without notice."""

    signal: Annotated[str, Meta(max_length=317)]
    """Its name in the table of signals."""
    node: Annotated[str, Meta(max_length=253)] = ""
    workers: Times = 0
    """How many it concerned."""
    noticed_at: Time | None = None
    by: Time | None = None
    """When they are, or would have been, lost."""
    ended_at: Time | None = None
    """When the last of them had gone, or the signal was taken back; unset as long as it lasts."""
    outcome: Annotated[str, Meta(max_length=32)] = ""
    """Left or TakenBack."""
    rescale: Annotated[str, Meta(max_length=317)] = ""
    """Id of the newest rescale that it brought about."""
    pause_milliseconds: Milliseconds = 0
    """The time that this rescale took from training, from the first sign to the first step; unset if nobody measures it, as at c10d."""
    step_before: Step | None = None
    """The highest step that the world before that rescale had reported."""
    step_after: Step | None = None
    """The first step that training reported after it."""
    steps_lost: Step = 0
    """By how much training fell back, as far as its reports show."""
    state_lost: bool = False
    """No worker of the next group had the state of training."""
    asked_to_save_at: Time | None = None
    """When the last workers with the state of training were told to save and end, because no replacement could have the state in time."""


class Leaving(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A worker that was asked to leave."""

    member: Annotated[str, Meta(min_length=1, max_length=253, pattern=PLAIN)]
    cause: CauseWord
    by: Time | None = None
    uid: str = ""
    """Uid of its pod: a later pod of the same name is not meant."""
    signal: Annotated[str, Meta(max_length=317)] = ""
    """The signal that announced it, if it is a disruption."""
    others: Annotated[tuple[Announced, ...], Meta(max_length=8)] = ()
    """Further signals that leave more time."""
    asked_to_save: bool = False
    """It is among the last workers with the state of training, and ends because no replacement can have the state in time."""


class LastLoss(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """The newest pod that the cluster took from a job without a rendezvous. Its peers may end because of it, a while later."""

    pod: Annotated[str, Meta(max_length=253)]
    uid: PodUid = ""
    message: Annotated[str, Meta(max_length=512)] = ""
    """How the pod was lost, and on which node."""
    at: Time


class HangPod(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A pod with ranks that stand still, or that others wait for."""

    name: Annotated[str, Meta(max_length=253)]
    node: Annotated[str, Meta(max_length=253)] = ""


class HangRanks(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Ranks that do the same while no step comes."""

    ranks: Annotated[str, Meta(max_length=512)]
    """The ranks, as in `0-2,5`."""
    count: Times = 1
    """Number of these ranks. `ranks` leaves some out if they are in more than 16 rows."""
    pods: Annotated[tuple[HangPod, ...], Meta(max_length=8)] = ()
    """The pods of these ranks in the order of the ranks, at most eight."""
    kind: Annotated[str, Meta(max_length=32)] = ""
    """collective: they wait for other ranks; stopped: a signal stopped them; other; unknown: their stacks cannot be read."""
    does: Annotated[str, Meta(max_length=2048)] = ""
    """The activity of each of these ranks, as a verb in the third person: `sleeps`, `waits in all_reduce`."""
    place: Annotated[str, Meta(max_length=2048)] = ""
    """File and line of the program."""
    code: Annotated[str, Meta(max_length=1024)] = ""
    """The text of that line."""
    since: Time | None = None
    """The ranks have done it at least since then. It is unset if one of them did something else in the last 30 s."""


class Hang(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Why no step comes."""

    state: Annotated[str, Meta(max_length=32)]
    """Waiting: no step has come for long; SuspectedHang: ranks wait for a rank that does not move, or all for each other."""
    since: Time | None = None
    """When the last step came; if training reports none, since when at least the ranks that stand still have done so."""
    reports_steps: bool = False
    """Training has reported a step."""
    message: Annotated[str, Meta(max_length=1024)] = ""
    """Words about what the ranks do. The times are in `since`, because the words stay."""
    ranks: Annotated[tuple[HangRanks, ...], Meta(max_length=8)] = ()
    """Groups of ranks and their activity, the likely cause first."""


class Straggler(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A rank that the others wait for."""

    rank: Times
    local_rank: Times = 0
    """Number of the worker process in its pod."""
    pod: Annotated[str, Meta(max_length=253)]
    pod_uid: PodUid = ""
    node: Annotated[str, Meta(max_length=253)] = ""
    kind: Annotated[str, Meta(max_length=32)]
    """Why it is slow: Compute, DataLoading, OutsideSteps, CPUThrottling or Network."""
    percent: Times = 0
    """The time that it needed for a step when this was found, in percent of the usual time."""
    since: Time | None = None
    message: Annotated[str, Meta(max_length=1024)] = ""


class FailedSave(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A rank whose newest save failed. Training goes on."""

    rank: Times
    local_rank: Times = 0
    """Number of the worker process in its pod."""
    pod: Annotated[str, Meta(max_length=253)]
    pod_uid: PodUid = ""
    step: Step
    """The step of the save, when this was last told."""
    last_step: Step | None = None
    """The step of the last complete save; unset if no complete save is known."""
    failures: Times = 1
    """How many saves had failed in a row by then."""
    since: Time | None = None
    message: Annotated[str, Meta(max_length=1024)] = ""


class Rescale(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """The last change of the group, its cause, and where its time went."""

    id: str = ""
    cause: str = ""
    reason: str = ""
    at: Time | None = None
    from_size: int = 0
    to_size: int = 0
    phases: dict[str, int] = {}
    """Milliseconds by phase: notice, detect, drain, round, start, firstStep; pause, before a group that keeps failing restarts."""
    lost: Annotated[tuple[PodUid, ...], Meta(max_length=16)] = ()
    """Uids of the pods that this loss is about, with rdzvBackend c10d; for more than 16 pods, one checksum."""
    step_before: Step | None = None
    """The highest step that the world before had reported; unset if training reports none."""
    step_after: Step | None = None
    """The first step that training reported afterwards."""
    steps_lost: Step = 0
    """By how much training fell back, as far as its reports show."""
    state_lost: bool = False
    """No worker of the group had the state of the group before."""
    began_unseen: bool = False
    """The rendezvous server was started after training had stopped, so training stood still for longer than the phases say."""
    killed: Times = 0
    """Workers of the group before that did not stop within scaleInGraceSeconds, and were killed."""
    rung: Annotated[str, Meta(max_length=64)] = ""
    """How the processes came into the group: in-process, warm-restart, restart or new-pods."""
