"""Lets one of several controllers work: whoever holds the Lease. It renews in time and gives the Lease back on a clean stop.
How long another's Lease has stood is measured by our own clock since we saw it change, because clocks of two hosts are never compared;
how long ours will stand, since we began to ask for it, because nobody can have seen that earlier.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime

import aiohttp

from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import LEASES, Object

log = logging.getLogger(__name__)
LEASE_S = 10.0
"""Long enough for an API server that is slow or being restarted, and short enough that jobs are not left alone for 15 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """`duration_s` without a renewal and the Lease is free. Its holder renews it several times as often and gives up a little earlier;
    whoever waits for it looks often enough to miss little of a clean stop.
    """

    duration_s: float = LEASE_S

    @property
    def renew_s(self) -> float:
        return self.duration_s * 0.2

    @property
    def retry_s(self) -> float:
        return self.duration_s * 0.02

    @property
    def poll_s(self) -> float:
        return self.duration_s * 0.1

    @property
    def give_up_s(self) -> float:
        return self.duration_s * 0.7


class LeaseLost(RuntimeError):
    """Two must not work at the same time."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The Lease as it was last seen to change, and when that was by our clock."""

    holder: str
    renewed: str
    duration_s: float
    at: float


def is_free(seen: Seen | None, *, me: str, now: float) -> bool:
    """May we take it? It is ours, nobody's, or its holder has been silent for as long as it said."""
    return seen is None or seen.holder in ("", me) or now - seen.at >= seen.duration_s


class Election:
    def __init__(self, kube: Kube, *, namespace: str, name: str, me: str, clock: Callable[[], float], terms: Terms | None = None) -> None:
        self.term = 0
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._me = me
        self._clock = clock
        self._terms = terms or Terms()
        self._seen: Seen | None = None
        self._lease: Object | None = None
        self._held_since: float | None = None

    def left_s(self) -> float:
        """How long we may go on without another renewal; nothing may be written once this is not above zero."""
        return -1.0 if self._held_since is None else self._held_since + self._terms.give_up_s - self._clock()

    async def lead(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Works while the Lease is ours: from when it is won until it is lost, or until cancelled. Gives it back in any case."""
        try:
            await self.win()
            tasks = [asyncio.create_task(work()), asyncio.create_task(self.hold())]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                raise LeaseLost(f"another controller may hold the lease {self._name}; this one stops")
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await self.give_back()

    async def win(self) -> None:
        """Returns once the Lease is ours."""
        while True:
            if await self._try(self._take, within_s=self._terms.renew_s):
                break
            await asyncio.sleep(self._terms.poll_s)
        log.info("holds the lease", extra={"lease": f"{self._namespace}/{self._name}", "holder": self._me, "term": self.term})

    async def hold(self) -> None:
        """Renews until the Lease is lost, then returns; whoever worked under it must stop at once."""
        is_renewed = True
        while (left_s := self.left_s()) > 0:
            await asyncio.sleep(min(self._terms.renew_s if is_renewed else self._terms.retry_s, left_s))
            # What we wrote last is what is there, unless an attempt failed: then it is looked at first.
            attempt = self._renew if is_renewed else self._take
            is_renewed = await self._try(attempt, within_s=max(self._terms.renew_s, self.left_s() / 2))
            if not is_renewed and self._seen is not None and self._seen.holder != self._me:
                break
        log.error("the lease is lost", extra={"lease": f"{self._namespace}/{self._name}", "holder": self._me})

    async def give_back(self) -> None:
        """A clean stop: the next one need not wait."""
        self._held_since = None
        if self._lease is not None and self._seen is not None and self._seen.holder == self._me:
            await self._try(lambda: self._write("", transitions=self.term), within_s=self._terms.renew_s)

    async def _try(self, attempt: Callable[[], Awaitable[bool]], *, within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                return await attempt()
        except (KubeError, aiohttp.ClientError, TimeoutError) as error:
            # A conflict is a lost race; anything else may pass. Either way the next try looks afresh.
            log.debug("the lease was not taken", extra={"lease": self._name, "error": str(error)})
            return False

    async def _take(self) -> bool:
        began = self._clock()
        await self._look()
        if not is_free(self._seen, me=self._me, now=self._clock()):
            return False
        spec = (self._lease or {}).get("spec") or {}
        transitions = int(spec.get("leaseTransitions") or 0)
        is_ours = self._seen is not None and self._seen.holder == self._me
        await self._write(self._me, transitions=transitions if is_ours else transitions + 1)
        self._held_since = began
        return True

    async def _renew(self) -> bool:
        began = self._clock()
        await self._write(self._me, transitions=self.term)
        self._held_since = began
        return True

    async def _look(self) -> None:
        try:
            self._lease = await self._kube.get(LEASES, self._name, namespace=self._namespace)
        except KubeError as error:
            if error.code != 404:
                raise
            self._lease, self._seen = None, None
            return
        spec = self._lease.get("spec") or {}
        holder, renewed = spec.get("holderIdentity") or "", spec.get("renewTime") or ""
        if self._seen is None or (self._seen.holder, self._seen.renewed) != (holder, renewed):
            self._seen = Seen(holder, renewed, float(spec.get("leaseDurationSeconds") or 1), self._clock())

    async def _write(self, holder: str, *, transitions: int) -> bool:
        renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        duration_s = self._terms.duration_s if holder else 1.0
        spec: Object = {
            "holderIdentity": holder,
            "leaseDurationSeconds": math.ceil(duration_s),
            "renewTime": renewed,
            "leaseTransitions": transitions,
        }
        metadata: Object = {"name": self._name, "namespace": self._namespace}
        body: Object = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
        if self._lease is None:
            self._lease = await self._kube.create(LEASES, body, namespace=self._namespace)
        else:
            # With the version that was seen: of two that find it free at the same moment one gets it.
            metadata["resourceVersion"] = self._lease["metadata"]["resourceVersion"]
            self._lease = await self._kube.replace(LEASES, body, name=self._name, namespace=self._namespace)
        self.term = transitions
        self._seen = Seen(holder, renewed, duration_s, self._clock())
        return True
