"""The dashboard's HTTP server: pages for everybody, the API for callers with a session."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
from aiohttp import web

from elastic.client.summary import is_number
from elastic.kube.client import Kube
from elastic.kube.resources import PODS
from elastic.runtime import signed_cookie
from elastic.runtime.listener import Bounds, Listener
from elastic.runtime.served import served
from elastic_training.dashboard.serving import changes, readings
from elastic_training.dashboard.serving.callers import BadToken, Caller, NotReviewed
from elastic_training.dashboard.serving.changes import NOTICE_S, Reclaims
from elastic_training.dashboard.serving.guard import Guard, add_headers
from elastic_training.dashboard.serving.logs import MOST_LINES, USUAL_LINES, send_log
from elastic_training.dashboard.serving.sessions import SESSION_S, Session, Sessions
from elastic_training.dashboard.serving.shown import encode
from elastic_training.dashboard.serving.site import pages
from elastic_training.dashboard.serving.stream import NoPlace, StreamPlaces, Streams, ender, send
from elastic_training.dashboard.serving.views import Views
from elastic_training.dashboard.watching.observer import Observer
from elastic_training.dashboard.watching.seen import JobSeen, PodSeen

log = logging.getLogger(__name__)
BOUNDS = Bounds(most=512, strangers=128, of_one_address=384, first_request_s=10.0, body_s=10.0)
BACKLOG = 128
MOST_BODY = 64 * 1024
LONGEST_NAME = 253
Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]
SessionHandle = Callable[[web.Request, Session], Awaitable[web.StreamResponse]]


class Login(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSettings:
    allows_changes: bool = False
    is_secure: bool = False
    """Browsers reach us by https: cookies are sent so only."""
    command_options: str = ""
    """Options with which `elastic dashboard` and other commands find this laptop cluster."""


class Server:
    def __init__(
        self,
        *,
        observer: Observer,
        views: Views,
        streams: Streams,
        sessions: Sessions,
        guard: Guard,
        reclaims: Reclaims,
        settings: ServingSettings,
        is_ready: Callable[[], bool],
    ) -> None:
        self._observer, self._views, self._streams = observer, views, streams
        self._sessions, self._guard, self._reclaims, self._settings = sessions, guard, reclaims, settings
        self._is_ready = is_ready
        self._places, self._logs = StreamPlaces(), StreamPlaces()
        self._pages = pages()

    def application(self, *outer: object) -> web.Application:
        app = web.Application(client_max_size=MOST_BODY, middlewares=[*outer, self._guard.middleware, _answer_errors])  # type: ignore[list-item]
        app.on_response_prepare.append(add_headers)
        add = app.router
        add.add_get("/login", self._login_by_link)
        add.add_get("/api/session", self._session)
        add.add_post("/api/session", self._login)
        add.add_post("/api/session/end", self._logout)
        add.add_get("/api/jobs", self._known(self._jobs))
        add.add_get("/api/jobs/{namespace}/{name}", self._known(self._job))
        add.add_get("/api/jobs/{namespace}/{name}/logs", self._known(self._log))
        add.add_get("/api/jobs/{namespace}/{name}/definition", self._reading(readings.definition))
        add.add_get("/api/jobs/{namespace}/{name}/usage", self._reading(readings.usage))
        add.add_post("/api/jobs/{namespace}/{name}/scale", self._changing(changes.scale))
        add.add_post("/api/jobs/{namespace}/{name}/suspend", self._changing(changes.suspend))
        add.add_get("/api/nodes", self._known(self._nodes))
        add.add_post("/api/nodes/{name}/reclaim", self._known(self._reclaim))
        add.add_get("/api/stream", self._known(self._stream))
        add.add_get("/{path:.*}", self._page)
        return app

    @asynccontextmanager
    async def serving(self, opened: socket.socket, tls: ssl.SSLContext | None) -> AsyncIterator[None]:
        listener = Listener(BOUNDS)
        runner = web.AppRunner(self.application(listener.middleware), handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        try:
            async with served(runner, listener, opened, tls=tls, backlog=BACKLOG):
                yield
        finally:
            await self._reclaims.close()
            await self._sessions.close()

    async def _page(self, request: web.Request) -> web.Response:
        file = self._pages.get(request.path)
        return file.answer(request) if file is not None else web.Response(status=404, text="there is no such page\n")

    # --- sessions

    async def _session(self, request: web.Request) -> web.Response:
        session = await self._sessions.of(request)
        return web.json_response(
            {
                "isLoggedIn": session is not None,
                "wants": self._sessions.wants,
                "commandOptions": self._settings.command_options,
                "isReady": self._is_ready(),
                "allowsChanges": self._settings.allows_changes,
                "reclaimSeconds": NOTICE_S if self._settings.allows_changes and self._reclaims.is_possible else None,
            }
        )

    async def _login_by_link(self, request: web.Request) -> web.Response:
        cookie = await self._sessions.begin(request.query.get("token", "")) if self._sessions.wants == "link" else None
        response = web.Response(
            status=303, headers={"Location": "/" if cookie is not None else "/#/login?refused", "Cache-Control": "no-store"}
        )
        return self._with_cookie(request, response, cookie)

    async def _login(self, request: web.Request) -> web.Response:
        cookie = await self._sessions.begin(msgspec.json.decode(await request.read(), type=Login).token.strip())
        if cookie is None:
            return web.json_response({"error": "this token is not known, or has been used"}, status=401)
        return self._with_cookie(request, web.json_response({"isLoggedIn": True}), cookie)

    def _with_cookie(self, request: web.Request, response: web.Response, cookie: str | None) -> web.Response:
        if cookie is not None:
            response.set_cookie(
                signed_cookie.name(request.host),
                cookie,
                max_age=SESSION_S,
                path="/",
                httponly=True,
                samesite="Strict",
                secure=self._settings.is_secure,
            )
        return response

    async def _logout(self, request: web.Request) -> web.Response:
        if await self._sessions.of(request) is not None:
            await self._sessions.end(request)
        response = web.json_response({"isLoggedIn": False})
        response.del_cookie(signed_cookie.name(request.host), path="/")
        return response

    def _known(self, handler: SessionHandle) -> Handle:
        async def handle(request: web.Request) -> web.StreamResponse:
            session = await self._sessions.of(request)
            if session is None:
                return web.json_response({"error": "log in first"}, status=401)
            if not self._is_ready():
                return web.json_response({"error": "the cluster has not been seen yet; try again"}, status=503)
            return await handler(request, session)

        return handle

    # --- pages and data

    async def _jobs(self, request: web.Request, session: Session) -> web.Response:
        return _json(await self._streams.list_of(session.caller))

    async def _job(self, request: web.Request, session: Session) -> web.Response:
        job = await self._asked_for(request, session.caller)
        page = encode(await self._views.page(session.caller, job))
        return _json(page[:-1] + b',"history":' + self._streams.history(job.uid) + b"}")

    async def _nodes(self, request: web.Request, session: Session) -> web.Response:
        nodes = await self._views.nodes(session.caller)
        if nodes is None:
            return web.json_response({"error": "you may not list nodes"}, status=403)
        return _json(encode(nodes))

    async def _log(self, request: web.Request, session: Session) -> web.StreamResponse:
        job = await self._asked_for(request, session.caller)
        if not await session.caller.may_read(PODS, job.key.namespace):
            return web.json_response({"error": f"you may not list pods in namespace {job.key.namespace}"}, status=403)
        pod = self._pod(request, job)
        lines = min(_number(request, "lines", USUAL_LINES), MOST_LINES)
        with self._logs.taken(session, ender(request)):
            return await send_log(request, session.caller.kube, pod, lines=lines, follow=request.query.get("follow") == "true")

    def _reading(self, read: Callable[[Kube, JobSeen], Awaitable[web.Response]]) -> Handle:
        async def handle(request: web.Request, session: Session) -> web.Response:
            return await read(session.caller.kube, await self._asked_for(request, session.caller))

        return self._known(handle)

    def _pod(self, request: web.Request, job: JobSeen) -> PodSeen:
        pods = self._observer.pods_of(job)
        wanted = request.query.get("pod")
        if wanted is not None:
            found = [pod for pod in pods if pod.key[1] == wanted]
        else:
            rank = _number(request, "rank", 0)
            found = [pod for pod in pods if rank in (job.rank_of_index.get(pod.index), pod.fixed_rank)]
            # Without ranks in the API the first pod is the nearest to rank 0.
            found = found or (pods[:1] if rank == 0 else [])
        if not found:
            raise _Refused(404, "this job has no such worker now")
        return found[0]

    async def _stream(self, request: web.Request, session: Session) -> web.StreamResponse:
        match request.query.get("of", "jobs"):
            case "jobs":
                texts = self._streams.jobs(session.caller)
            case "nodes":
                texts = self._streams.nodes(session.caller)
            case "job":
                job = await self._found(
                    session.caller, request.query.get("namespace", ""), request.query.get("name", ""), request.query.get("kind")
                )
                texts = self._streams.job(session.caller, job.uid)
            case _:
                raise _Refused(400, "of must be jobs, job or nodes")
        with self._places.taken(session, ender(request)):
            return await send(request, texts)

    async def _asked_for(self, request: web.Request, caller: Caller) -> JobSeen:
        return await self._found(caller, request.match_info["namespace"], request.match_info["name"], request.query.get("kind"))

    async def _found(self, caller: Caller, namespace: str, name: str, kind: str | None) -> JobSeen:
        is_name = len(namespace) <= LONGEST_NAME and len(name) <= LONGEST_NAME
        found = await self._views.find(caller, namespace, name, kind or None) if is_name else []
        if not found:
            # A caller who may not read the job gets the same words, and so does not learn whether it exists.
            raise _Refused(404, f"there is no job {name[:LONGEST_NAME]} in namespace {namespace[:LONGEST_NAME]}, or you may not read it")
        if len(found) > 1:
            raise _Refused(409, f"jobs of several kinds have this name; add ?kind={found[0].key.kind}")
        return found[0]

    # --- changes

    def _changing(self, change: Callable[..., Awaitable[web.Response]]) -> Handle:
        async def handle(request: web.Request, session: Session) -> web.Response:
            self._check_changes()
            job = await self._asked_for(request, session.caller)
            return await change(session.caller.kube, job, await request.read())

        return self._known(handle)

    async def _reclaim(self, request: web.Request, session: Session) -> web.Response:
        self._check_changes()
        if not self._reclaims.is_possible:
            raise _Refused(403, "only nodes of the laptop cluster can be reclaimed here")
        node = self._observer.node(request.match_info["name"])
        if node is None:
            raise _Refused(404, f"there is no node {request.match_info['name'][:LONGEST_NAME]}")
        return await self._reclaims.begin(node)

    def _check_changes(self) -> None:
        if not self._settings.allows_changes:
            raise _Refused(403, "this dashboard only reads; start it with --allow-changes")


class _Refused(Exception):
    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


@web.middleware
async def _answer_errors(request: web.Request, handler: Handle) -> web.StreamResponse:
    """Errors in words; what could not be foreseen is logged, and says nothing of our inside."""
    try:
        return await handler(request)
    except _Refused as error:
        return web.json_response({"error": str(error)}, status=error.status)
    except BadToken:
        return web.json_response({"error": "the API server does not know this token any more; log in again"}, status=401)
    except NotReviewed as error:
        log.warning("the rights of a caller could not be reviewed", extra={"error": str(error)})
        return web.json_response({"error": "the API server did not say what you may read; try again"}, status=503)
    except TimeoutError:
        return web.json_response({"error": "the server is busy; try again"}, status=503)
    except NoPlace:
        return web.json_response({"error": "there are too many streams; close other pages"}, status=429)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return web.json_response({"error": str(error)[:300]}, status=400)


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json", charset="utf-8")


def _number(request: web.Request, name: str, usual: int) -> int:
    text = request.query.get(name)
    if text is None:
        return usual
    if not is_number(text):
        raise _Refused(400, f"{name} must be a number")
    return int(text)
