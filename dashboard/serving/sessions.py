"""Find out who the caller of a request is.

On the laptop, a one-time token in a link becomes a cookie. In a cluster, callers send their Kubernetes token with each request, or once to
get a cookie for it. Scripts in pages and other sites cannot use the cookies.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aiohttp import web

from elastic.kube.access import Access
from elastic.kube.client import Kube
from elastic.runtime import signed_cookie
from elastic.runtime.files import write_private
from elastic.runtime.one_time import OneTimeToken
from elastic_training.autoscale.jobs import JOBS
from elastic_training.dashboard.serving.callers import BadToken, Bearer, Caller, LaptopOwner

SESSION_S = 12 * 3600
MOST_SESSIONS = 200
LONGEST_TOKEN = 16 * 1024
ACCOUNT = "system:serviceaccount:"
NEW_AT_ONCE, REVIEWED_WITHIN_S = 8, 10.0


@dataclass(frozen=True, slots=True)
class Session:
    id: str
    caller: Caller
    user: str = ""
    """The user; for a service account its namespace, in which a tenant may make any number of accounts."""


def cookie_of(request: web.Request) -> str:
    return request.cookies.get(signed_cookie.name(request.host), "")


class Sessions(Protocol):
    wants: str
    """The proof that a browser without a session must show: `link` or `token`."""

    async def of(self, request: web.Request) -> Session | None:
        """Return the session of a request; None if its caller must log in."""

    async def begin(self, shown: str) -> str | None:
        """Return the cookie for the proof that was shown; None if the proof is wrong."""

    async def end(self, request: web.Request) -> None: ...

    async def close(self) -> None: ...


class LaptopSessions:
    """Signed cookies, so that they outlive this process."""

    wants = "link"

    def __init__(self, folder: Path, kube: Kube, *, clock: Callable[[], float] = time.time) -> None:
        self._owner, self._clock = LaptopOwner(kube), clock
        self._token = OneTimeToken(folder / "token")
        self._key_file = folder / signed_cookie.KEY
        self._key = self._made_key()

    async def of(self, request: web.Request) -> Session | None:
        cookie = cookie_of(request)
        return Session(cookie, self._owner) if signed_cookie.is_good(self._key, cookie, self._clock()) else None

    async def begin(self, shown: str) -> str | None:
        if not self._token.take(shown):
            return None
        return signed_cookie.made(self._key, int(self._clock()) + SESSION_S)

    async def end(self, request: web.Request) -> None:
        """End all sessions, because there is only one user."""
        self._key_file.unlink(missing_ok=True)
        self._key = self._made_key()

    async def close(self) -> None:
        await self._owner.kube.close()

    def _made_key(self) -> bytes:
        if not self._key_file.exists():
            write_private(self._key_file, secrets.token_bytes(32))
        return self._key_file.read_bytes()


@dataclass(slots=True)
class _Known:
    caller: Bearer
    user: str
    used_at: float


class ClusterSessions:
    """Sessions by token, at most 200, in memory only. Beyond that, the user with the most tokens loses the one unused longest."""

    wants = "token"

    def __init__(self, access: Access, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._access, self._clock = access, clock
        self._known: dict[str, _Known] = {}
        """Sessions by the digest of the token."""
        self._cookies: dict[str, tuple[float, str]] = {}
        """When each cookie ends, and the digest of its token."""
        self._closing: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(NEW_AT_ONCE)

    async def of(self, request: web.Request) -> Session | None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and token.strip():
            return await self._of_token(token.strip())
        ends, digest = self._cookies.get(cookie_of(request), (0.0, ""))
        known = self._known.get(digest) if ends > self._clock() else None
        if known is None:
            return None
        known.used_at = self._clock()
        return Session(digest, known.caller, known.user)

    async def begin(self, shown: str) -> str | None:
        session = await self._of_token(shown)
        if session is None:
            return None
        now = self._clock()
        self._cookies = {cookie: kept for cookie, kept in self._cookies.items() if kept[0] > now and kept[1] in self._known}
        while len(self._cookies) >= 2 * MOST_SESSIONS:
            del self._cookies[next(iter(self._cookies))]
        cookie = secrets.token_urlsafe(32)
        self._cookies[cookie] = (now + SESSION_S, session.id)
        return cookie

    async def end(self, request: web.Request) -> None:
        self._cookies.pop(cookie_of(request), None)

    async def close(self) -> None:
        for digest in list(self._known):
            self._drop(digest)
        await asyncio.gather(*self._closing)

    async def _of_token(self, token: str) -> Session | None:
        """Return the session of a token; None if the API server refuses it. New tokens and questions about rights ask it."""
        if len(token) > LONGEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
            return None
        digest = hashlib.sha256(token.encode()).hexdigest()
        known = self._known.get(digest)
        if known is None:
            caller = Bearer(Kube(Access(self._access.server, self._access.tls, lambda: token), user_agent="elastic-dashboard/caller"))
            try:
                # A flood of unknown tokens waits here, and asks the API server a few questions at a time.
                async with asyncio.timeout(REVIEWED_WITHIN_S), self._places:
                    await caller.may_read(next(iter(JOBS.values())), "")
            except BadToken:
                await caller.kube.close()
                return None
            except BaseException:
                await caller.kube.close()
                raise
            user = user_of(token)
            while len(self._known) >= MOST_SESSIONS:
                self._drop(self._least_wanted(user))
            known = self._known.setdefault(digest, _Known(caller, user, self._clock()))
            if known.caller is not caller:
                await caller.kube.close()
        known.used_at = self._clock()
        return Session(digest, known.caller, known.user)

    def _least_wanted(self, newcomer: str) -> str:
        """Return the session to end. A user with many tokens ends sessions of their own."""
        counts = Counter([newcomer, *(one.user for one in self._known.values())])
        most = max(counts[one.user] for one in self._known.values())
        return min((digest for digest, one in self._known.items() if counts[one.user] == most), key=lambda one: self._known[one].used_at)

    def _drop(self, digest: str) -> None:
        task = asyncio.create_task(self._known.pop(digest).caller.kube.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def user_of(token: str) -> str:
    """Return the user that an accepted token names. A token without a name counts as its own user."""
    try:
        payload = token.split(".")[1]
        said = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        issuer, subject = str(said.get("iss", "")), str(said["sub"])
    except (IndexError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return hashlib.sha256(token.encode()).hexdigest()
    if subject.startswith(ACCOUNT):
        subject = ":".join(subject.split(":")[:3])
    return f"{issuer} {subject}"
