"""Authenticates requests.

Agents present their job's token; a controller the installation's, or its service account's for our audience, and so does an autoscaler,
which may only read.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from elastic.kube.client import Kube
from elastic.kube.resources import TOKEN_REVIEWS
from elastic.membership.tokens import Role, is_valid

AUDIENCE = "elastic-rendezvous"
REVIEW_KEPT_S = 60.0
REVIEWS_KEPT = 64
REVIEWS_AT_ONCE = 8
MOST_WAITING = 64
"""How many unknown tokens may wait for their review."""


class Busy(Exception):
    """Too many unknown tokens wait for their review."""


class Reviewer(Protocol):
    """Asks the Kubernetes API for the user of a token."""

    async def review(self, token: str) -> str | None:
        """The user name of a token that is valid for our audience, else None."""


@dataclass(frozen=True, slots=True)
class Review:
    user: str | None
    at: float


class Gate:
    """Checks tokens with the current keys. Reviews by the API server are cached for a minute."""

    def __init__(
        self,
        *,
        keys: Callable[[], Sequence[bytes]],
        reviewer: Reviewer | None,
        accounts: Sequence[str],
        readers: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = keys
        self._reviewer = reviewer
        self._accounts = frozenset(accounts)
        self._readers = frozenset(readers)
        self._clock = clock
        self._reviews: dict[str, Review] = {}
        self._under_way: dict[str, asyncio.Task[Review]] = {}
        self._places = asyncio.Semaphore(REVIEWS_AT_ONCE)

    def is_agent(self, token: str, job_uid: str) -> bool:
        """Whether this is the token of the job's members."""
        return is_valid(token, keys=self._keys(), job_uid=job_uid, role=Role.AGENT)

    def is_launcher(self, token: str, job_uid: str) -> bool:
        """Whether this is the token of the job's launcher."""
        return is_valid(token, keys=self._keys(), job_uid=job_uid, role=Role.LAUNCHER)

    async def is_control(self, token: str) -> bool:
        """Whether this token belongs to the control plane. Raises Busy if too many unknown tokens wait for their review."""
        return await self._is_one_of(token, Role.CONTROL, self._accounts)

    async def is_reader(self, token: str) -> bool:
        """Whether this token may read every job's progress: an autoscaler's. Raises Busy as `is_control` does."""
        return await self._is_one_of(token, Role.AUTOSCALER, self._readers)

    async def _is_one_of(self, token: str, role: Role, users: frozenset[str]) -> bool:
        if not token or not token.isascii():
            return False
        if is_valid(token, keys=self._keys(), job_uid="", role=role):
            return True
        if self._reviewer is None or token.count(".") != 2:
            return False
        user = await self._user(token, self._reviewer)
        return user is not None and user in users

    async def _user(self, token: str, reviewer: Reviewer) -> str | None:
        known = self._reviews.get(token)
        if known is not None and self._clock() < known.at + REVIEW_KEPT_S:
            return known.user
        if token not in self._under_way:
            # An account of the control plane whose review expired does not queue behind unknown callers, who may be thousands.
            is_ours = known is not None and self._is_ours(known.user)
            if not is_ours and len(self._under_way) >= MOST_WAITING:
                raise Busy(f"{MOST_WAITING} tokens wait for their review already")
            self._under_way[token] = task = asyncio.create_task(self._review(token, reviewer, at_once=is_ours))
            task.add_done_callback(lambda done: self._ended(token, done))
        return (await asyncio.shield(self._under_way[token])).user

    def _is_ours(self, user: str | None) -> bool:
        return user in self._accounts or user in self._readers

    def _ended(self, token: str, done: "asyncio.Task[Review]") -> None:
        del self._under_way[token]
        if not done.cancelled():
            done.exception()  # callers that still wait get the error; reading it here avoids a warning if none is left

    async def _review(self, token: str, reviewer: Reviewer, *, at_once: bool) -> Review:
        async with contextlib.nullcontext() if at_once else self._places:
            user = await reviewer.review(token)
        self._reviews.pop(token, None)
        self._reviews[token] = found = Review(user, self._clock())
        while len(self._reviews) > REVIEWS_KEPT:
            del self._reviews[self._least_wanted()]
        return found

    def _least_wanted(self) -> str:
        """The oldest review of an account outside the control plane; if there is none, the oldest of all."""
        strangers = (token for token, review in self._reviews.items() if not self._is_ours(review.user))
        return next(strangers, None) or next(iter(self._reviews))


class KubeReviewer:
    """TokenReview through the Kubernetes API."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    async def review(self, token: str) -> str | None:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token, "audiences": [AUDIENCE]}}
        status = (await self._kube.create(TOKEN_REVIEWS, body)).get("status") or {}
        if not status.get("authenticated") or AUDIENCE not in (status.get("audiences") or []):
            return None
        name = (status.get("user") or {}).get("username")
        return name if isinstance(name, str) else None
