"""Run everything that talks to etcds in one thread with its own event loop, so that no etcd takes time from the controller's loop.

This module connects the two loops. It has the same interface as the rendezvous server's client.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from elastic.etcd.membership import EtcdMembership
from elastic.etcd.messages import NotInstalled
from elastic.etcd.place import EtcdPlace
from elastic.etcd.store import Away, StoreRefused
from elastic.etcd.visits import Own, ReadSecret, Visitor
from elastic.membership import wire

log = logging.getLogger(__name__)
CENSUS_S = 60.0
"""Seconds between two looks at the users of the installation's etcd."""
END_S = 3.0
"""Seconds for the thread to cancel its work and to end."""

Result = TypeVar("Result")


class EtcdThread:
    """A thread that starts with the first job that meets in an etcd. `token_for` gives the token that seals a job's records."""

    def __init__(
        self, *, token_for: Callable[[str], str], read_secret: ReadSecret, own: Own | None = None, follows_others: bool = True
    ) -> None:
        self._token_for = token_for
        self._read_secret = read_secret
        self._own = own
        self._follows_others = follows_others
        self._places: dict[str, EtcdPlace] = {}
        self._home: asyncio.AbstractEventLoop | None = None
        self._worlds: asyncio.Queue[wire.WorldReport] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._membership: EtcdMembership | None = None
        self._thread: threading.Thread | None = None
        self._ending = asyncio.Event()

    def meet_at(self, job_uid: str, place: EtcdPlace) -> None:
        """Note the place of this job's records."""
        self._places[job_uid] = place

    async def expect(self, job_uid: str, expectation: wire.Expectation) -> None:
        membership, place = self._started(), self._places.get(job_uid)
        if place is None:
            raise Away("the job's place in an etcd is not known yet")
        await self._there(membership.expect(job_uid, place, expectation))

    async def forget(self, job_uid: str) -> int | None:
        place = self._places.get(job_uid) or self._place_of_unknown(job_uid)
        step = await self._there(self._cleared(self._started(), job_uid, place)) if place is not None else None
        self._places.pop(job_uid, None)
        return step

    async def worlds(self, on_open: Callable[[], None] | None = None) -> AsyncIterator[wire.WorldReport]:
        """Yield worlds until cancelled. Then end the thread."""
        if on_open is not None:
            on_open()
        try:
            if self._own is not None and self._own.is_eager:
                self._started()
            while True:
                yield await self._worlds.get()
        finally:
            await self._stop()

    def _place_of_unknown(self, job_uid: str) -> EtcdPlace | None:
        """Return the place of a job that was deleted while no controller ran. Its prefix is known if it met in the installation's etcd."""
        return own_place(self._own.endpoints, job_uid) if self._own is not None else None

    # --- in the thread

    async def _cleared(self, membership: EtcdMembership, job_uid: str, place: EtcdPlace) -> int | None:
        step = await membership.forget(job_uid, place)
        if place.is_own:
            store, accounts = self._visitor.administrator()
            try:
                await accounts.begin()
                await accounts.remove(place.job)
            finally:
                await store.close()
        return step

    async def _take_census(self) -> None:
        """Report each job that has a user in the installation's etcd. The controller then forgets those that are gone from the API."""
        while True:
            try:
                await self._count()
            except (Away, StoreRefused, NotInstalled) as error:
                log.warning("the installation's etcd does not answer", extra={"error": str(error)})
            except Exception:
                log.exception("looking for users in the installation's etcd failed")
            await asyncio.sleep(CENSUS_S)

    async def _count(self) -> None:
        store, accounts = self._visitor.administrator()
        try:
            await accounts.begin()
            for job_uid in await accounts.jobs():
                if job_uid not in self._places:
                    self._emit(wire.WorldReport(job=job_uid, generation=0, phase="unknown"))
        finally:
            await store.close()

    def _emit(self, world: wire.WorldReport) -> None:
        assert self._home is not None
        with contextlib.suppress(RuntimeError):  # the controller's loop has ended
            self._home.call_soon_threadsafe(self._worlds.put_nowait, world)

    # --- the seam

    def _started(self) -> EtcdMembership:
        if self._membership is not None:
            return self._membership
        self._home, self._loop = asyncio.get_running_loop(), asyncio.new_event_loop()
        self._visitor = Visitor(read_secret=self._read_at_home, own=self._own, follows_others=self._follows_others)
        self._membership = EtcdMembership(visit=self._visitor.open, token_for=self._token_for, emit=self._emit)
        if self._own is not None:
            asyncio.run_coroutine_threadsafe(self._take_census(), self._loop)
        self._ending = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(self._loop, self._ending), name="elastic-etcd", daemon=True)
        self._thread.start()
        return self._membership

    def _run(self, loop: asyncio.AbstractEventLoop, ending: asyncio.Event) -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:  # its exit cancels all other tasks and waits for them
            runner.run(ending.wait())

    async def _there(self, work: Coroutine[Any, Any, Result]) -> Result:
        assert self._loop is not None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _read_at_home(self, namespace: str, name: str) -> Any:
        assert self._home is not None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_awaited(self._read_secret, namespace, name), self._home))

    async def _stop(self) -> None:
        membership, loop, thread, self._membership = self._membership, self._loop, self._thread, None
        if membership is None or loop is None or thread is None:
            return
        with contextlib.suppress(Exception):
            await self._there(membership.close())
        loop.call_soon_threadsafe(self._ending.set)
        await asyncio.to_thread(thread.join, END_S)


async def _awaited(read: ReadSecret, namespace: str, name: str) -> Any:
    return await read(namespace, name)


def own_place(endpoints: tuple[str, ...], job_uid: str) -> EtcdPlace:
    """Return a job's place in the installation's etcd."""
    return EtcdPlace(endpoints=endpoints, prefix=prefix_of(job_uid), is_tls=True, job=job_uid)


def prefix_of(job_uid: str, *, under: str = "/elastic-training") -> str:
    """Return the prefix of a job's keys. elastic_worker.etcd.settings computes the same."""
    return f"{under}/{job_uid}/"
