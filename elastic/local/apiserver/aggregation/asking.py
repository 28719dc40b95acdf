"""Send requests to the servers of API services.

The connection uses TLS and checks the API service's CA and the name of its service. The front-proxy certificate tells such a server that
the headers about the user are true.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

import aiohttp
from yarl import URL

from elastic.kube.interim import BoundedAnswer
from elastic.local.apiserver.aggregation.remotes import Remote
from elastic.local.apiserver.calls import User
from elastic.local.apiserver.datadir import FRONT_PROXY
from elastic.local.apiserver.routes import Routes
from elastic.local.dialled import DialledConnector
from elastic.local.takeover import Ends

PREFIX = "X-Remote-"
USER, UID, GROUP_HEADER, EXTRA = f"{PREFIX}User", f"{PREFIX}Uid", f"{PREFIX}Group", f"{PREFIX}Extra-"
ALLOWED_NAME = FRONT_PROXY
MISSED = (aiohttp.ClientError, TimeoutError, OSError, ValueError)
"""Errors of a request without a usable answer. ValueError means an invalid CA or an answer of another form."""


class Asking:
    def __init__(self, routes: Routes, certificate: Path, key: Path) -> None:
        self._routes, self._certificate, self._key = routes, certificate, key
        self._session: aiohttp.ClientSession | None = None
        self._context = lru_cache(maxsize=64)(self._made)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def request(
        self,
        remote: Remote,
        method: str,
        raw_path: str,
        *,
        headers: Iterable[tuple[str, str]],
        timeout: aiohttp.ClientTimeout,
        data: bytes | None = None,
    ) -> aiohttp.client._RequestContextManager:
        if self._session is None:
            # The places are counted for each server, so that no server can take those of the others.
            connector = DialledConnector(self._routes.dial, most=0)
            self._session = aiohttp.ClientSession(connector=connector, response_class=BoundedAnswer, auto_decompress=False)
        url = URL(f"https://{remote.host}:{remote.port}{raw_path}", encoded=True)
        trust = self._context(remote.ca_bundle, remote.unchecked)
        return self._session.request(method, url, headers=list(headers), data=data, ssl=trust, timeout=timeout, allow_redirects=False)

    async def connection(self, remote: Remote) -> Ends:
        """Open a connection for another protocol than HTTP, which both sides agree on first."""
        trust = self._context(remote.ca_bundle, remote.unchecked)
        plain = await self._routes.dial(remote.host, remote.port)
        return await asyncio.open_connection(sock=plain, ssl=trust, server_hostname=remote.host)

    def _made(self, ca_bundle: str, unchecked: bool) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=base64.b64decode(ca_bundle).decode() if ca_bundle else None)
        if unchecked:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(self._certificate, self._key)
        return context


def about(user: User) -> list[tuple[str, str]]:
    """Return the headers that name the user."""
    told = [(USER, user.name), *((UID, user.uid) for _ in user.uid[:1]), *((GROUP_HEADER, group) for group in user.groups)]
    return told + [(EXTRA + quote(key, safe="!#$&'*+-.^_`|~"), value) for key, values in user.extra.items() for value in values]


def is_about_user(header: str) -> bool:
    return header.lower() in (USER.lower(), UID.lower(), GROUP_HEADER.lower()) or header.lower().startswith(EXTRA.lower())
