"""Lets one of several controllers work: whoever holds the Lease. It renews in time and gives the Lease back on a clean stop.
How long another's Lease has stood is measured by our own clock since we saw it change, because clocks of two hosts are never compared.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import aiohttp

from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import LEASES, Object

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """`duration_s` without a renewal and the Lease is free; the holder renews every `renew_s` and gives up a little before it is."""

    duration_s: float = 10.0
    renew_s: float = 2.0
    poll_s: float = 1.0

    @property
    def give_up_s(self) -> float:
        return self.duration_s * 0.7


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

    async def win(self) -> None:
        """Returns once the Lease is ours."""
        while True:
            if await self._try(self._take):
                break
            await asyncio.sleep(self._terms.poll_s)
        log.info("holds the lease", extra={"lease": f"{self._namespace}/{self._name}", "holder": self._me, "term": self.term})

    async def hold(self) -> None:
        """Renews until the Lease is lost, then returns; whoever worked under it must stop at once."""
        renewed = self._clock()
        while self._clock() - renewed < self._terms.give_up_s:
            await asyncio.sleep(self._terms.renew_s)
            if await self._try(self._take):
                renewed = self._clock()
            elif self._seen is not None and self._seen.holder != self._me:
                break
        log.error("the lease is lost", extra={"lease": f"{self._namespace}/{self._name}", "holder": self._me})

    async def give_back(self) -> None:
        """A clean stop: the next one need not wait."""
        if self._lease is not None and self._seen is not None and self._seen.holder == self._me:
            await self._try(lambda: self._write("", transitions=self.term))

    async def _try(self, attempt: Callable[[], Awaitable[bool]]) -> bool:
        try:
            async with asyncio.timeout(self._terms.renew_s):
                return await attempt()
        except (KubeError, aiohttp.ClientError, TimeoutError) as error:
            # A conflict is a lost race; anything else may pass. Either way the next try looks afresh.
            log.debug("the lease was not taken", extra={"lease": self._name, "error": str(error)})
            return False

    async def _take(self) -> bool:
        await self._look()
        if not is_free(self._seen, me=self._me, now=self._clock()):
            return False
        spec = (self._lease or {}).get("spec") or {}
        transitions = int(spec.get("leaseTransitions") or 0)
        is_ours = self._seen is not None and self._seen.holder == self._me
        await self._write(self._me, transitions=transitions if is_ours else transitions + 1)
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
            "leaseDurationSeconds": int(duration_s),
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
