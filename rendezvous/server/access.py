"""Who a request comes from. Agents show their job's token; a controller the installation's, or its service account's for our audience."""

import asyncio
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


class Reviewer(Protocol):
    """Asks the Kubernetes API whose token this is."""

    async def review(self, token: str) -> str | None:
        """The user name of a token that is valid for our audience, else None."""


@dataclass(frozen=True, slots=True)
class Review:
    user: str | None
    at: float


class Gate:
    """Checks tokens, by the keys that are in force at that moment. Reviews by the API server are remembered for a minute."""

    def __init__(
        self,
        *,
        keys: Callable[[], Sequence[bytes]],
        reviewer: Reviewer | None,
        accounts: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = keys
        self._reviewer = reviewer
        self._accounts = frozenset(accounts)
        self._clock = clock
        self._reviews: dict[str, Review] = {}
        self._lock = asyncio.Lock()

    def is_agent(self, token: str, job_uid: str) -> bool:
        """Whether this is the token of the job's members."""
        return is_valid(token, keys=self._keys(), job_uid=job_uid, role=Role.AGENT)

    async def is_control(self, token: str) -> bool:
        """Whether this token may speak for the control plane."""
        if not token:
            return False
        if is_valid(token, keys=self._keys(), job_uid="", role=Role.CONTROL):
            return True
        if self._reviewer is None or token.count(".") != 2:
            return False
        user = await self._user(token, self._reviewer)
        return user is not None and user in self._accounts

    async def _user(self, token: str, reviewer: Reviewer) -> str | None:
        async with self._lock:
            now = self._clock()
            known = self._reviews.get(token)
            if known is None or now >= known.at + REVIEW_KEPT_S:
                known = Review(await reviewer.review(token), now)
                self._reviews[token] = known
                while len(self._reviews) > REVIEWS_KEPT:
                    del self._reviews[next(iter(self._reviews))]
            return known.user


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
