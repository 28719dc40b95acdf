"""Serve TrainJobs only while no controller of Kubeflow Trainer's does. Jobs of kubeflow.org/v1 are served all the time.

Our controller holds the Lease of Kubeflow Trainer's own one. A Kubeflow Trainer in another namespace has its Lease there, so we look at the
Leases of this name in all namespaces.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import Never, Protocol

import aiohttp

from elastic.api.trainer.modes import TRAINER_LEASE, is_ours
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import LEASES, Object
from elastic.runtime.election import LeaseLost
from elastic.runtime.process import Parts
from elastic_training.controller.acting.event_recorder import EventRecorder
from elastic_training.controller.deciding.actions import JobEvent

log = logging.getLogger(__name__)
LOOK_S = 5.0
"""Seconds between two looks at the Leases of other namespaces."""
LONGEST_LOOK_S = 10.0
LONGEST_LEASE_S = 30.0
"""The most seconds that a Lease counts without being renewed, even if it says more."""


class OtherTrainer(RuntimeError):
    """Another process serves TrainJobs."""


class Turns(Protocol):
    """The election for Kubeflow Trainer's Lease."""

    async def lead(self, work: Callable[[], Coroutine[None, None, None]]) -> None: ...


@dataclass(frozen=True, slots=True)
class ForeignLease:
    """A Lease of another namespace: who holds it, when it was renewed by its holder's clock, and the two moments by ours."""

    holder: str
    renewed: str
    first_at: float
    renewed_at: float | None = None
    """The moment at which we saw it change. Before, nobody knows whether its holder still lives."""
    lasts_s: float = LONGEST_LEASE_S


class OtherLeases:
    """The Leases of Kubeflow Trainer's name outside of our namespace."""

    def __init__(self, kube: Kube, *, namespace: str, clock: Callable[[], float]) -> None:
        self._kube, self._namespace, self._clock = kube, namespace, clock
        self._seen: dict[str, ForeignLease] = {}
        self._is_refused = False

    async def look(self) -> None:
        """Read the Leases. If that fails, the last known state stays."""
        try:
            async with asyncio.timeout(LONGEST_LOOK_S):
                found = (await self._kube.list(LEASES, fields=f"metadata.name={TRAINER_LEASE}")).items
        except (KubeError, aiohttp.ClientError, TimeoutError) as error:
            if isinstance(error, KubeError) and error.code == 403 and not self._is_refused:
                self._is_refused = True
                log.warning(
                    "a Kubeflow Trainer in another namespace would not be noticed: grant list of leases, or run `elastic install` again",
                    extra={"error": error.message},
                )
            return
        now, before = self._clock(), self._seen
        self._seen = {}
        for lease in found:
            namespace, spec = lease["metadata"]["namespace"], lease.get("spec") or {}
            holder, renewed = str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or "")
            if namespace == self._namespace or not holder or is_ours(holder):
                continue
            lasts_s = min(float(spec.get("leaseDurationSeconds") or 1), LONGEST_LEASE_S)
            known = before.get(namespace)
            if known is None or known.holder != holder:
                self._seen[namespace] = ForeignLease(holder, renewed, first_at=now, lasts_s=lasts_s)
            else:
                changed_at = now if known.renewed != renewed else known.renewed_at
                self._seen[namespace] = ForeignLease(holder, renewed, known.first_at, changed_at, lasts_s)

    def holder(self) -> tuple[str, str] | None:
        """Return namespace and name of a process that renews such a Lease."""
        now = self._clock()
        live = (
            (space, one.holder) for space, one in self._seen.items() if one.renewed_at is not None and now < one.renewed_at + one.lasts_s
        )
        return next(live, None)

    def is_decided(self) -> bool:
        """Return whether each holder has had the time to renew its Lease since we first saw it."""
        now = self._clock()
        return all(one.renewed_at is not None or now >= one.first_at + one.lasts_s for one in self._seen.values())


class TrainerTurn:
    def __init__(
        self,
        others: OtherLeases,
        turns: Turns,
        recorder: EventRecorder,
        *,
        namespace: str,
        now: Callable[[], datetime],
        look_s: float = LOOK_S,
    ) -> None:
        """Take the election for the Lease in `namespace`."""
        self._others, self._turns, self._recorder = others, turns, recorder
        self._namespace, self._now, self._look_s = namespace, now, look_s
        self._told: tuple[str, str] | None = None
        """The process of another namespace that the last Event was about."""

    async def run(self, work: Callable[[], Coroutine[None, None, None]]) -> Never:
        """Work whenever nobody else serves TrainJobs, until cancelled."""

        async def alone() -> None:
            async with Parts([work(), self._until_another()]) as running:
                await running.wait_for_end(asyncio.Event())

        while True:
            await self._until_alone()
            try:
                await self._turns.lead(alone)
            except LeaseLost:
                await self._tell(self._namespace, "another process has taken Kubeflow Trainer's Lease")
            except OtherTrainer:
                log.error("another controller of TrainJobs has started")  # the next look tells which

    async def _until_alone(self) -> None:
        """Return once no other namespace has a Lease that somebody renews."""
        while True:
            await self._others.look()
            holder = self._others.holder()
            if holder is None and self._others.is_decided():
                self._told = None
                return
            if holder is not None and holder != self._told:
                self._told = holder
                await self._tell(holder[0], f"Kubeflow Trainer runs in namespace {holder[0]} ({holder[1]} holds its Lease there)")
            await asyncio.sleep(self._look_s)

    async def _until_another(self) -> Never:
        while True:
            await asyncio.sleep(self._look_s)
            await self._others.look()
            if self._others.holder() is not None:
                raise OtherTrainer

    async def _tell(self, namespace: str, words: str) -> None:
        message = (
            f"{words}, so this controller serves no TrainJobs. TrainJobs that train here may be started a second time: "
            "suspend them, or stop the other process and its Lease ends"
        )
        log.error("TrainJobs are not served", extra={"reason": words})
        now = self._now()
        lease: Object = {"apiVersion": LEASES.api_version, "kind": LEASES.kind}
        lease["metadata"] = {"name": TRAINER_LEASE, "namespace": namespace, "uid": ""}
        await self._recorder.tell(lease, [JobEvent("Warning", "TrainJobsNotServed", message, about=now.isoformat())], now=now)
