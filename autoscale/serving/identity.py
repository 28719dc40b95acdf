"""Identify callers.

The API server names the user in headers, and its certificate proves them; other clients show a token. A config map that every API server
writes says which certificates count. It is read again while we run.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import aiohttp
from aiohttp import web

from elastic.certificates import Pair
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import CONFIG_MAPS, TOKEN_REVIEWS
from elastic.runtime.cert_rotation import load

log = logging.getLogger(__name__)
NAMESPACE, NAME = "kube-system", "extension-apiserver-authentication"
LOOK_EVERY_S = 60.0
TOKEN_KEPT_S, MOST_TOKENS = 10.0, 1000
LONGEST_TOKEN = 16_384


@dataclass(frozen=True, slots=True)
class Caller:
    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Headers:
    """The config map's settings."""

    authority: str
    allowed: tuple[str, ...]
    users: tuple[str, ...]
    groups: tuple[str, ...]
    uids: tuple[str, ...]
    extras: tuple[str, ...]


def settings(data: Mapping[str, str]) -> Headers | None:
    """Return the names of trusted headers, or None if the config map names no authority. Then no headers are trusted."""

    def listed(key: str) -> tuple[str, ...]:
        found = json.loads(data.get(key) or "[]")
        return tuple(str(item) for item in found) if isinstance(found, list) else ()

    authority = data.get("requestheader-client-ca-file", "")
    if not authority:
        return None
    return Headers(
        authority,
        listed("requestheader-allowed-names"),
        listed("requestheader-username-headers"),
        listed("requestheader-group-headers"),
        listed("requestheader-uid-headers"),
        listed("requestheader-extra-headers-prefix"),
    )


def told(headers: Headers, given: Any, names: frozenset[str]) -> Caller | None:
    """Return the caller named by a client whose certificate has these common names; None if its word does not count."""
    if headers.allowed and not names & set(headers.allowed):
        return None
    user = next((given[header] for header in headers.users if given.get(header)), "")
    if not user:
        return None
    groups = tuple(group for header in headers.groups for group in given.getall(header, ()))
    uid = next((given[header] for header in headers.uids if given.get(header)), "")
    extra: dict[str, tuple[str, ...]] = {}
    for prefix in headers.extras:
        for header in dict.fromkeys(given):
            if header.lower().startswith(prefix.lower()):
                extra[unquote(header[len(prefix) :].lower())] = tuple(given.getall(header))
    return Caller(user, groups, uid, tuple(extra.items()))


def common_names(certificate: Any) -> frozenset[str]:
    subject = (certificate or {}).get("subject", ())
    return frozenset(value for part in subject for key, value in part if key == "commonName")


class Identity:
    """Owns the context with which connections are accepted: our certificate, and the API server's authority."""

    def __init__(self, kube: Kube, tls: ssl.SSLContext) -> None:
        self._kube = kube
        self._headers: Headers | None = None
        self._pair: Pair | None = None
        self._current: ssl.SSLContext | None = None
        self._tokens: dict[str, tuple[float, Caller | None]] = {}
        # OpenSSL takes these settings from the first context, and certificate and authorities from the context of each connection. A
        # session ticket would bring back the certificate of a former handshake, although its authority may not be trusted any more.
        tls.verify_mode = ssl.CERT_OPTIONAL
        tls.options |= ssl.OP_NO_TICKET
        tls.num_tickets = 0
        tls.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        if self._current is not None:
            connection.context = self._current

    def show(self, pair: Pair) -> None:
        self._pair = pair
        if self._current is None:
            self._current = self._context(pair, self._headers)
        else:
            load(self._current, pair)

    def _context(self, pair: Pair, headers: Headers | None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        load(context, pair)
        if headers is not None:
            context.verify_mode = ssl.CERT_OPTIONAL
            context.load_verify_locations(cadata=headers.authority)
        return context

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.look()

    async def look(self) -> None:
        """Read the config map. If it cannot be read, nothing changes."""
        try:
            found = await self._kube.get(CONFIG_MAPS, NAME, namespace=NAMESPACE)
            headers = settings(found.get("data") or {})
            if headers != self._headers:
                if self._pair is not None:
                    self._current = self._context(self._pair, headers)
                self._headers = headers
        except (KubeError, aiohttp.ClientError, TimeoutError, ValueError, ssl.SSLError) as error:
            log.warning("who may speak for users could not be read", extra={"config_map": f"{NAMESPACE}/{NAME}", "error": str(error)})

    def told(self, request: web.Request) -> Caller | None:
        """Return the caller that an API server names; None if a client asks for itself."""
        certificate = request.get_extra_info("peercert")
        if not certificate or self._headers is None or not self._is_vouched_for(request.get_extra_info("ssl_object")):
            return None
        return told(self._headers, request.headers, common_names(certificate))

    def _is_vouched_for(self, connection: ssl.SSLObject) -> bool:
        """Return whether the present authority vouches for this connection: it began after the last change, with a full handshake."""
        return connection.context is self._current and not connection.session_reused

    async def shown(self, request: web.Request) -> Caller | None:
        """Return the user whose token a client shows; None without a token, or if it is wrong."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip() or len(token) > LONGEST_TOKEN:
            return None
        return await self._of_token(token.strip())

    async def _of_token(self, token: str) -> Caller | None:
        known = self._tokens.get(token)
        if known is not None and known[0] > time.monotonic():
            return known[1]
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        status = (await self._kube.create(TOKEN_REVIEWS, review)).get("status") or {}
        caller = _caller(status.get("user") or {}) if status.get("authenticated") else None
        while len(self._tokens) >= MOST_TOKENS:
            del self._tokens[next(iter(self._tokens))]
        self._tokens[token] = (time.monotonic() + TOKEN_KEPT_S, caller)
        return caller


def _caller(user: Mapping[str, Any]) -> Caller:
    extra = tuple((key, tuple(values)) for key, values in (user.get("extra") or {}).items())
    return Caller(str(user.get("username", "")), tuple(user.get("groups") or ()), str(user.get("uid", "")), extra)
