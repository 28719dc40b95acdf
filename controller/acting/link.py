"""The connection to the rendezvous server, or to the etcds where jobs meet.

Sends expectations, repeats them after a break, and receives worlds.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Protocol

from elastic.api.book import Leaving, Rescale
from elastic.api.counting import made_again
from elastic.membership import bounds, wire
from elastic.membership.hosts import HostState
from elastic.membership.phases import WorldPhase
from elastic_training.controller.acting.outbox import AT_ONCE, Listener, Outbox
from elastic_training.controller.deciding.actions import Budget, SetExpectation
from elastic_training.controller.facts.hang_seen import HangSeen
from elastic_training.controller.facts.snapshot import WorldSeen
from elastic_training.rendezvous.engine.messages.controller import SilentMember
from elastic_training.rendezvous.engine.messages.doing import Hang


class Server(Listener, Protocol):
    """Part of elastic.membership.client.RendezvousClient that is needed here."""

    def worlds(self, on_open: Callable[[], None] | None = None) -> AsyncIterator[wire.WorldReport]: ...


class RendezvousLink:
    def __init__(
        self,
        server: Server,
        *,
        errors: tuple[type[Exception], ...],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        at_once: int = AT_ONCE,
    ) -> None:
        self.worlds: dict[str, WorldSeen] = {}
        self.forgotten: set[str] = set()
        """Suspended jobs that the server has confirmed to have forgotten, until it gets an expectation of them again."""
        self.last_steps: dict[str, int] = {}
        """Last steps of jobs that the server has forgotten."""
        self._to_confirm: set[str] = set()
        self._server = server
        self._clock = clock
        self._outbox = Outbox(
            server,
            encode=lambda told: expectation(told, now=clock()),
            errors=errors,
            heard=self._was_heard,
            refused=self._was_refused,
            at_once=at_once,
        )
        self._changed: Callable[[str], None] = lambda job_uid: None

    def tell(self, job_uid: str, told: SetExpectation, *, is_awaited: bool) -> bool:
        """Return whether the server has acknowledged exactly this expectation.

        If it has not and the caller awaits that, the job is reported as changed when it does.
        """
        self.forgotten.discard(job_uid)
        self.last_steps.pop(job_uid, None)
        self._to_confirm.discard(job_uid)
        return self._outbox.tell(job_uid, told, is_awaited=is_awaited)

    def forget(self, job_uid: str, *, is_awaited: bool = False) -> None:
        """Forget the job. If the caller awaits that, the job is reported as changed once it is in `forgotten`."""
        if is_awaited:
            self._to_confirm.add(job_uid)
        else:
            self.forgotten.discard(job_uid)
            self._to_confirm.discard(job_uid)
        if is_awaited or job_uid in self._outbox or job_uid in self.worlds:
            self._outbox.forget(job_uid)

    def drop(self, job_uid: str) -> None:
        """Forget everything about a job that is gone."""
        self.last_steps.pop(job_uid, None)
        self.forget(job_uid)

    async def run(self, changed: Callable[[str], None]) -> None:
        """Listen until cancelled, and call `changed` with the uid of each job whose world changed."""
        self._changed = changed

        def on_open() -> None:
            self.worlds.clear()  # the whole state comes now, perhaps of another server, which may not know every job
            self._outbox.repeat()  # and of our expectations it may know none: agents present their worlds, and we present ours

        try:
            async for heard in self._server.worlds(on_open=on_open):
                if heard.asks:
                    self._outbox.repeat_for(heard.job)
                if self._takes(heard):
                    changed(heard.job)
        finally:
            await self._outbox.close()

    def _takes(self, heard: wire.WorldReport) -> bool:
        """Return whether the report changes anything. If not, the job needs no reconcile."""
        before = self.worlds.get(heard.job)
        if not heard.forgotten:
            self.forgotten.discard(heard.job)  # an agent of the run before has come back
        if heard.forgotten:
            self.worlds.pop(heard.job, None)
        elif heard.phase == WorldPhase.UNREACHED:
            self.worlds[heard.job] = WorldSeen(heard.generation, frozenset(), phase=heard.phase, trouble=heard.reason)
        elif heard.phase == WorldPhase.UNREADABLE:
            self.worlds[heard.job] = replace(before or WorldSeen(0, frozenset()), trouble=heard.reason)
        else:
            self.worlds[heard.job] = _world(heard, before, now=self._clock())
        return heard.forgotten or self.worlds[heard.job] != before

    def _was_heard(self, job_uid: str, *, is_forgotten: bool, last_step: int | None) -> None:
        if is_forgotten:
            self.worlds.pop(job_uid, None)
            if last_step is not None:
                self.last_steps[job_uid] = max(last_step, self.last_steps.get(job_uid, 0))
            if job_uid in self._to_confirm:
                self._to_confirm.discard(job_uid)
                self.forgotten.add(job_uid)
            elif last_step is None:
                return
        self._changed(job_uid)

    def _was_refused(self, job_uid: str, words: str) -> None:
        before = self.worlds.get(job_uid) or WorldSeen(0, frozenset())
        if before.trouble != words:
            self.worlds[job_uid] = replace(before, trouble=words)
            self._changed(job_uid)


def expectation(told: SetExpectation, *, now: datetime) -> wire.Expectation:
    """Return the message. Times become durations, because the clocks of two hosts are never compared; long fields are cut."""
    return wire.Expectation(
        members=told.members,
        pending=told.pending,
        leaving=tuple(
            wire.LeaveOrder(
                member=entry.member,
                by_s=_left_s(entry, now),
                cause=entry.cause,
                pod_uid=entry.uid,
                when_replaced=entry.member in told.when_replaced,
            )
            for entry in told.leaving
        ),
        ended=tuple(
            wire.Ended(
                member=end.member,
                pod_uid=end.pod_uid,
                run=_count(end.run),
                cause=end.cause.value,
                is_last=end.is_last,
                usage_error=end.usage_error,
                own_limit=end.own_limit,
            )
            for end in told.ended
        ),
        finished=told.finished,
        restarts=dict(told.restarts),
        unsettled=told.unsettled[-wire.MAX_UNSETTLED :],
        settled_to=told.settled_to,
        closed=bounds.clipped(told.closed),
        charged=tuple(
            wire.Charge(cause=charge.cause, age_s=_seconds((now - charge.at).total_seconds()), count=charge.count)
            for charge in told.charged[-wire.MAX_CHARGES :]
        ),
        fruitless=told.fruitless,
        step=told.step,
        min=told.least,
        max=told.most,
        sizes=told.sizes,
        budget=_budget(told.budget),
        grace_s=_seconds(told.grace_s),
        floor=told.floor,
        term=told.term,
        hosts=told.hosts,
        newcomers=told.newcomers,
        state_s=_seconds(told.state_s),
        awaited=told.awaited,
        await_s=_seconds(told.await_s),
    )


def _budget(budget: Budget) -> wire.Budget:
    return wire.Budget(
        max_restarts=None if budget.max_restarts is None else _count(budget.max_restarts),
        by_cause={cause: _count(most) for cause, most in budget.by_cause},
        window_s=budget.window_s,
        without_progress=None if budget.without_progress is None else _count(budget.without_progress),
        hang_s=budget.hang_s,
        first_step_s=budget.first_step_s,
        same_error=None if budget.same_error is None else _count(budget.same_error),
        pace_s=budget.pace_s,
    )


def _left_s(entry: Leaving, now: datetime) -> float:
    return _seconds((entry.by - now).total_seconds()) if entry.by is not None else 0.0


def _seconds(seconds: float) -> float:
    return min(max(0.0, seconds), bounds.MOST_SECONDS)


def _count(number: int) -> int:
    return min(number, bounds.MOST_COUNTED)


def _world(heard: wire.WorldReport, known: WorldSeen | None, *, now: datetime) -> WorldSeen:
    standing = heard.standing
    return WorldSeen(
        generation=heard.generation,
        members=frozenset(member.name for member in heard.members),
        phase=heard.phase,
        ranked=tuple(member.name for member in sorted(heard.members, key=lambda member: member.rank)),
        size=standing.size if standing is not None else None,
        incarnations={member.name: member.incarnation for member in heard.members},
        waiting=frozenset(heard.waiting),
        since=_since(heard, known, now=now),
        has_stepped=standing is not None and standing.has_stepped,
        reason=heard.reason,
        closed=heard.closed,
        unacknowledged_restarts=heard.unacknowledged_restarts,
        explained=heard.explained,
        fruitless=heard.fruitless,
        step=heard.step,
        highest=heard.highest,
        rescale=_rescale(heard.rescale) if heard.rescale is not None else None,
        hosts=heard.hosts if isinstance(heard.hosts, HostState) else None,
        fault=heard.fault,
        hang=_hang(heard.hang, known.hang if known is not None else None, now=now),
        stragglers=heard.stragglers,
        ended_early=heard.ended_early,
        failing_saves=heard.failing_saves,
        silent=_silent(heard.silent, known.silent if known is not None else {}, now=now),
    )


def _silent(heard: Sequence[SilentMember], known: Mapping[str, datetime], *, now: datetime) -> Mapping[str, datetime]:
    """Return when each silent member was last heard, by our clock. The time of one that is known does not change."""
    return {member.name: known.get(member.name) or now - timedelta(seconds=member.ago_s) for member in heard}


def _rescale(heard: wire.RescaleReport) -> Rescale:
    before, after = heard.step_before, heard.step_after
    steps_lost = made_again(before, after) if before is not None and after is not None else 0
    return Rescale(**asdict(heard), steps_lost=steps_lost)


def _hang(heard: Hang | None, known: HangSeen | None, *, now: datetime) -> HangSeen | None:
    """Return the hang with the time at which it was found. The time of a known hang does not change."""
    if heard is None:
        return None
    timeless = replace(heard, ago_s=0.0)
    if known is not None and known.hang == timeless:
        return known
    return HangSeen(timeless, now - timedelta(seconds=heard.ago_s))


def _since(heard: wire.WorldReport, known: WorldSeen | None, *, now: datetime) -> datetime | None:
    """Return when the world was formed, by our clock. For a world without an age, that is when it was first reported."""
    if not heard.members:
        return None
    formed = now - timedelta(seconds=heard.standing.age_s if heard.standing is not None else 0.0)
    is_known = known is not None and known.generation == heard.generation
    return known.since or formed if known is not None and is_known else formed
