"""Pass an authorized request on to the server of its API service, and pass the answer back while it comes.

A server that is slow, silent or sends without end harms only its own requests: each ends in time, and they are bounded in number. A watch,
a log or another protocol may last, but has to begin in time.
"""

from __future__ import annotations

import asyncio

import aiohttp
from aiohttp import web

from elastic.local.apiserver import paths
from elastic.local.apiserver.aggregation.asking import MISSED, Asking, about, is_about_user
from elastic.local.apiserver.aggregation.remotes import Remote
from elastic.local.apiserver.audit import Audit
from elastic.local.apiserver.calls import User
from elastic.local.apiserver.errors import Json, StatusError, forbidden
from elastic.local.apiserver.proxying import HOP_BY_HOP, OURS, begun
from elastic.local.apiserver.rbac import Rbac
from elastic.local.apiserver.upgrades import Refused, carried, is_upgrade
from elastic.local.apiserver.watch import LONGEST_WATCH_S
from elastic.local.dialled import reason

REQUEST_S = 60.0
STALLED_S = 60.0
"""Seconds after which a client that reads nothing of a long answer is cut off."""
UNBOUNDED = aiohttp.ClientTimeout(total=None)
LONG = ("attach", "exec", "log", "portforward", "proxy")
"""Subresources whose requests last as long as both sides like."""
_IMPERSONATION = "impersonate-"


class Passing:
    def __init__(self, rbac: Rbac, asking: Asking, audit: Audit | None) -> None:
        self._rbac, self._asking, self._audit = rbac, asking, audit

    async def serve(self, request: web.Request, remote: Remote, user: User) -> web.StreamResponse:
        target = paths.parse(request.path)
        is_watch = request.query.get("watch", "false").lower() not in ("false", "0", "")
        self._authorize(request, target, user, is_watch=is_watch)
        # A client may take its time to send it, and the server's places are for requests that are on their way to it.
        body = await request.read() if request.body_exists else None
        if not remote.available:
            return _plain(503, "service unavailable")
        with remote.places.one():
            if is_upgrade(request) and body is None:
                # A request with a body only offers another protocol, such as h2c, and works without it.
                return await self._carried(request, remote, user)
            is_long = target is not None and target.subresource in LONG
            return await self._answered(request, remote, user, body=body, is_watch=is_watch, is_long=is_watch or is_long)

    async def _answered(
        self, request: web.Request, remote: Remote, user: User, *, body: bytes | None, is_watch: bool, is_long: bool
    ) -> web.StreamResponse:
        headers, path = _told(request, user), request.rel_url.raw_path_qs
        response: web.StreamResponse | None = None
        try:
            asked = self._asking.request(remote, request.method, path, headers=headers, data=body, timeout=UNBOUNDED)
            async with asyncio.timeout(REQUEST_S) as limit, asked as answer:
                if 300 <= answer.status < 400 and answer.status != 304:
                    return _plain(503, "the backend attempted to redirect this request, which is not permitted")
                response = begun(answer)
                await response.prepare(request)
                if is_long:
                    limit.reschedule(asyncio.get_running_loop().time() + _most_s(request) if is_watch else None)
                async for chunk in answer.content.iter_any():
                    async with asyncio.timeout(STALLED_S if is_long else None):
                        await response.write(chunk)
                await response.write_eof()
                return response
        except MISSED as error:
            if response is None or not response.prepared:
                return _missed(error)
            # The answer has begun; a stream that breaks off says that it is not whole.
            if request.transport is not None:
                request.transport.abort()
            return response

    async def _carried(self, request: web.Request, remote: Remote, user: User) -> web.StreamResponse:
        headers = [*_told(request, user), ("Connection", "Upgrade"), ("Upgrade", request.headers.get("Upgrade", ""))]
        path = request.rel_url.raw_path_qs
        try:
            return await carried(request, lambda: self._asking.connection(remote), host=remote.host, path=path, headers=headers)
        except Refused as refused:
            if refused.answer.status < 400:
                return _plain(503, f"error trying to reach service: invalid upgrade response: status code {refused.answer.status}")
            media = refused.answer.headers.get("Content-Type", "text/plain")
            return web.Response(body=refused.body, status=refused.answer.status, headers={"Content-Type": media})
        except MISSED as error:
            return _missed(error)

    def _authorize(self, request: web.Request, target: paths.Target | None, user: User, *, is_watch: bool) -> None:
        if target is None:
            verb = request.method.lower()
            if not self._rbac.allows(user, {"verb": verb, "path": request.path})[0]:
                raise StatusError(403, "Forbidden", f'forbidden: User "{user.name}" cannot {verb} path "{request.path}"', details={})
            return
        verb = paths.verb_of(request.method, named=bool(target.name), watching=target.watching or (is_watch and not target.name))
        attributes: Json = {"verb": verb, "group": target.group, "resource": target.plural, "subresource": target.subresource}
        attributes |= {"namespace": target.namespace, "name": target.name}
        allowed = self._rbac.allows(user, attributes)[0]
        if self._audit is not None:
            self._audit.used(user.name, attributes, allowed=allowed)
        if not allowed:
            what = f"{target.plural}/{target.subresource}" if target.subresource else target.plural
            where = f' in the namespace "{target.namespace}"' if target.namespace else " at the cluster scope"
            why = f'User "{user.name}" cannot {verb} resource "{what}" in API group "{target.group}"{where}'
            raise forbidden(target.group, target.plural, target.name, why)


def _told(request: web.Request, user: User) -> list[tuple[str, str]]:
    """Return the headers for the server: ours name the user, and the client's credentials stay here."""
    return [*((k, v) for k, v in request.headers.items() if _goes_on(k)), *about(user)]


def _goes_on(header: str) -> bool:
    name = header.lower()
    return name not in OURS | HOP_BY_HOP and not is_about_user(name) and not name.startswith(_IMPERSONATION)


def _most_s(request: web.Request) -> float:
    """Return a little more than a watch of this server's own would last, so that the other server ends it."""
    asked = request.query.get("timeoutSeconds", "")
    return REQUEST_S + (float(asked) if asked.isdecimal() and len(asked) < 10 and int(asked) else LONGEST_WATCH_S)


def _missed(error: Exception) -> web.Response:
    return _plain(503, f"error trying to reach service: {reason(error)}")


def _plain(status: int, words: str) -> web.Response:
    return web.Response(text=f"{words}\n", status=status, headers={"X-Content-Type-Options": "nosniff"})
