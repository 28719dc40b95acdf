"""Authenticate requests.

Agents present their job's token. A controller presents the installation's token, or its service account's token for our audience. An
autoscaler presents the same, but may only read.
"""

import time
from collections.abc import Callable, Sequence

from elastic.kube.client import Kube
from elastic.kube.resources import TOKEN_REVIEWS
from elastic.membership.tokens import Role, is_valid
from elastic_training.rendezvous.server.reviews import Reviewer, Reviews

AUDIENCE = "elastic-rendezvous"


class Gate:
    """Checks tokens with the current keys, and asks the API server about others."""

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
        self._accounts = frozenset(accounts)
        self._readers = frozenset(readers)
        self._reviews = Reviews(reviewer, ours=self._accounts | self._readers, clock=clock) if reviewer is not None else None

    def is_agent(self, token: str, job_uid: str) -> bool:
        """Return whether this is the token of the job's members."""
        return is_valid(token, keys=self._keys(), job_uid=job_uid, role=Role.AGENT)

    def is_launcher(self, token: str, job_uid: str) -> bool:
        """Return whether this is the token of the job's launcher."""
        return is_valid(token, keys=self._keys(), job_uid=job_uid, role=Role.LAUNCHER)

    def is_program(self, token: str, job_uid: str) -> bool:
        """Return whether this is the token by which the job's program reports its progress."""
        return is_valid(token, keys=self._keys(), job_uid=job_uid, role=Role.STATUS)

    async def is_control(self, token: str, *, address: str) -> bool:
        """Return whether this token belongs to the control plane. Raises Busy if too many unknown tokens wait for their review."""
        return await self._is_one_of(token, Role.CONTROL, self._accounts, address=address)

    async def is_reader(self, token: str, *, address: str) -> bool:
        """Return whether this token may read every job's progress: an autoscaler's. Raises Busy as `is_control` does."""
        return await self._is_one_of(token, Role.AUTOSCALER, self._readers, address=address)

    async def _is_one_of(self, token: str, role: Role, users: frozenset[str], *, address: str) -> bool:
        if not token or not token.isascii():
            return False
        if is_valid(token, keys=self._keys(), job_uid="", role=role):
            return True
        if self._reviews is None or token.count(".") != 2:
            return False
        user = await self._reviews.user(token, address=address)
        return user is not None and user in users


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
