"""The ends of a job's workers, and the restarts that follow from them.

This module keeps the causes that broke the current world, the restarts that are known here, and those that the controller has recorded. The
meaning of a restart for the job is decided in restart_budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter

from .. import window
from ..exit_status import with_error, with_status
from ..messages.controller import MAX_UNSETTLED, Ended, Expectation, Restart
from ..peer_errors import tells_of_peer
from ..restart_log import RestartLog, merged, unknown_to
from ..values import dataclass, field, replace
from ..words import Cause

OF_FAILURES = frozenset({Cause.USER.value, Cause.OUT_OF_MEMORY.value})
"""Causes of a restart for which a worker's own failure is to blame."""
KNOWN_KEPT = 256
"""Number of restarts kept although the controller knows them: another leader with an older view may send the next expectation."""


@dataclass(frozen=True)
class PendingFailure:
    """A worker's own end, not judged yet."""

    member: str
    pod: str
    status: int | None
    at: float
    is_gone: bool = False
    """Whether its agent went as well."""
    rank: int | None = None
    """Rank of the worker, if it is known."""
    error: str = ""
    """Exception of the worker, if it is known."""
    is_replaced: bool = False
    """Another process takes the worker's place, so the member still changes worlds in process."""
    cause: Cause = Cause.USER
    """Cause of the restart, if this is the first failure of its world: USER or OUT_OF_MEMORY."""
    run: int | None = None
    """The run of its container whose end was reported."""


@dataclass(frozen=True)
class Loss:
    """A member that the current world lost to something other than its worker's failure, not judged yet."""

    member: str
    pod: str
    cause: str
    words: str
    is_gone: bool = False
    """Whether it left. Perhaps its container ended as well."""
    unsure: bool = False
    """Whether the controller may know a better cause."""
    may_work: bool = False
    """Whether only the end of a connection says that it is gone, so that it may still work."""
    by_library: bool = False
    """The training library ended a worker of the member, whose agent is here and starts it again."""
    run: int | None = None
    """The run of its container whose end was reported."""


@dataclass(frozen=True)
class Accounting:
    """The causes that broke the current world, and the restarts of the job."""

    failures: tuple[PendingFailure, ...] = ()
    losses: tuple[Loss, ...] = ()
    alarms: tuple[str, ...] = ()
    """Members that came to the barrier uncalled while their processes live: a peer may be lost. They count for nothing."""
    hang_reason: str = ""
    """in words, where training stands still in the current world"""
    trouble: tuple[str, str] | None = None
    """the first thing that broke the current world: words and cause"""
    explained: Mapping[str, None] = field(default_factory=dict)
    """ends (pod uid/run) that the controller reported and that are taken into account"""
    recorded: RestartLog = field(default_factory=RestartLog)
    """the restarts that the controller has recorded in the job's status"""
    known_restarts: Mapping[str, Restart] = field(default_factory=dict)
    """by id, the restarts that this server knows of itself, or from members that hold a world"""
    unrecorded: tuple[Restart, ...] = ()
    """those of `known_restarts` that `recorded` lacks or knows with less certainty; kept, because every step compares it"""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """what both come to, by cause"""
    restart_dates: window.Dates = ()
    """the restarts within the budget's window, where it has one"""
    unacknowledged_restarts: tuple[Restart, ...] = ()
    """restarts that the controller may not have recorded: members of the current world hold them for the next server"""
    alike: tuple[str, int] = ("", 0)
    """the error of the newest attempt, and how many in a row have ended with it before a step was reported"""
    closed: str = ""
    """why the job's group ends"""
    ended_early: str = ""
    """The first workers that ended with status 0 while others failed, in words."""

    @property
    def is_world_broken(self) -> bool:
        """Return whether a worker of the current world failed or was lost, or training hangs there."""
        return bool(self.failures or self.losses or self.hang_reason)

    def in_new_world(self) -> Accounting:
        """Return the accounting of the same restarts, without anything that broke the current world."""
        return replace(self, failures=(), losses=(), alarms=(), hang_reason="", trouble=None)

    def shows_loss_beside(self, name: str) -> bool:
        """Return whether other members make it likely that this one is lost: one failed, or came to the barrier uncalled."""
        return any(failure.member != name for failure in self.failures) or any(other != name for other in self.alarms)


def from_status(expectation: Expectation, known: Accounting, *, now: float) -> Accounting:
    """Return the restarts of a server that has just started, as the job's status has them."""
    dates = (window.Dated(charge.cause, now - charge.age_s, charge.count) for charge in expectation.charged)
    by_date = tuple(sorted(dates, key=attrgetter("at")))
    return replace(known, known_restarts={}, unrecorded=(), restarts=expectation.restarts, restart_dates=by_date)


def without_claims(known: Accounting) -> Accounting:
    """Return the accounting without anything that members presented."""
    return replace(known.in_new_world(), known_restarts={}, unrecorded=(), restarts={}, unacknowledged_restarts=())


def with_alarm(known: Accounting, name: str) -> Accounting:
    """Record that a member came to the barrier uncalled while its processes live; once per member."""
    return known if name in known.alarms else replace(known, alarms=(*known.alarms, name))


def with_failure(known: Accounting, failure: PendingFailure) -> Accounting:
    """Record, once per member, that a worker of the current world ended by itself.

    The first end is the cause of the others, even if it is reported later. An end whose error says that a peer was gone was not the first.
    """
    former = next((other for other in known.failures if other.member == failure.member), None)
    if former is not None:
        if failure.is_replaced or not former.is_replaced:
            return known
        fallen = replace(former, is_replaced=False)  # its replacement has failed too, so all processes of the member start again
        return replace(known, failures=tuple(fallen if other is former else other for other in known.failures))
    failures = tuple(sorted((*known.failures, failure), key=lambda one: (tells_of_peer(one.error), one.at)))
    trouble = known.trouble
    if trouble is None or (failures[0] == failure and trouble[1] in OF_FAILURES):
        words = f"a worker of {failure.member} ended"
        words = words if failure.status is None else f"{words} {with_status(failure.status)}"
        if failure.cause is Cause.OUT_OF_MEMORY and not failure.error:
            words += ", because the memory of its container was used up"
        trouble = (with_error(words, rank=failure.rank, error=failure.error), failure.cause.value)
    alarms = tuple(name for name in known.alarms if name != failure.member)
    return replace(known, failures=failures, alarms=alarms, trouble=trouble)


def with_attempt(known: Accounting, *, has_moved: bool) -> Accounting:
    """Record the error with which the first worker of the current world ended, to tell a bug that every attempt meets.

    An error that only says that a peer was lost tells nothing about the program.
    """
    error = known.failures[0].error if known.failures and not has_moved else ""
    error = "" if tells_of_peer(error) else error
    count = known.alike[1] + 1 if error == known.alike[0] else 1
    return replace(known, alike=(error, count if error else 0))


def with_loss(known: Accounting, loss: Loss) -> Accounting:
    """Record that the current world lost a member. If its own worker failed first, the loss is part of that failure."""
    failures = tuple(replace(f, is_gone=f.is_gone or loss.is_gone) if f.member == loss.member else f for f in known.failures)
    if any(failure.member == loss.member for failure in failures):
        return replace(known, failures=failures)
    if any(other.member == loss.member for other in known.losses):
        marked = tuple(replace(k, is_gone=k.is_gone or loss.is_gone) if k.member == loss.member else k for k in known.losses)
        return replace(known, losses=marked)
    return replace(known, losses=(*known.losses, loss), trouble=known.trouble or (loss.words, loss.cause))


def with_return(known: Accounting, name: str) -> Accounting:
    """Record that a lost member came back without its world, so its former workers run no more."""
    if not any(loss.may_work and loss.member == name for loss in known.losses):
        return known
    return replace(known, losses=tuple(replace(loss, may_work=loss.may_work and loss.member != name) for loss in known.losses))


def with_restarts(known: Accounting, restarts: Iterable[Restart], *, window_s: float | None, now: float) -> Accounting:
    """Return the accounting with these restarts, dated if the budget has a window."""
    before = RestartLog(unsettled=tuple(known.known_restarts.values()))
    known_restarts = {entry.id: entry for entry in merged(before, restarts).unsettled[-MAX_UNSETTLED:]}
    counts, dates = merged(known.recorded, known_restarts.values()).counts, known.restart_dates
    if window_s is not None:
        for cause in sorted(counts.keys() | known.restarts.keys()):
            more = counts.get(cause, 0) - known.restarts.get(cause, 0)
            dates = window.recounted(dates, cause, more=more, now=now, window_s=window_s)
    unrecorded = unknown_to(known.recorded, known_restarts.values())
    return replace(known, known_restarts=known_restarts, unrecorded=unrecorded, restarts=counts, restart_dates=dates)


def with_recorded(known: Accounting, recorded: RestartLog) -> Accounting:
    """Return the accounting with the controller's newest restart log. Drop restarts that the controller has had for long."""
    unrecorded = unknown_to(recorded, known.known_restarts.values())
    unknown = {entry.id for entry in unrecorded}
    old = frozenset([id for id in known.known_restarts if id not in unknown][:-KNOWN_KEPT])
    return replace(
        known,
        recorded=recorded,
        known_restarts={id: entry for id, entry in known.known_restarts.items() if id not in old},
        unrecorded=unrecorded,
        unacknowledged_restarts=unknown_to(recorded, known.unacknowledged_restarts),  # members need not keep what the controller has
    )


def held(known: Accounting) -> Accounting:
    """Return the accounting whose members hold, for the next server, what the controller does not know yet."""
    return replace(known, unacknowledged_restarts=known.unrecorded)


def is_lost(known: Accounting, pod: str) -> bool:
    """Return whether a loss of this pod waits for the report of how its container ended."""
    return is_lost_now(known, pod) or lost(known, pod) is not None


def is_lost_now(known: Accounting, pod: str) -> bool:
    """Return whether the current world lost this pod."""
    return any(loss.pod == pod and loss.is_gone for loss in known.losses) or any(f.pod == pod and f.is_gone for f in known.failures)


def lost(known: Accounting, pod: str) -> Restart | None:
    """Return the restart of a former world that waits for the report of how this pod's container ended."""
    return merged(known.recorded, known.known_restarts.values()).lost(pod)


def with_explained_loss(known: Accounting, end: Ended, *, words: str) -> Accounting:
    """Record how the container of a lost member ended. This is the cause of the loss, unless a better one is known."""
    failures = tuple(replace(item, is_gone=False, run=end.run) if item.pod == end.pod_uid else item for item in known.failures)
    losses = tuple(_explained(loss, end, words) if loss.pod == end.pod_uid else loss for loss in known.losses)
    return replace(known, failures=failures, losses=losses)


def explained(entry: Restart, end: Ended) -> Restart:
    """Return the restart of a lost member, now that the end of its container is known."""
    return replace(entry, cause=end.cause if entry.unsure else entry.cause, lost=False, unsure=False, run=end.run)


def is_accounted(known: Accounting, end: Ended) -> bool:
    """Return whether this end has explained a restart already, perhaps at an earlier server whose members kept the restart."""
    return any(entry.pod == end.pod_uid and entry.run == end.run for entry in known.known_restarts.values())


def _explained(loss: Loss, end: Ended, words: str) -> Loss:
    if not (loss.unsure or end.own_limit):
        return replace(loss, is_gone=False, may_work=False, run=end.run)
    words = words if end.cause != loss.cause else loss.words
    return replace(loss, cause=end.cause, words=words, is_gone=False, unsure=False, may_work=False, run=end.run)
