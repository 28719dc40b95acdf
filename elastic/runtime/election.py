"""Let only one of several processes work: the holder of the Lease.

It renews the Lease in time, and gives it back on a clean stop. We measure the age of another's Lease with our own clock since we saw it
change, because clocks of two hosts are never compared. We measure the age of our own Lease since we sent its renewal, because no other
process can have seen the renewal earlier.
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
LEASE_S = 15.0
LONGEST_POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The times of a Lease. The defaults are client-go's: it lasts 15 s, is renewed every 2 s, and its holder gives up after 10 s."""

    duration_s: float = LEASE_S

    @property
    def renew_s(self) -> float:
        """Return the seconds from one renewal to the next, as they are sent."""
        return self.duration_s * 2 / 15

    @property
    def give_up_s(self) -> float:
        """Seconds after the last renewal was sent at which its holder stops."""
        return self.duration_s * 10 / 15

    @property
    def try_s(self) -> float:
        """Return the longest time of one attempt, so that another can follow it on a new connection."""
        return self.give_up_s / 2

    @property
    def retry_s(self) -> float:
        """Return the seconds between two attempts of a holder if the first failed."""
        return self.duration_s * 0.02

    @property
    def poll_s(self) -> float:
        """Seconds between two looks of a standby. A Lease that was given back waits for at most this time and two requests."""
        return min(LONGEST_POLL_S, self.duration_s * 0.05)


class LeaseLost(RuntimeError):
    """Two must not work at the same time."""


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """The Lease as it was last seen to change, and when that was by our clock."""

    holder: str
    renewed: str
    duration_s: float
    at: float


def free_in_s(seen: LeaseSeen | None, *, me: str, now: float) -> float:
    """Return the seconds until we may take the Lease. They are at most 0 if it is ours or free, or if its holder was silent too long."""
    return 0.0 if seen is None or seen.holder in ("", me) else seen.at + seen.duration_s - now


class Election:
    def __init__(
        self,
        kube: Kube,
        *,
        namespace: str,
        name: str,
        me: str,
        clock: Callable[[], float],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        terms: Terms | None = None,
    ) -> None:
        self.term = 0
        self._latest_term = 0
        """The highest term that was seen here. A new Lease continues from it, because listeners refuse earlier terms."""
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._me = me
        self._clock, self._now = clock, now
        self._terms = terms or Terms()
        self._seen: LeaseSeen | None = None
        self._lease: Object | None = None
        self._held_since: float | None = None
        self._unanswered: dict[str, float] = {}
        self._reports = _Reports(f"{namespace}/{name}", me, slow_s=self._terms.renew_s)

    def left_s(self) -> float:
        """Return the seconds for which we may work without another renewal. At 0 or less, nothing may be written."""
        return -1.0 if self._held_since is None else self._held_since + self._terms.give_up_s - self._clock()

    def renewed_ago_s(self) -> float:
        """Return how long ago the last renewal of our Lease was sent; infinity if we do not hold it."""
        return math.inf if self._held_since is None else self._clock() - self._held_since

    @property
    def is_held(self) -> bool:
        return self.left_s() > 0

    async def lead(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Works while the Lease is ours: from when it is won until it is lost, or until cancelled. Gives it back in any case."""
        try:
            await self.win()
            tasks = [asyncio.create_task(work()), asyncio.create_task(self.hold())]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                raise LeaseLost(f"another process may hold the lease {self._name}; this one stops")
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await self.give_back()

    async def win(self) -> None:
        """Return once the Lease is ours."""
        while not await self._try(self._take, within_s=self._terms.give_up_s):
            free_in = free_in_s(self._seen, me=self._me, now=self._clock())
            if free_in > 0 and self._seen is not None:
                self._reports.waiting(self._seen.holder)
            await asyncio.sleep(min(free_in, self._terms.poll_s) if free_in > 0 else self._terms.poll_s)
        self._reports.won(self.term)

    async def hold(self) -> None:
        """Renews until the Lease is lost, then returns; what runs under it must stop at once."""
        is_renewed = True
        while (left_s := self.left_s()) > 0:
            renewed_s = self._terms.give_up_s - left_s
            await asyncio.sleep(min(left_s, max(0.0, self._terms.renew_s - renewed_s) if is_renewed else self._terms.retry_s))
            # The Lease still is as we wrote it, unless an attempt failed. Then we read it first.
            attempt = self._renew if is_renewed else self._take
            is_renewed = await self._try(attempt, within_s=min(self._terms.try_s, max(self.left_s(), 0.0)))
            if not is_renewed and self._seen is not None and self._seen.holder != self._me:
                break
        self._reports.lost()

    async def give_back(self) -> None:
        """Give the Lease back at a clean stop, so that the next process need not wait."""
        self._held_since = None
        if self._lease is not None and self._seen is not None and self._seen.holder == self._me:
            await self._try(self._release, within_s=self._terms.try_s)

    async def _try(self, attempt: Callable[[], Awaitable[bool]], *, within_s: float) -> bool:
        began = self._clock()
        try:
            async with asyncio.timeout(within_s):
                is_done = await attempt()
        except (KubeError, aiohttp.ClientError, TimeoutError) as error:
            self._reports.failed(error, left_s=self.left_s())
            return False
        self._reports.answered(took_s=self._clock() - began, left_s=self.left_s())
        return is_done

    async def _take(self) -> bool:
        if await self._look() and self.is_held:
            return True
        if free_in_s(self._seen, me=self._me, now=self._clock()) > 0:
            return False
        transitions = max(_transitions(self._lease), self._latest_term)
        is_ours = self._seen is not None and self._seen.holder == self._me
        await self._write(self._me, transitions=transitions if is_ours else transitions + 1)
        return True

    async def _renew(self) -> bool:
        await self._write(self._me, transitions=self.term)
        return True

    async def _release(self) -> bool:
        if self._unanswered:
            await self._look()
        if self._seen is not None and self._seen.holder == self._me:
            await self._write("", transitions=self.term)
        return True

    async def _look(self) -> bool:
        """Read the Lease. Return True if it shows a write of ours that we had given up waiting for."""
        self._lease = await self._kube.find(LEASES, self._name, namespace=self._namespace)
        if self._lease is None:
            self._seen, self._held_since = None, None
            return False
        self._latest_term = max(self._latest_term, _transitions(self._lease))
        spec = self._lease.get("spec") or {}
        holder, renewed = spec.get("holderIdentity") or "", spec.get("renewTime") or ""
        if self._seen is None or (self._seen.holder, self._seen.renewed) != (holder, renewed):
            self._seen = LeaseSeen(holder, renewed, float(spec.get("leaseDurationSeconds") or 1), self._clock())
        has_arrived = holder == self._me and renewed in self._unanswered
        if has_arrived:
            self._held_since, self.term = self._unanswered[renewed], _transitions(self._lease)
        elif holder != self._me:
            self._held_since = None
        self._unanswered.clear()
        return has_arrived

    async def _write(self, holder: str, *, transitions: int) -> None:
        renewed = self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        duration_s = self._terms.duration_s if holder else 1.0
        spec: Object = {
            "holderIdentity": holder,
            "leaseDurationSeconds": math.ceil(duration_s),
            "renewTime": renewed,
            "leaseTransitions": transitions,
        }
        metadata: Object = {"name": self._name, "namespace": self._namespace}
        body: Object = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
        sent = self._unanswered[renewed] = self._clock()
        if self._lease is None:
            self._lease = await self._kube.create(LEASES, body, namespace=self._namespace)
        else:
            # With the version that was seen: of two that find it free at the same moment one gets it.
            metadata["resourceVersion"] = self._lease["metadata"]["resourceVersion"]
            self._lease = await self._kube.replace(LEASES, body, name=self._name, namespace=self._namespace)
        self._unanswered.clear()
        self.term = self._latest_term = transitions
        self._seen = LeaseSeen(holder, renewed, duration_s, self._clock())
        self._held_since = sent if holder else None


def _transitions(lease: Object | None) -> int:
    return int(((lease or {}).get("spec") or {}).get("leaseTransitions") or 0)


class _Reports:
    """Logs each change of how it stands with the Lease once, however often it is looked at."""

    def __init__(self, lease: str, me: str, *, slow_s: float) -> None:
        self._fields = {"lease": lease, "me": me}
        self._slow_s = slow_s
        self._holder, self._trouble, self._is_slow, self._leads = "", "", False, False

    def waiting(self, holder: str) -> None:
        if holder != self._holder:
            self._holder = holder
            log.info("waits for the lease", extra=self._fields | {"holder": holder})

    def won(self, term: int) -> None:
        self._leads, self._is_slow = True, False
        log.info("holds the lease", extra=self._fields | {"term": term})

    def lost(self) -> None:
        self._leads = False
        log.error("the lease is lost", extra=self._fields)

    def failed(self, error: Exception, *, left_s: float) -> None:
        reason = error.reason if isinstance(error, KubeError) else type(error).__name__
        # A conflict is a lost race; anything else may pass. Either way the next attempt looks afresh.
        level = logging.DEBUG if reason in ("Conflict", "AlreadyExists", self._trouble) else logging.WARNING
        if level == logging.WARNING:
            self._trouble = reason
        message = "the lease was not renewed" if self._leads else "the lease was not taken"
        log.log(level, message, extra=self._fields | {"error": str(error) or reason, "left_s": round(max(left_s, 0.0), 1)})

    def answered(self, *, took_s: float, left_s: float) -> None:
        if self._trouble:
            self._trouble = ""
            log.info("the API server answers about the lease again", extra=self._fields)
        if took_s > self._slow_s and not self._is_slow:
            self._is_slow = True
            message = "renewals of the lease are slow" if self._leads else "requests about the lease are slow"
            log.warning(message, extra=self._fields | {"took_s": round(took_s, 1), "left_s": round(max(left_s, 0.0), 1)})
        elif took_s < self._slow_s / 2 and self._is_slow:
            self._is_slow = False
            log.info("requests about the lease are fast again", extra=self._fields)
