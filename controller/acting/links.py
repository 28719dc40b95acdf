"""Send the controller's messages about a job to the rendezvous server, or to the etcd where the job meets. Both are links."""

import asyncio
from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Protocol

from elastic.etcd.place import EtcdPlace
from elastic.membership.phases import WorldPhase
from elastic_training.controller.acting.link import RendezvousLink
from elastic_training.controller.deciding.actions import SetExpectation
from elastic_training.controller.facts.snapshot import WorldSeen

ETCD_AT_ONCE = 100_000
"""Each job has its own way to its etcd, and its requests end in time: no job waits for another one's."""


class MeetingPlaces(Protocol):
    """The part of elastic.etcd.thread.EtcdThread that is needed here."""

    def meet_at(self, job_uid: str, place: EtcdPlace) -> None: ...


class Links:
    """All links of a controller, as one."""

    def __init__(self, server: RendezvousLink | None, etcd: RendezvousLink, places: MeetingPlaces) -> None:
        self._server = server
        self._etcd = etcd
        self._places = places
        known = [link.worlds for link in (server, etcd) if link is not None]
        self.worlds: Mapping[str, WorldSeen] = ChainMap(*known)
        self.last_steps: Mapping[str, int] = ChainMap(*(link.last_steps for link in self._all()))

    def tell(self, job_uid: str, told: SetExpectation, *, is_awaited: bool) -> bool:
        """Return whether the expectation is acknowledged. Do not wait for an etcd out of reach: the job's pods are counted instead."""
        if told.place is None:
            return self._server is None or self._server.tell(job_uid, told, is_awaited=is_awaited)
        self._places.meet_at(job_uid, told.place)
        is_heard = self._etcd.tell(job_uid, told, is_awaited=is_awaited)
        world = self._etcd.worlds.get(job_uid)
        return is_heard or (world is not None and world.phase == WorldPhase.UNREACHED)

    def forget(self, job_uid: str, *, is_awaited: bool = False, place: EtcdPlace | None = None) -> None:
        if place is not None:
            self._places.meet_at(job_uid, place)
        for link in self._all():
            link.forget(job_uid, is_awaited=is_awaited and (link is self._etcd) == (place is not None))

    def drop(self, job_uid: str) -> None:
        for link in self._all():
            link.drop(job_uid)

    def has_forgotten(self, job_uid: str) -> bool:
        """Return whether the server has answered that it has forgotten this suspended job."""
        return any(job_uid in link.forgotten for link in self._all())

    async def run(self, changed: Callable[[str], None]) -> None:
        """Send and hear until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for link in self._all():
                tasks.create_task(link.run(changed))

    def _all(self) -> list[RendezvousLink]:
        return [link for link in (self._server, self._etcd) if link is not None]
