"""The server behind the API services of the metrics groups: every replica answers, whether it leads or not."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime

import aiohttp
from aiohttp import web

from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.runtime.cert_rotation import CertificateName, Keeping
from elastic.runtime.listener import Bounds, Listener
from elastic.runtime.served import served
from elastic_training.autoscale.figures import Figures
from elastic_training.autoscale.serving.access import Access, Question
from elastic_training.autoscale.serving.answers import Asked, Known, Reply, Workers, document, failed, parsed, values
from elastic_training.autoscale.serving.applied import Autoscalers
from elastic_training.autoscale.serving.identity import Caller, Identity
from elastic_training.autoscale.serving.registration import Registration

log = logging.getLogger(__name__)
BOUNDS = Bounds(most=256, strangers=128, of_one_address=200, first_request_s=5.0, pace_s=0.002)
BACKLOG = 128
REVIEWED_WITHIN_S = 8.0
STRANGERS_AT_ONCE = 8
"""Clients that are no API server whose questions are reviewed at a time: each costs two requests of ours."""
HEALTH = ("/healthz", "/livez", "/readyz")


class MetricsApi:
    def __init__(
        self,
        kube: Kube,
        figures: Figures,
        workers: Workers,
        opened: socket.socket,
        place: CertificateName,
        *,
        owner: str,
        namespace: str | None,
    ) -> None:
        self._opened = opened
        self._autoscalers = Autoscalers(kube, namespace=namespace)
        self._known = Known(figures, self._autoscalers.desired, workers)
        self._registration = Registration(kube, place, owner=owner)
        self._keeping = Keeping(kube, place, self._registration.trust, clock=lambda: datetime.now(UTC))
        self._identity = Identity(kube, self._keeping.tls)
        self._keeping.shown = self._identity.show
        self._access = Access(kube)
        self._strangers = asyncio.Semaphore(STRANGERS_AT_ONCE)

    async def run(self) -> None:
        """Serve until cancelled. Then close the socket."""
        with self._opened:
            await self._identity.look()
            await self._keeping.begin()
            async with self._serving(), asyncio.TaskGroup() as group:
                group.create_task(self._keeping.run())
                group.create_task(self._identity.run())
                group.create_task(self._autoscalers.run())

    def _serving(self) -> AbstractAsyncContextManager[None]:
        listener = Listener(BOUNDS)
        app = web.Application(client_max_size=1024, middlewares=[listener.middleware])
        app.router.add_route("*", "/{tail:.*}", self._handle)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        return served(runner, listener, self._opened, tls=self._keeping.tls, backlog=BACKLOG)

    async def _handle(self, request: web.Request) -> web.Response:
        reply = await self._reply(request)
        response = web.json_response(reply.body, status=reply.status)
        if reply.status == 401:
            # An API server whose authority has changed since it connected is known again with its next connection.
            response.force_close()
        return response

    async def _reply(self, request: web.Request) -> Reply:
        path = request.path
        if path in HEALTH:
            return Reply(200, {"status": "ok"})
        if request.method != "GET":
            return failed(405, "MethodNotAllowed", f"only GET is served, and this is {request.method}")
        asked, known = parsed(path), document(path)
        if known is not None:
            # They tell nothing of jobs, and must not depend on an answer from elsewhere. An API server asks as a user without groups.
            return known
        if asked is None:
            return failed(404, "NotFound", f"there is nothing at {path}")
        try:
            async with asyncio.timeout(REVIEWED_WITHIN_S):
                refusal = await self._refusal(request, asked)
        except (KubeError, aiohttp.ClientError, TimeoutError) as error:
            log.warning("who asks could not be reviewed", extra={"path": path, "error": str(error) or repr(error)})
            return failed(503, "ServiceUnavailable", "the API server did not say whether this is allowed; try again")
        if refusal is not None:
            return refusal
        return values(asked, request.query, self._known, now=time.time())

    async def _refusal(self, request: web.Request, asked: Asked) -> Reply | None:
        """Return the refusal of a request. API servers come first: only a few other clients at a time cost us requests of our own."""
        caller = self._identity.told(request)
        if caller is not None:
            return await self._forbidden(request.path, caller, asked)
        async with self._strangers:
            caller = await self._identity.shown(request)
            if caller is None:
                return failed(401, "Unauthorized", "Unauthorized")
            return await self._forbidden(request.path, caller, asked)

    async def _forbidden(self, path: str, caller: Caller, asked: Asked) -> Reply | None:
        if await self._access.allows(Question(caller, asked)):
            return None
        return failed(403, "Forbidden", f'forbidden: User "{caller.name}" cannot get path "{path}"')
