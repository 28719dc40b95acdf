"""Callers, and the objects that they may read. A caller never sees more than the API server would show."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Protocol

import aiohttp

from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import SELF_SUBJECT_ACCESS_REVIEWS, Resource

log = logging.getLogger(__name__)
KEPT_S = 30.0
MOST_KEPT = 4000
AT_ONCE = 16
REVIEWED_WITHIN_S = 8.0


class NotReviewed(Exception):
    """The API server did not say whether something is allowed."""


class BadToken(Exception):
    """The API server does not know the caller's token."""


class Caller(Protocol):
    @property
    def kube(self) -> Kube:
        """With the caller's own rights: reads logs, and carries out changes."""

    async def may_read(self, resource: Resource, namespace: str) -> bool:
        """May they list these? An empty namespace: everywhere."""


@dataclass(frozen=True, slots=True)
class LaptopOwner:
    """The one user of a laptop cluster, who may do everything."""

    kube: Kube

    async def may_read(self, resource: Resource, namespace: str) -> bool:
        return True


class Bearer:
    """The user of a Kubernetes token. The API server is asked about its rights with this token, at most once in 30 s for each question."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self._known: dict[tuple[Resource, str], tuple[float, bool]] = {}
        self._under_way: dict[tuple[Resource, str], asyncio.Task[bool]] = {}
        self._places = asyncio.Semaphore(AT_ONCE)

    async def may_read(self, resource: Resource, namespace: str) -> bool:
        return await self._answer(resource, "") or (bool(namespace) and await self._answer(resource, namespace))

    async def _answer(self, resource: Resource, namespace: str) -> bool:
        question = (resource, namespace)
        known = self._known.get(question)
        if known is not None and known[0] > time.monotonic():
            return known[1]
        if question not in self._under_way:
            task = self._under_way[question] = asyncio.create_task(self._ask(resource, namespace))
            task.add_done_callback(lambda done: self._ended(question, done))
        return await asyncio.shield(self._under_way[question])

    def _ended(self, question: tuple[Resource, str], done: asyncio.Task[bool]) -> None:
        del self._under_way[question]
        if done.cancelled() or done.exception() is not None:
            return
        while len(self._known) >= MOST_KEPT:
            del self._known[next(iter(self._known))]
        self._known.pop(question, None)
        self._known[question] = (time.monotonic() + KEPT_S, done.result())

    async def _ask(self, resource: Resource, namespace: str) -> bool:
        attributes = {"verb": "list", "group": resource.group, "version": resource.version, "resource": resource.plural}
        attributes |= {"namespace": namespace} if namespace else {}
        review = {
            "apiVersion": SELF_SUBJECT_ACCESS_REVIEWS.api_version,
            "kind": SELF_SUBJECT_ACCESS_REVIEWS.kind,
            "spec": {"resourceAttributes": attributes},
        }
        try:
            async with self._places, asyncio.timeout(REVIEWED_WITHIN_S):
                answer = await self.kube.create(SELF_SUBJECT_ACCESS_REVIEWS, review)
        except KubeError as error:
            if error.code == 401:
                raise BadToken from error
            raise NotReviewed(str(error)) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise NotReviewed(repr(error)) from error
        return (answer.get("status") or {}).get("allowed") is True
