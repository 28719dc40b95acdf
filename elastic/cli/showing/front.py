"""Serve the near end of a cluster's dashboard, on this machine's loopback.

The HTTP server lets one browser in by a one-time token. It passes the browser's requests on with the caller's Kubernetes token, which the
browser never sees. A program shows a token of its own with each request.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import web

from elastic.kube.errors import KubeError

COOKIE = "elastic-dashboard-link"
"""Beginning of the cookie's name. The port follows, because a browser sends a host's cookies to each of its ports."""
LARGEST_REQUEST = 64 * 1024
ANSWER_S = 60.0
LOGOUT = "/api/session/end"
"""The dashboard's path for logging out. We answer it ourselves, because the dashboard cannot end our cookie."""
READING = ("GET", "HEAD")
ASKED = ("Accept", "Accept-Language", "Content-Type", "If-None-Match", "Last-Event-ID", "Origin", "Sec-Fetch-Site", "User-Agent")
"""Headers of the browser that the dashboard gets."""
DROPPED = frozenset({"connection", "content-length", "content-encoding", "keep-alive", "set-cookie", "transfer-encoding", "upgrade"})


class Front:
    """Serves one browser, and passes its requests on.

    In the session `far` any URL leads to the dashboard. `credentials` gives the caller's token for each request. `left` gets the next link
    after the browser has logged out.
    """

    def __init__(
        self, far: aiohttp.ClientSession, credentials: Callable[[], Awaitable[str]], *, port: int, left: Callable[[str], None]
    ) -> None:
        self._far, self._credentials, self._left = far, credentials, left
        self._name = f"{COOKIE}-{port}"
        self._hosts = (f"127.0.0.1:{port}", f"localhost:{port}")
        self._renew()

    def _renew(self) -> None:
        self._token, self._cookie = secrets.token_urlsafe(32), secrets.token_urlsafe(32)

    @property
    def link(self) -> str:
        return f"http://{self._hosts[0]}/login?token={self._token}"

    def app(self) -> web.Application:
        app = web.Application(client_max_size=LARGEST_REQUEST)
        app.router.add_get("/login", self._login)
        app.router.add_post(LOGOUT, self._logout)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        return app

    async def _login(self, request: web.Request) -> web.Response:
        if (why := self._foreign(request)) is not None:
            return web.Response(status=403, text=why)
        shown = request.query.get("token", "")
        if not self._token or not _same(shown, self._token):
            return web.Response(status=403, text="this link was used already; `elastic dashboard` prints another\n")
        self._token = ""
        answer = web.Response(status=303, headers={"Location": "/", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"})
        answer.set_cookie(self._name, self._cookie, httponly=True, samesite="Strict", path="/")
        return answer

    async def _logout(self, request: web.Request) -> web.Response:
        if (why := self._foreign(request) or self._unknown(request)) is not None:
            return _refused(request, why)
        self._renew()
        self._left(self.link)
        return web.json_response({"isLoggedIn": False})

    def _unknown(self, request: web.Request) -> str | None:
        return None if _same(request.cookies.get(self._name, ""), self._cookie) else "open the link that `elastic dashboard` printed last\n"

    def _foreign(self, request: web.Request) -> str | None:
        """Return why a request is not from our own page; the dashboard checks requests with a token less strictly."""
        host, origin = request.headers.get("Host", "").lower(), request.headers.get("Origin")
        if host not in self._hosts:
            return "this server has another name\n"
        is_programs = "Authorization" in request.headers
        if (origin is None and request.method not in READING and not is_programs) or origin not in (None, f"http://{host}"):
            return "this request comes from a page of another site\n"
        if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none") and request.path.startswith("/api/"):
            return "this request comes from a page of another site\n"
        return None

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        if (why := self._foreign(request)) is not None:
            return _refused(request, why)
        own = request.headers.get("Authorization")
        if own is None and (why := self._unknown(request)) is not None:
            return _refused(request, why)
        headers = {name: request.headers[name] for name in ASKED if name in request.headers}
        try:
            headers |= {"Host": request.headers["Host"], "Authorization": own or f"Bearer {await self._credentials()}"}
            body = await request.read() if request.can_read_body else None
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_S, sock_read=ANSWER_S)
            asked = self._far.request(
                request.method, f"http://dashboard{request.rel_url}", headers=headers, data=body, allow_redirects=False, timeout=timeout
            )
            async with asked as answer:
                return await _copied(request, answer)
        except KubeError as error:
            return web.json_response({"error": error.message}, status=502)
        except (aiohttp.ClientError, TimeoutError) as error:
            return web.json_response({"error": f"the dashboard did not answer: {error or type(error).__name__}"}, status=502)


def _refused(request: web.Request, why: str) -> web.Response:
    """Return a refusal: as JSON for scripts of the page, like the dashboard's own, and as text for people."""
    if request.path.startswith("/api/"):
        return web.json_response({"error": why.strip()}, status=403)
    return web.Response(status=403, text=why)


async def _copied(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    kept = [(name, value) for name, value in answer.headers.items() if name.lower() not in DROPPED]
    copy = web.StreamResponse(status=answer.status, headers=kept)
    await copy.prepare(request)
    try:
        async for chunk in answer.content.iter_any():
            await copy.write(chunk)
        await copy.write_eof()
    except (aiohttp.ClientError, TimeoutError):
        # The answer has begun: only a broken connection shows that it is incomplete.
        if request.transport is not None:
            request.transport.abort()
    return copy


def _same(shown: str, known: str) -> bool:
    return hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), known.encode())
