"""Run the webhook in the controller's process. It opens once there is a certificate, and is open in every replica, leader or not."""

import asyncio
import logging
import socket
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Protocol

from elastic.api.trainer.modes import Mode
from elastic.api.webhook import FOR_TRAIN_JOBS
from elastic.kube.client import Kube
from elastic.runtime.cert_rotation import CertificateName, Keeping
from elastic_training.controller.webhook.configuration import Configurations
from elastic_training.controller.webhook.judges import Judges, LookUp, Verdict, command
from elastic_training.controller.webhook.server import serving

log = logging.getLogger(__name__)


class Judged(Protocol):
    def __call__(self, kind: str, /, *, allowed: bool) -> None: ...


class Door:
    def __init__(
        self,
        kube: Kube,
        place: CertificateName,
        opened: socket.socket,
        *,
        kinds: Collection[str],
        namespace: str | None,
        mode: Mode = Mode.OFF,
        look_up: LookUp | None = None,
    ) -> None:
        names = [place.name, *([f"{place.name}{FOR_TRAIN_JOBS}"] if mode is not Mode.OFF else [])]
        self._keeping = Keeping(kube, place, Configurations(kube, names).trust, clock=lambda: datetime.now(UTC))
        self._opened = opened
        self._judges = Judges(command(kinds=kinds, namespace=namespace, mode=mode), look_up=look_up)
        self._is_open = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return self._is_open.is_set()

    async def wait_open(self) -> None:
        await self._is_open.wait()

    async def run(self, judged: Judged) -> None:
        """Answer until cancelled, and call `judged` for each answer."""

        async def judge(body: bytes, address: str) -> Verdict:
            verdict = await self._judges.judge(body, address=address)
            judged(verdict.subject.kind.kind, allowed=verdict.allowed)
            if not verdict.allowed:
                subject = verdict.subject
                who = {"kind": subject.kind.kind, "namespace": subject.namespace, "job": subject.name}
                log.info("the webhook refused a job", extra={**who, "problems": verdict.problems})
            return verdict

        async with self._judges.running():
            await self._keeping.begin()
            async with serving(self._opened, tls=self._keeping.tls, judge=judge):
                self._is_open.set()
                await self._keeping.run()
