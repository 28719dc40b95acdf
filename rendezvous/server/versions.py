"""The version of messages at the door: each response names ours, and a peer of an unknown major version is refused in words."""

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from elastic.membership import protocol

log = logging.getLogger(__name__)
MOST_LOGGED = 32


class Versions:
    """The versions of the members of one server, which logs each unknown version once."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    async def name(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers[protocol.HEADER] = protocol.VERSION

    @web.middleware
    async def refuse_unknown(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        is_member = "member" in request.match_info or request.path.endswith("/report")
        peer = "this agent" if is_member else "this controller"
        why = protocol.obstacle(request.headers.get(protocol.HEADER), peer=peer, here="this rendezvous server")
        if not why:
            return await handler(request)
        if why not in self._logged and len(self._logged) < MOST_LOGGED:
            self._logged.add(why)
            log.warning("a peer was refused", extra={"peer": request.remote, "path": request.path, "why": why})
        return web.Response(status=protocol.UPGRADE_REQUIRED, text=why)
