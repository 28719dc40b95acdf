"""All jobs of a server: each job's engine, the connections of its members, and the one clock that drives them.

The hub feeds events and carries out effects. It knows neither HTTP nor tokens: a connection is an object with `send` and `end`.
A bug in the engine stops no job's timer: a decision that raises is logged with the job's story, and made again a second later.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from elastic.membership.bounds import MAX_MEMBERS
from elastic.membership.hosts import HostFacts
from elastic.membership.training import Report, ReportAnswer, TrainingProgress, TrainingSignal
from elastic.membership.wire import Expectation, FromMember, Join, WorldReport
from elastic_training.rendezvous.engine.events import Event, Expected, Lost, Resumed, Said, Stepped, Tick
from elastic_training.rendezvous.engine.handlers.arrivals import is_retired
from elastic_training.rendezvous.engine.handlers.expectations import is_stale
from elastic_training.rendezvous.engine.messages.in_place import Put
from elastic_training.rendezvous.engine.state.job import JobState
from elastic_training.rendezvous.engine.state.timings import Limits
from elastic_training.rendezvous.engine.step import Cut, Effect, Publish, Refuse, SendView, Wake, begin, step_all
from elastic_training.rendezvous.engine.views import summary
from elastic_training.rendezvous.server.active_job import ActiveJob, Link
from elastic_training.rendezvous.server.fault import RETRY_S, Remedy, Undecided
from elastic_training.rendezvous.server.host_lists import HostLists
from elastic_training.rendezvous.server.job_log import log_changes
from elastic_training.rendezvous.server.news import News
from elastic_training.rendezvous.server.progress_feed import ProgressFeed, progress_of, signals_of
from elastic_training.rendezvous.server.signs import Signs
from elastic_training.rendezvous.server.story import KEPT, in_short
from elastic_training.rendezvous.server.trainer_status import TrainerStatus, told_now

log = logging.getLogger(__name__)

MAX_JOBS = 20_000
EMPTY_JOB_KEPT_S = 3600.0
PULSE_S = 0.5
LATE_S = 0.5
"""A pulse that comes so late shows that this process was paused: it was stopped, starved, or a single decision took that long."""
UNAPPLIED = "the expectation was not applied, because a decision about this job failed in the server; send it again"
REPLACED = "a newer incarnation of this member has come"


class Full(Exception):
    """The server already holds as much as it may."""


UNEXPECTED = 64
"""Members that may present themselves beyond the expected ones: pods may come before the expectation that names them."""


class Hub:
    """The jobs of one server process."""

    step_all = staticmethod(step_all)

    def __init__(self, *, instance: str, clock: Callable[[], float], limits: Limits | None = None) -> None:
        self._instance = instance
        self._clock = clock
        self._limits = limits or Limits()
        self._up_since = self._alive_at = clock()
        self._pulse_timer: asyncio.TimerHandle | None = None
        self._jobs: dict[str, ActiveJob] = {}
        self.failed_decisions = self.dropped_states = 0
        """Numbers of decisions that raised, and of jobs' states that were dropped for that reason."""
        self._news = News(most_forgotten=MAX_JOBS)
        self.signs = Signs(clock)
        self.progress = ProgressFeed(clock=clock, most_forgotten=MAX_JOBS)
        self.hosts = HostLists(instance=instance, clock=clock, changed=self._publish, stepped=self.progress.stepped)

    # --- events in ---

    def expect(self, uid: str, expectation: Expectation) -> bool:
        """Take the controller's expectation, and decide at once; False if a newer one is known.

        Raises Undecided if the decision failed: then the expectation is not applied, and the controller must send it again.
        """
        active = self._active_job(uid)
        if is_stale(active.job.membership.expectation, expectation):
            return False
        self.signs.led(expectation.term)
        if active.fault.undecided_until is None:
            active.note(Expected(expectation), self._clock())
            self._decide(active)
        if active.job.membership.expectation is not expectation:
            raise Undecided(active.fault.reason or UNAPPLIED)
        if isinstance(expectation.hosts, HostFacts):
            self.hosts.expect(uid, expectation.hosts, grace_s=expectation.grace_s)
        return True

    def forget(self, uid: str) -> int | None:
        """Drop a finished job, its members and its state. Return the highest step that was reported."""
        active = self._jobs.pop(uid, None)
        if active is None:
            return None
        if active.timer is not None:
            active.timer.cancel()
        for _, link in list(active.links.values()):
            link.end("the job is over")
        through_launcher = self.hosts.forget(uid)
        self.progress.forget(uid, active.told)
        self._news.forget(uid)
        return active.job.progress.step if through_launcher is None else through_launcher

    def attach(self, uid: str, *, name: str, link: Link, message: Join) -> None:
        """Take a member's new connection, which presents the member."""
        active = self._active_job(uid)
        if is_retired(active.job, name, message.incarnation):
            link.end(REPLACED)
            return
        previous = active.links.get(name)
        if previous is None and name not in active.job.membership.members and self._is_crowded(active, name):
            raise Full(f"{len(active.links)} members are here, and {name} is not one that the controller expects")
        active.links[name] = (message.incarnation, link)
        if previous is not None and previous[0] == message.incarnation:
            previous[1].close()
        elif previous is not None:
            previous[1].end(REPLACED)
        if active.exchange.round:
            link.give(active.exchange)
        self._apply(active, Said(name, message.incarnation, message))

    def said(self, uid: str, *, name: str, incarnation: str, message: FromMember) -> bool:
        """Take a message of a member's connection. Return whether it is a value of the job's present exchange."""
        if (active := self._jobs.get(uid)) is None:
            return False
        if isinstance(message, Put):
            return active.put(name, incarnation, message)
        self._apply(active, Said(name, incarnation, message))
        return False

    def detach(self, uid: str, *, name: str, incarnation: str, link: Link) -> None:
        """Note that a member's connection broke."""
        if (active := self._jobs.get(uid)) is None or name not in active.links or active.links[name][1] is not link:
            return
        del active.links[name]
        self._apply(active, Lost(name, incarnation))

    # --- worlds out ---

    @property
    def version(self) -> int:
        return self._news.version

    def job(self, uid: str) -> JobState | None:
        return active.job if (active := self._jobs.get(uid)) is not None else None

    def jobs(self) -> list[JobState]:
        return [active.job for active in self._jobs.values()]

    def world(self, uid: str) -> WorldReport | None:
        return self._world(active) if (active := self._jobs.get(uid)) is not None else None

    def changed_since(self, version: int) -> tuple[list[str], list[str]]:
        """Return the jobs that changed after this version of the hub, and those that were forgotten."""
        changed, gone = self._news.since(version)
        return changed, [uid for uid in gone if uid not in self._jobs]

    def since(self, version: int) -> list[WorldReport]:
        """Return the worlds that changed after this version of the hub."""
        changed, gone = self.changed_since(version)
        worlds = [self._world(self._jobs[uid]) for uid in changed]
        return worlds + [WorldReport(job=uid, generation=0, phase="forgotten", forgotten=True) for uid in gone]

    def _world(self, active: ActiveJob) -> WorldReport:
        world, hosts = summary(active.job), self.hosts.state(active.job.uid)
        asks = world.asks or (active.asks and active.job.membership.expectation is None)
        return replace(world, hosts=hosts, fault=active.fault.reason, asks=asks)

    async def wait_newer(self, version: int) -> int:
        """Wait until something changed after this version."""
        return await self._news.wait_newer(version)

    # --- training signals ---

    def report(self, uid: str, report: Report) -> ReportAnswer:
        """Keep a worker's newest report, and answer what the rendezvous asks of it. Reports of non-members are not kept."""
        if (active := self._jobs.get(uid)) is None or report.member not in active.job.membership.members:
            return ReportAnswer()
        active.keep(report, self._clock())
        if report.generation and report.step is not None:
            self._step_reported(active, report.generation, report.step)
            self.progress.stepped(uid)
        return active.answer(report.member, self._clock())

    def may_report(self, uid: str) -> bool:
        """Return whether the job's program may report its status now."""
        active = self._jobs.get(uid)
        return active.may_report(self._clock) if active is not None else self.progress.others.may_report(uid)

    def take_status(self, uid: str, status: TrainerStatus) -> None:
        """Keep what the job's program reports. A step counts for the present world. The end of training is passed on at once."""
        if (active := self._jobs.get(uid)) is None:
            self.progress.take_status(uid, status)
            return
        known, now, group = active.told, self._clock(), active.job.membership
        generation = group.generation if group.world is not None and not group.is_draining else 0
        active.told = told = told_now(known, status, generation=generation, now=now)
        if generation and told.step is not None:
            self._step_reported(active, generation, told.step)
        self.progress.reported(uid, is_end=told.is_complete and not known.is_complete)

    def signals(self, uid: str) -> list[TrainingSignal]:
        """Return the newest report of each worker of a job."""
        active = self._jobs.get(uid)
        if (through_launcher := self.hosts.signal(uid)) is not None:
            return [through_launcher]
        return signals_of(active.reports, self._clock()) if active is not None else []

    def progress_since(self, version: int) -> list[TrainingProgress]:
        """Return the progress of the jobs for which the feed has news after this version."""
        changed, gone = self.progress.since(version)
        there, now = [active for uid in changed if (active := self._jobs.get(uid)) is not None], self._clock()
        told = [self.hosts.progress(one.job.uid) or progress_of(one.job, one.reports, one.told, now) for one in there]
        told += [progress for uid in changed if uid not in self._jobs and (progress := self.progress.others.progress(uid)) is not None]
        return [*told, *(self.progress.gone(uid) for uid in gone)]

    def _step_reported(self, active: ActiveJob, generation: int, step: int) -> None:
        """Pass a step on if the engine does not know it: if a thousand workers report the same step, only the first report counts."""
        known, phases = active.job.progress.step_in_world, active.job.timings.phases
        if known is None or step > known or (phases is not None and phases.stepped is None):
            self._apply(active, Stepped(generation, step))

    # --- inside ---

    def _is_crowded(self, active: ActiveJob, name: str) -> bool:
        job = active.job
        present = max(len(active.links), len(job.membership.members))
        if job.membership.expectation is None:
            return present >= MAX_MEMBERS
        return name not in job.membership.expected and present >= len(job.membership.expected) + len(job.membership.notices) + UNEXPECTED

    def _active_job(self, uid: str) -> ActiveJob:
        active = self._jobs.get(uid)
        if active is None:
            if len(self._jobs) >= MAX_JOBS:
                raise Full(f"this server holds {MAX_JOBS} jobs already")
            job = begin(uid, instance=self._instance_for(uid), up_since=self._up_since, now=self._clock(), limits=self._limits)
            active = self._jobs[uid] = ActiveJob(job)
            self.progress.others.drop(uid)
            if self._pulse_timer is None:
                self._alive_at = self._clock()
                self._pulse()
        return active

    def _instance_for(self, uid: str) -> str:
        """Return the name in the ids of a job's worlds. A forgotten job may begin again at a generation that this server sealed before."""
        forgotten_at = self._news.forgotten_at(uid)
        return f"{self._instance}.{forgotten_at}" if forgotten_at is not None else self._instance

    def _apply(self, active: ActiveJob, event: Event) -> None:
        """Take an event in. The events of one turn of the loop are decided on together; after a failed decision, all until the next one."""
        if active.fault.undecided_until is not None:
            return  # all members present themselves again afterwards
        active.note(event, self._clock())
        if not active.is_due:
            self._decide_soon(active)

    def _decide_soon(self, active: ActiveJob) -> None:
        active.is_due = True
        asyncio.get_running_loop().call_soon(self._decide, active)

    def _pulse(self) -> None:
        """Show that the process runs, as long as there are jobs."""
        self._notice_standstill()
        self._alive_at = self._clock()
        self._pulse_timer = asyncio.get_running_loop().call_later(PULSE_S, self._pulse) if self._jobs else None

    def _notice_standstill(self) -> None:
        """Note a pause of this process before it decides by silence: messages that came during the pause have yet to be read."""
        pause_s = self._clock() - self._alive_at - PULSE_S
        if pause_s < LATE_S:
            return
        log.warning("this process was paused", extra={"seconds": round(pause_s, 1), "jobs": len(self._jobs)})
        self._alive_at = self._clock()
        for active in self._jobs.values():
            if active.fault.undecided_until is None:
                active.note(Resumed(pause_s), self._clock(), is_first=True)
                if not active.is_due:
                    self._decide_soon(active)

    def _decide(self, active: ActiveJob) -> None:
        """Decide on all events that wait. A bug in the engine must not stop the job's timer, nor touch another job."""
        self._notice_standstill()
        before, events = active.job, active.inbox
        active.inbox, active.is_due = [], False
        if self._jobs.get(before.uid) is not active or not events:
            return  # forgotten in the meantime, or decided with an expectation
        try:
            active.job, effects = self.step_all(before, events, self._clock())
            self._carry_out(active, effects)
            log_changes(before, active.job)
        except Exception as error:
            self._failed(active, events, error, is_applied=active.job is not before)
            return
        if active.fault.succeeded(has_word=active.job.membership.expectation is not None):
            self._publish(active.job.uid)
        if any(not isinstance(event, Tick | Resumed) for event in events):
            active.touched = active.job.now

    def _carry_out(self, active: ActiveJob, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendView(member=name, view=view):
                    if name in active.links:
                        active.links[name][1].send(view)
                case Refuse(member=name, incarnation=incarnation):
                    active.refuse(name, incarnation, REPLACED)
                case Cut(member=name, incarnation=incarnation):
                    active.cut(name, incarnation)
                case Publish():
                    self._publish(active.job.uid)
                case Wake(at=at):
                    self._set_timer(active, at)

    def _failed(self, active: ActiveJob, events: list[Event], error: Exception, *, is_applied: bool) -> None:
        """Lose nothing of a decision that failed.

        Members whose messages it had present themselves again with their whole state, and the controller sends its expectation again. If
        the events were applied, any view may be unsent, so all members do.
        """
        self.failed_decisions += 1
        log.exception(
            "a decision about a job failed",
            extra={"uid": active.job.uid, "events": [in_short(event) for event in events[-KEPT:]], "story": active.story.lines()},
        )
        if is_applied:
            active.cut_all()
        else:
            for event in events:
                if isinstance(event, Said):
                    active.cut(event.member, event.incarnation)
            active.inbox = [event for event in events if isinstance(event, Lost | Resumed)] + active.inbox
        active.is_due = True
        remedy = active.fault.failed(error, now=self._clock())
        if remedy is Remedy.START_OVER:
            self._start_over(active)
        elif remedy is Remedy.WAIT:
            log.error("a job is left undecided for a while", extra={"uid": active.job.uid, "reason": active.fault.reason})
            active.inbox = []
            self._publish(active.job.uid)
        self._wake_at(active, self._clock() + RETRY_S)

    def _start_over(self, active: ActiveJob) -> None:
        """Drop the job's state, as a restart of the server does. Members that train present their world, which is adopted.

        The generation stays, so that no world gets the number of a former one.
        """
        self.dropped_states += 1
        uid, now = active.job.uid, self._clock()
        self._publish(uid)
        job = begin(uid, instance=f"{self._instance}.{self.version}", up_since=now, now=now, limits=self._limits)
        active.start_over(replace(job, membership=replace(job.membership, generation=active.job.membership.generation)))
        log.error("a job's state was dropped: its members and the controller report it again", extra={"uid": uid})

    def _publish(self, uid: str) -> None:
        self._news.publish(uid)
        self.progress.world_changed(uid)

    def _set_timer(self, active: ActiveJob, at: float) -> None:
        """Wake up at this moment, unless an earlier one is asked for already."""
        self._wake_at(active, active.touched + EMPTY_JOB_KEPT_S if active.is_empty else at)

    def _wake_at(self, active: ActiveJob, at: float) -> None:
        if active.timer is not None and active.wake_at <= at:
            return
        if active.timer is not None:
            active.timer.cancel()
        active.wake_at = at
        active.timer = asyncio.get_running_loop().call_later(max(0.0, at - self._clock()), self._tick, active)

    def _tick(self, active: ActiveJob) -> None:
        active.timer = None
        if active.fault.undecided_until is not None:
            if not active.fault.is_waiting(now=self._clock()):
                self._start_over(active)
            self._wake_at(active, self._clock() + RETRY_S)
            return
        if active.is_empty and self._clock() >= active.touched + EMPTY_JOB_KEPT_S:
            self.forget(active.job.uid)
            return
        active.note(Tick(self.signs.last_at()), self._clock())
        self._decide_soon(active)
