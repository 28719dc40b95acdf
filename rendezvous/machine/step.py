"""One event in, the next state and what to do about it out. The only way in which a job's membership changes."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rendezvous.machine import hearing, rounds
from rendezvous.machine.events import Event, Expected, Lost, Said, Stepped, Tick
from rendezvous.machine.state import Job, Limits, Phase
from rendezvous.machine.views import view
from rendezvous.wire import Beat, Join, Ready, View

CALM_S = 5.0


@dataclass(frozen=True, slots=True)
class Tell:
    """Send this view to this member."""

    member: str
    view: View


@dataclass(frozen=True, slots=True)
class Refuse:
    """End this connection: its incarnation was replaced."""

    member: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Cut:
    """Close this connection: the machine let go of its member. Who is still there presents itself anew."""

    member: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Publish:
    """Something the controller wants to know changed."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Call again at this time, with a Tick, if nothing happens before."""

    at: float


Effect = Tell | Refuse | Cut | Publish | Wake


def begin(uid: str, *, instance: str, up_since: float, now: float, limits: Limits | None = None) -> Job:
    """A job nobody has said anything about yet."""
    return Job(uid=uid, instance=instance, up_since=up_since, now=now, limits=limits or Limits())


def step(job: Job, event: Event, now: float) -> tuple[Job, tuple[Effect, ...]]:
    """What the job is after this event, and what follows."""
    before = job
    job = replace(job, now=max(now, job.now))
    subject = None
    answer = False
    match event:
        case Said(member=name, incarnation=incarnation, message=message):
            if hearing.is_retired(job, name, incarnation):
                return job, (Refuse(name, incarnation),)
            previous = job.members.get(name)
            subject, answer = name, isinstance(message, Join | Ready)
            job = hearing.hear(job, name=name, incarnation=incarnation, message=message)
            if isinstance(message, Beat) and previous is not None:
                return job, ()
            replaced = (
                (Refuse(name, previous.incarnation),) if previous is not None and _is_replaced(job, name, previous.incarnation) else ()
            )
            after = rounds.settle(job)
            return after, (*replaced, *_effects(before, after, subject=subject, answer=answer))
        case Lost(member=name, incarnation=incarnation):
            member = job.members.get(name)
            if member is not None and member.incarnation == incarnation and member.broken_at is None:
                job = job.change(name, broken_at=job.now)
        case Expected(expectation=expectation):
            job = hearing.expect(job, expectation)
        case Stepped(generation=generation):
            job = hearing.stepped(job, generation)
        case Tick():
            pass
    after = rounds.settle(job)
    return after, _effects(before, after, subject=None, answer=False)


def _is_replaced(job: Job, name: str, incarnation: str) -> bool:
    member = job.members.get(name)
    return member is not None and member.incarnation != incarnation


def _effects(before: Job, after: Job, *, subject: str | None, answer: bool) -> tuple[Effect, ...]:
    """Tell whoever sees something new; the member that came to the barrier hears where it stands in any case."""
    effects: list[Effect] = []
    if len(after.members) < len(before.members):
        effects.extend(Cut(name, member.incarnation) for name, member in before.members.items() if name not in after.members)
    for name in _may_see_news(before, after, subject):
        now_sees = view(after, name)
        if (answer and name == subject) or name not in before.members or view(before, name) != now_sees:
            effects.append(Tell(name, now_sees))
    if _is_news(before, after):
        effects.append(Publish())
    effects.append(Wake(_look_again_at(after)))
    return tuple(effects)


def _may_see_news(before: Job, after: Job, subject: str | None) -> Iterable[str]:
    shared = all(getattr(before, field) is getattr(after, field) for field in ("standing", "round", "closed", "expectation"))
    finishing = (
        after.standing is not None
        and before.members is not after.members
        and any(m.phase is Phase.FINISHED for m in after.members.values())
    )
    if not shared or finishing:
        return after.members
    return () if subject is None or subject not in after.members else (subject,)


def _is_news(before: Job, after: Job) -> bool:
    """Whether the controller's picture may have changed: all that differs by object, except for what only time moves."""
    return any(
        getattr(before, field) is not getattr(after, field)
        for field in ("members", "standing", "round", "closed", "restarts", "phases", "expectation")
    )


def _look_again_at(job: Job) -> float:
    """When time alone may change something."""
    limits = job.limits
    moments = [job.now + CALM_S]
    if not job.is_settled:
        moments.append(job.up_since + limits.settle_s)
    if job.round is not None:
        moments.append(job.round.until)
        if job.min_reached_at is not None:
            moments.append(job.min_reached_at + limits.straggler_s)
    moments.append(min((m.heard_at for m in job.members.values() if m.phase is not Phase.FINISHED), default=job.now) + limits.silence_s)
    moments.extend(m.broken_at + limits.return_s for m in job.members.values() if m.broken_at is not None)
    return min((moment for moment in moments if moment > job.now), default=job.now + CALM_S)
