"""Keep a follower for each job that meets in an etcd, so that no etcd makes another job wait.

`expect` and `forget` write a job's records, and `emit` gets the worlds.
"""

import asyncio
import time
from collections.abc import Callable

from elastic.etcd.follower import Follower, Visit
from elastic.etcd.place import EtcdPlace
from elastic.etcd.records import Seal
from elastic.etcd.room import Room
from elastic.etcd.store import Away, StoreRefused
from elastic.membership import wire

FORGET_S = 600.0
"""Seconds until a job's records are left to their leases, if they cannot be removed."""


class EtcdMembership:
    """The followers of all jobs, in one event loop. `emit` gets each world, at any time."""

    def __init__(
        self,
        *,
        visit: Visit,
        token_for: Callable[[str], str],
        emit: Callable[[wire.WorldReport], None],
        clock: Callable[[], float] = time.monotonic,
        worked_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._visit = visit
        self._token_for = token_for
        self._emit = emit
        self._clock = clock
        self._worked_s = worked_s
        self._followers: dict[str, Follower] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._forgetting: dict[str, float] = {}
        self._room = Room()

    async def expect(self, job_uid: str, place: EtcdPlace, expectation: wire.Expectation) -> None:
        """Write the expectation into the job's etcd. Raise Away if agents cannot read it yet."""
        self._forgetting.pop(job_uid, None)
        follower, task = self._followers.get(job_uid), self._tasks.get(job_uid)
        if follower is None or follower.place != place or task is None or task.done():
            await self._end(job_uid)
            follower = self._followers[job_uid] = self._follower(job_uid, place)
            self._tasks[job_uid] = asyncio.create_task(follower.run())
        await follower.expect(expectation)

    def _follower(self, job_uid: str, place: EtcdPlace) -> Follower:
        seal = Seal(self._token_for(job_uid), job_uid)
        return Follower(
            job_uid, place, seal=seal, visit=self._visit, emit=self._emit, room=self._room, clock=self._clock, worked_s=self._worked_s
        )

    async def forget(self, job_uid: str, place: EtcdPlace | None = None) -> int | None:
        """Remove the job's records, and return its last step. Raise Away while its agents are there, or its etcd does not answer."""
        await self._end(job_uid)
        follower = self._followers.get(job_uid) or (self._follower(job_uid, place) if place is not None else None)
        if follower is None:
            return None
        began = self._forgetting.setdefault(job_uid, self._clock())
        try:
            await follower.clear()
        except (Away, StoreRefused) as error:
            if self._clock() - began < FORGET_S:
                raise Away(str(error)) from None
        self._forgetting.pop(job_uid, None)
        self._followers.pop(job_uid, None)
        return follower.last_step

    async def _end(self, job_uid: str) -> None:
        task = self._tasks.pop(job_uid, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        for job_uid in list(self._tasks):
            await self._end(job_uid)
