"""Run the loop: take a key from the queue, observe its job, plan, carry out the plan, and come back when the plan says so.

A job that fails to reconcile delays only itself.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import msgspec

from elastic.api import SpecError, parse, status_of
from elastic.api.job import JobStatus
from elastic.api.kinds import KINDS
from elastic.kube.errors import KubeError
from elastic.kube.resources import Object
from elastic.membership.tokens import Role
from elastic.runtime.fence import is_lapse
from elastic.runtime.terminating import PAUSE_S
from elastic.runtime.workqueue import WorkQueue
from elastic_training.controller.acting import status_debounce
from elastic_training.controller.acting.apply import Applier, Outcome
from elastic_training.controller.acting.secrets import Secrets
from elastic_training.controller.deciding.actions import Plan
from elastic_training.controller.deciding.lifecycle.invalid import plan_for_invalid
from elastic_training.controller.deciding.plan import plan
from elastic_training.controller.deciding.replicas import creation_backoff
from elastic_training.controller.facts.keys import Key
from elastic_training.controller.facts.settings import Settings
from elastic_training.controller.facts.snapshot import KeyPair, NotCreated, WorldSeen
from elastic_training.controller.frameworks import mpi_ssh
from elastic_training.controller.running.keypair import new_key_pair
from elastic_training.controller.running.metrics import Metrics
from elastic_training.controller.watching.observe import Observer, WatchScope

log = logging.getLogger(__name__)
GATHER_S = 0.03
LONGEST_BLINDNESS_S = 60.0
"""Seconds without a sign of our own writes after which an old view is better than none."""
LEAST_PAUSE_S = 0.5
"""Seconds between two looks that only time asks for: a clock that steps back must not make one job fill the loop."""


@dataclass(slots=True)
class PendingWrites:
    """The newest version that was written in each scope, and until when a view that does not show it yet is too old to decide on."""

    versions: dict[WatchScope, str]
    until: float
    is_awaited: bool = False


class Reconciler:
    def __init__(
        self,
        observer: Observer,
        applier: Applier,
        queue: WorkQueue[Key],
        secrets: Secrets,
        *,
        settings: Settings,
        worlds: Mapping[str, WorldSeen],
        has_forgotten: Callable[[str], bool],
        last_steps: Mapping[str, int],
        token_for: Callable[[str, Role], str],
        metrics: Metrics,
        new_keys: Callable[[], KeyPair] = new_key_pair,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.term = 0
        self._new_keys = new_keys
        self._clock = clock
        self._now = now
        self._observer = observer
        self._applier = applier
        self._queue = queue
        self._secrets = secrets
        self._settings = settings
        self._worlds = worlds
        self._has_forgotten = has_forgotten
        self._last_steps = last_steps
        self._token_for = token_for
        self._metrics = metrics
        self._uids: dict[Key, str] = {}
        self._pending: dict[Key, PendingWrites] = {}
        self._not_created: dict[Key, tuple[NotCreated, ...]] = {}
        self._held: dict[Key, status_debounce.PendingStatus] = {}
        self._is_working = False
        self._under_way, self._is_finishing, self._is_idle = 0, False, asyncio.Event()
        self._is_idle.set()

    async def run(self, workers: int) -> None:
        """Work until cancelled. Nothing is decided before the view is complete."""
        await self._observer.wait_synced()
        self._is_working = True
        try:
            async with asyncio.TaskGroup() as tasks:
                for key in self._observer.job_keys():
                    self._queue.add(key)
                for uid in list(self._worlds):
                    self.world_changed(uid)
                for _ in range(workers):
                    tasks.create_task(self._work())
        finally:
            self._is_working = False

    def changed(self, key: Key) -> None:
        """Reconcile a job soon, because something happened to it.

        Changes come in bursts, and one reconcile a moment later sees them all. A standby only keeps its view. When it begins to work, it
        reconciles all jobs.
        """
        if self._is_working:
            self._queue.add_at(key, self._clock() + GATHER_S)

    async def finish(self, *, within_s: float) -> None:
        """Begin no more reconciles, and give those that have begun time to end."""
        self._is_finishing = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._is_idle.wait()

    def world_changed(self, uid: str) -> None:
        """Reconcile a job whose world changed, or for which the server acknowledged what it must know before pods are deleted.

        A job that only the server still knows is gone, perhaps since before this process began. The controller that leads lets the server
        forget such a job once the view is complete.
        """
        if not self._is_working:
            return
        key = self._observer.key_of_uid(uid)
        if key is not None:
            self._queue.add(key)
        elif self._observer.sees_all:
            self._applier.forget(uid)

    async def _work(self) -> None:
        while True:
            key, since = await self._queue.take()
            if self._is_finishing:
                return
            if not self._is_in_view(key):
                self._queue.done(key)
                continue
            began, failed = self._clock(), True
            self._begin()
            try:
                failed = not await self.reconcile(key)
            except Exception:
                log.exception("reconcile failed", extra=self._fields(key))
            finally:
                self._end()
                self._queue.done(key, failed=failed)
                self._metrics.reconciled(seconds=self._clock() - began, waited=began - since, failed=failed)

    def _begin(self) -> None:
        self._under_way += 1
        self._is_idle.clear()

    def _end(self) -> None:
        self._under_way -= 1
        if self._under_way == 0:
            self._is_idle.set()

    async def reconcile(self, key: Key) -> bool:
        """Reconcile a job once. Return False if that must be repeated soon."""
        job = self._observer.job(key)
        self._let_go(key, job)
        if job is None:
            self._forget(key)
            return True
        now = self._now().replace(microsecond=0)
        stored, planned, held = self._planned(key, job, now)
        try:
            if await self._secrets.look(key, job, planned, is_starved=self._observer.is_starved(key)):
                stored, planned, held = self._planned(key, job, now)
        except KubeError as error:
            self._report(key, [error])
            if error.code in (401, 403):
                await self._say_that_a_right_is_missing(key, job, stored, error, now=now)
            return False
        outcome = await self._applier.carry_out(key, job, planned, old=stored, now=now)
        self._secrets.remember(key, outcome.secrets)
        self._count(key, stored, outcome)
        self._report(key, outcome.errors)
        self._remember_refusals(key, outcome)
        if outcome.written:
            self._pending[key] = PendingWrites(outcome.written, self._clock() + LONGEST_BLINDNESS_S)
        if held is not None:
            self._held[key] = held
        elif not outcome.errors:
            self._held.pop(key, None)
        self._come_back(key, planned, held)
        if outcome.is_terminating:
            self._queue.add_at(key, self._clock() + PAUSE_S)
        return not outcome.errors

    async def _say_that_a_right_is_missing(self, key: Key, job: Object, stored: JobStatus, error: KubeError, *, now: datetime) -> None:
        """Say in the status and an Event that the job's Secrets cannot be read. Nothing else is done for the job until they can."""
        await self._applier.warn(job, "FailedGetSecret", error, now=now)
        status = creation_backoff.waiting_for_right(stored, error.message, now=now)
        outcome = await self._applier.carry_out(key, job, Plan(status=status), old=stored, now=now)
        self._report(key, outcome.errors)
        if outcome.written:
            self._pending[key] = PendingWrites(outcome.written, self._clock() + LONGEST_BLINDNESS_S)

    def _remember_refusals(self, key: Key, outcome: Outcome) -> None:
        """Remember refusals until a reconcile has written them down. From then on the plan itself holds these pods back."""
        if outcome.not_created:
            self._not_created[key] = tuple(outcome.not_created)
        elif not outcome.errors:
            self._not_created.pop(key, None)

    def _forget(self, key: Key) -> None:
        """Forget everything about a job that is gone."""
        self._queue.forget(key)
        self._observer.stop_waiting(key)
        self._pending.pop(key, None)
        self._held.pop(key, None)
        self._not_created.pop(key, None)
        self._secrets.forget(key)

    def _come_back(self, key: Key, planned: Plan, held: status_debounce.PendingStatus | None) -> None:
        """Come back to the job when time alone asks for another reconcile."""
        if held is not None:
            self._queue.add_at(key, held.until)
        if planned.look_again_at is not None:
            pause_s = (planned.look_again_at - self._now()).total_seconds()
            self._queue.add_at(key, self._clock() + max(pause_s, LEAST_PAUSE_S))

    def _is_in_view(self, key: Key) -> bool:
        """Return whether the view shows our own last writes.

        A decision on an older view could undo a write or repeat it. If the view is behind, the key comes back once it has caught up or has
        taken too long. No worker waits for that.
        """
        pending = self._pending.get(key)
        if pending is None or self._observer.job(key) is None:
            return True
        missing = {scope: version for scope, version in pending.versions.items() if not self._observer.has_reached(scope, version, key=key)}
        if not missing or pending.until <= self._clock():
            self._observer.stop_waiting(key)
            del self._pending[key]
            return True
        if not pending.is_awaited:
            pending.is_awaited = True
            for scope, version in missing.items():
                self._observer.when_reached(scope, version, key=key, call=lambda: self._queue.add(key))
            self._queue.add_at(key, pending.until)
        return False

    def _let_go(self, key: Key, job: Object | None) -> None:
        """Forget a job that is gone or was created again under its name, also at the rendezvous server."""
        uid = job["metadata"]["uid"] if job is not None else None
        known = self._uids.get(key)
        if known is not None and known != uid:
            self._applier.forget(known)
        if uid is None:
            self._uids.pop(key, None)
        else:
            self._uids[key] = uid

    def _fields(self, key: Key) -> dict[str, str]:
        return key.fields(self._uids.get(key, ""))

    def _report(self, key: Key, errors: Iterable[Exception]) -> None:
        for error in errors:
            # A conflict with another writer is normal: the next reconcile sees what that one wrote.
            is_lost_race = isinstance(error, KubeError) and error.reason == "Conflict"
            level = logging.DEBUG if is_lost_race or is_lapse(error) else logging.WARNING
            log.log(level, "reconcile failed", extra=self._fields(key) | {"error": str(error)})

    def _count(self, key: Key, old: JobStatus, outcome: Outcome) -> None:
        framework = KINDS[key.kind].framework
        if outcome.status is not None:
            self._metrics.changed(namespace=key.namespace, framework=framework, old=old, new=outcome.status)
            for condition in outcome.status.conditions[-1:]:
                if condition.reason not in (last.reason for last in old.conditions[-1:]):
                    log.info("the state of a job changed", extra=self._fields(key) | {"reason": condition.reason, "why": condition.message})
        if outcome.job_is_gone:
            self._metrics.deleted(namespace=key.namespace, framework=framework)

    def _planned(self, key: Key, job: Object, now: datetime) -> tuple[JobStatus, Plan, status_debounce.PendingStatus | None]:
        """Return the stored status, what to do in this reconcile, and the part of the new status that is held back."""
        held, uid = self._held.get(key), job["metadata"]["uid"]
        try:
            parsed, warnings = parse(job, stored=True)
        except SpecError as error:
            stored = status_of(job)
            status = status_debounce.believed(held, uid=uid, stored=stored)
            planned = plan_for_invalid(KINDS[key.kind], job, status=status, problems=error.problems, now=now)
            return stored, replace(planned, status=planned.status or status), None
        stored = parsed.status
        parsed = msgspec.structs.replace(parsed, status=status_debounce.believed(held, uid=uid, stored=stored))
        snapshot = self._observer.snapshot(
            key,
            job,
            now=now,
            settings=self._settings,
            world=self._worlds.get(uid),
            is_forgotten=self._has_forgotten(uid),
            last_step=self._last_steps.get(uid),
            token=self._token_for(uid, Role.AGENT),
            launcher_token=self._token_for(uid, Role.LAUNCHER),
            etcd_password=self._token_for(uid, Role.ETCD),
            term=self.term,
        )
        owned = (*snapshot.owned, *self._secrets.of(key, uid))
        status_token = self._token_for(uid, Role.STATUS)
        snapshot = replace(snapshot, owned=owned, not_created=self._not_created.get(key, ()), status_token=status_token)
        keys = self._new_keys() if mpi_ssh.lacks_keys(parsed, snapshot) else None
        planned = plan(parsed, replace(snapshot, remarks=tuple(map(str, warnings)), fresh_keys=keys))
        held = status_debounce.held_back(held, parsed, planned, stored=stored, now=self._clock())
        return stored, planned if held is None else status_debounce.without_what_waits(planned), held
