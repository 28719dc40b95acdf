"""Take events, and return the next state and its effects. A job's membership changes in no other way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Union

from . import absence, in_place, reach, rounds, standstill, stragglers
from .events import Event, Expected, Lost, Resumed, Said, Stepped
from .handlers import messages, training
from .handlers.arrivals import is_retired
from .handlers.expectations import expect
from .messages.doing import Doings
from .messages.member import Beat, Join, Ready, View
from .messages.pace import Paces
from .state.job import JobState
from .state.membership import MemberPhase
from .state.timings import Limits, Timings
from .values import dataclass, replace
from .views import in_all_views, is_news, view

CALM_S = 5.0
SOON_S = 0.001


@dataclass(frozen=True)
class SendView:
    """Send this view to this member."""

    member: str
    view: View


@dataclass(frozen=True)
class Refuse:
    """End this connection: its incarnation was replaced."""

    member: str
    incarnation: str


@dataclass(frozen=True)
class Cut:
    """Close this connection because the engine dropped the member. A live member reconnects."""

    member: str
    incarnation: str


@dataclass(frozen=True)
class Publish:
    """Something the controller wants to know changed."""


@dataclass(frozen=True)
class Wake:
    """Call again at this time at the latest, with a Tick. Moments asked for earlier still stand."""

    at: float


Effect = Union[SendView, Refuse, Cut, Publish, Wake]


def begin(uid: str, *, instance: str, up_since: float, now: float, limits: Limits | None = None) -> JobState:
    """Return a job about which no message has come yet."""
    return JobState(uid=uid, instance=instance, now=now, timings=Timings(up_since=up_since), limits=limits or Limits())


def step(job: JobState, event: Event, now: float) -> tuple[JobState, tuple[Effect, ...]]:
    """Return the job after this event, and the effects."""
    return step_all(job, (event,), now)


def step_all(job: JobState, events: Iterable[Event], now: float) -> tuple[JobState, tuple[Effect, ...]]:
    """Apply events that came together. All are applied before anything is decided, which makes thousands at once cheap."""
    before = job
    job = replace(job, now=max(now, job.now))
    effects: list[Effect] = []
    spoke: set[str] = set()
    answered: set[str] = set()
    is_quiet, is_tick, has_lost = True, False, False
    for event in events:
        if isinstance(event, Said):
            name, incarnation, message = event.member, event.incarnation, event.message
            if is_retired(job, name, incarnation):
                effects.append(Refuse(name, incarnation))
                continue
            is_quiet = is_quiet and isinstance(message, (Beat, Doings, Paces))  # a tick looks at what they do
            spoke.add(name)
            if isinstance(message, (Join, Ready)):
                answered.add(name)
            job = messages.apply_message(job, name=name, incarnation=incarnation, message=message)
        elif isinstance(event, Lost):
            is_quiet, has_lost = False, True
            job = messages.lose(job, name=event.member, incarnation=event.incarnation)
        elif isinstance(event, Expected):
            is_quiet = False
            job = expect(job, event.expectation)
        elif isinstance(event, Stepped):
            job, is_told = training.stepped(job, event.generation, event.step)
            is_quiet = is_quiet and not is_told
        elif isinstance(event, Resumed):
            is_quiet = False
            job = standstill.resumed(job, event.pause_s)
        else:
            is_quiet, is_tick = False, True
            job = replace(job, timings=replace(job.timings, reached_at=event.reached_at))
    if is_quiet and (job.paces is before.paces or stragglers.told(job) == stragglers.told(before)):
        return job, tuple(effects)
    after = rounds.settle(job, let_go=is_tick)
    effects += _cuts(before, after)
    effects += _views_to_send(before, after, spoke=spoke, answered=answered)
    if is_news(before, after):
        effects.append(Publish())
    is_first_sign = _has_sign(after) and not _has_sign(before)
    effects.append(Wake(_look_again_at(after, is_tick=is_tick, has_lost=has_lost, is_first_sign=is_first_sign)))
    return after, tuple(effects)


def _cuts(before: JobState, after: JobState) -> list[Effect]:
    """Return the connections of members that the engine dropped."""
    return [
        Cut(name, before.membership.members[name].incarnation)
        for name in before.membership.members.keys() - after.membership.members.keys()
    ]


def _views_to_send(before: JobState, after: JobState, *, spoke: set[str], answered: set[str]) -> list[Effect]:
    """Return a view for each member that sees something new, and for each one that came to the barrier."""
    names: Iterable[str] = after.membership.members
    if in_all_views(before) == in_all_views(after):
        names = (spoke | {before.membership.last_at_work, after.membership.last_at_work}) & after.membership.members.keys()
    effects: list[Effect] = []
    for name in names:
        sees = view(after, name)
        if name in answered or name not in before.membership.members or view(before, name) != sees:
            effects.append(SendView(name, sees))
    return effects


def _has_sign(job: JobState) -> bool:
    """Return whether a member's report makes the loss of another one likely (`Accounting.shows_loss_beside`)."""
    return bool(job.accounting.failures or job.accounting.alarms)


def _look_again_at(job: JobState, *, is_tick: bool, has_lost: bool, is_first_sign: bool) -> float:
    """Return when time alone may change something.

    A later moment than one already asked for does not put that off. All members are looked at only at a tick and when a world breaks:
    thousands may lose their connections one by one.
    """
    limits, group, timings = job.limits, job.membership, job.timings
    moments = [job.now + CALM_S, in_place.look_again_at(job), timings.up_since + limits.settle_s, timings.patient_until]
    if group.round is not None:
        moments.append(group.round.until)
        if timings.min_reached_at is not None:
            moments.append(timings.min_reached_at + limits.straggler_s)
    if has_lost:
        moments.append(job.now + (absence.return_amid_failure_s(job) if _has_sign(job) else limits.return_s))
    if is_tick or is_first_sign:
        broken = [absence.given_up_at(job, m.name, m.broken_at) for m in group.members.values() if m.broken_at is not None]
        # The next tick drops a member whose time is already over when the first sign is heard.
        moments.extend(max(at, job.now + SOON_S) if is_first_sign else at for at in broken)
    if is_tick:
        heard = (m.heard_at for m in group.members.values() if m.phase is not MemberPhase.FINISHED)
        moments.append(min(heard, default=job.now) + limits.silence_s)
        moments.append(reach.look_again_at(job))
    return min((moment for moment in moments if moment > job.now), default=job.now + CALM_S)
