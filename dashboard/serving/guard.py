"""Rules for every request and answer.

They say by which names clients may call us, from which pages changes may come, and how browsers may use our pages. The check of names
refuses pages of other sites whose name resolves to our address (DNS rebinding).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    }
)
READING = ("GET", "HEAD")
NAMED = re.compile(r"(\[[0-9a-f:.]*\]|[^:]*)(?::[0-9]{1,5})?")


class Guard:
    def __init__(self, hosts: Iterable[str] = ()) -> None:
        self._hosts = LOOPBACK | {host.lower() for host in hosts}

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        why = self.refusal(request)
        if why is not None:
            return web.json_response({"error": why[1]}, status=why[0])
        return await handler(request)

    def refusal(self, request: web.Request) -> tuple[int, str] | None:
        """Return the status and the reason for refusing a request; None if it may be handled."""
        host = request.headers.get("Host", "")
        if host_name(host) not in self._hosts:
            return 421, f"this server is not called {host[:100]!r}; name it with --host, or open http://localhost"
        origin = request.headers.get("Origin")
        if origin is not None and _host_of(origin) != host.lower():
            return 403, "this request comes from a page of another site"
        if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none") and request.path.startswith("/api/"):
            return 403, "this request comes from a page of another site"
        if request.method not in READING:
            if origin is None and "Authorization" not in request.headers:
                return 403, "a change must name its page in the header Origin"
            if request.content_type != "application/json":
                return 415, "a change is sent as application/json"
        return None


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers in on_response_prepare, so that refusals and errors have them too."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    # Pages are asked for again too: they belong to the version that runs.
    response.headers.setdefault("Cache-Control", "no-store" if request.path.startswith("/api/") else "no-cache")


def _host_of(origin: str) -> str:
    """Return the host with the port; empty if this is no URL."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def host_name(host: str) -> str:
    """Return the name without the port; empty if no port follows the name."""
    found = NAMED.fullmatch(host.lower())
    return found[1] if found is not None else ""
