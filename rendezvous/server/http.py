"""The HTTPS face of the rendezvous server: rights of its callers, and the form of requests and replies. The hub decides on membership."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Never

import msgspec
from aiohttp import WSCloseCode, web

from elastic.kube.errors import KubeError
from elastic.membership import limits, protocol
from elastic.membership.bounds import Name
from elastic.membership.training import Forgotten, Report
from elastic.membership.wire import Decoder, Expectation, encode
from elastic_training.rendezvous.server.access import Gate
from elastic_training.rendezvous.server.brief_worlds import BriefWorlds
from elastic_training.rendezvous.server.failure_log import FailureLog
from elastic_training.rendezvous.server.fault import Undecided
from elastic_training.rendezvous.server.host_routes import HostRoutes
from elastic_training.rendezvous.server.hub import Full, Hub
from elastic_training.rendezvous.server.join_rates import JoinRates
from elastic_training.rendezvous.server.members import serve_member
from elastic_training.rendezvous.server.metered import Unread
from elastic_training.rendezvous.server.reviews import Busy
from elastic_training.rendezvous.server.tcp_info import answered_at
from elastic_training.rendezvous.server.trainer_status import TrainerStatusRoute
from elastic_training.rendezvous.server.versions import Versions
from elastic_training.rendezvous.server.world_lines import WorldLines

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 2.0
"""Seconds after which a controller without news is sent an empty line, by which it sees that the stream is alive."""
WRITE_S = 20.0
GOOD_BYE_S = 1.0
LEAST_GAP_S = 0.01
LATE_GAP_S = 0.1
BYTES_A_TURN = 32 * 2**10
PROGRESS_GAP_S = 0.5
MAX_STREAMS = 64

_expectations = Decoder[Expectation](Expectation)
_reports = msgspec.json.Decoder(Report)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Face:
    """Routes of one server."""

    def __init__(self, *, hub: Hub, gate: Gate, clock: Callable[[], float], metrics: Callable[[], tuple[bytes, str]]) -> None:
        self._hub = hub
        self._gate = gate
        self._clock = clock
        self._metrics = metrics
        self._brief_worlds = BriefWorlds()
        self._join_rates = JoinRates(clock)
        self._unread_of_jobs: Counter[str] = Counter()
        self._failures = FailureLog()
        self._streams = 0
        self._sockets: set[web.WebSocketResponse] = set()
        self._listeners: set[asyncio.Task[object]] = set()

    def application(self) -> web.Application:
        versions = Versions()
        app = web.Application(client_max_size=limits.EXPECTATION_BODY, middlewares=[versions.refuse_unknown])
        app.on_response_prepare.append(versions.name)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/metrics", self._show_metrics)
        app.router.add_get("/v1/jobs/{uid}/members/{member}", self._member)
        app.router.add_put("/v1/jobs/{uid}/expectation", self._expect)
        app.router.add_get("/v1/jobs/{uid}/world", self._world, allow_head=False)
        app.router.add_post("/v1/jobs/{uid}/report", self._report)
        app.router.add_get("/v1/jobs/{uid}/signals", self._signals)
        app.router.add_delete("/v1/jobs/{uid}", self._forget)
        app.router.add_get("/v1/worlds", self._worlds)
        app.router.add_put(r"/v1/leader/{term:\d{1,15}}", self._lead)
        app.router.add_get("/v1/progress", self._progress)
        TrainerStatusRoute(jobs=self._hub, gate=self._gate).add_to(app.router)
        HostRoutes(lists=self._hub.hosts, gate=self._gate, refuse_others=self._refuse_others).add_to(app.router)
        return app

    async def close(self) -> None:
        """Tell members and controllers that this server goes, so that they look for the next one at once.

        None of them is waited for one by one: thousands of members, or a silent one, would keep the address of the next server waiting.
        """
        for listener in self._listeners:
            listener.cancel()
        goodbyes = [asyncio.create_task(socket.close(code=WSCloseCode.GOING_AWAY)) for socket in self._sockets]
        if goodbyes:
            await asyncio.wait(goodbyes, timeout=GOOD_BYE_S)

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _show_metrics(self, request: web.Request) -> web.Response:
        body, content_type = self._metrics()
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _member(self, request: web.Request) -> web.StreamResponse:
        uid, member = request.match_info["uid"], request.match_info["member"]
        if not (_is_name(uid) and _is_name(member)):
            return _refusal(400, "the names of job and member are 1 to 253 characters of printable ASCII without quotes and backslashes")
        if not self._gate.is_agent(_bearer(request), uid):
            return _refusal(401, "this token is not one of this job's; is ELASTIC_TOKEN the one of the job's Secret?")
        return await serve_member(
            request,
            self._hub,
            uid=uid,
            name=member,
            clock=self._clock,
            open_sockets=self._sockets,
            may_join=self._join_rates.allows(uid, self._hub.job(uid)),
            unread=Unread(self._unread_of_jobs, uid),
            failures=self._failures,
        )

    async def _expect(self, request: web.Request) -> web.StreamResponse:
        if (refusal := await self._refuse_others(request)) is not None:
            return refusal
        if not _is_name(request.match_info["uid"]):
            return _refusal(400, "the uid of a job is 1 to 253 characters of printable ASCII without quotes and backslashes")
        try:
            expectation = _expectations.decode(await request.read())
        except (msgspec.MsgspecError, RecursionError) as error:
            return _refusal(400, f"expectation: {error}")
        try:
            taken = self._hub.expect(request.match_info["uid"], expectation)
        except Full as error:
            return _refusal(429, str(error))
        except Undecided as error:
            return _refusal(500, str(error))
        return (
            web.Response(status=204)
            if taken
            else _refusal(409, f"expectation {expectation.number} of term {expectation.term} is older than the last one")
        )

    async def _forget(self, request: web.Request) -> web.StreamResponse:
        if (refusal := await self._refuse_others(request)) is not None:
            return refusal
        step = self._hub.forget(request.match_info["uid"])
        return web.Response(body=encode(Forgotten(step=step)), content_type="application/json")

    async def _world(self, request: web.Request) -> web.StreamResponse:
        """Answer the whole world to a controller, and a brief one to the job itself."""
        uid = request.match_info["uid"]
        is_agent = self._gate.is_agent(_bearer(request), uid)
        if not is_agent and (refusal := await self._refuse_others(request)) is not None:
            return refusal
        job = self._hub.job(uid)
        if job is None:
            return _refusal(404, "this server has no such job")
        if not is_agent:
            return web.Response(body=encode(self._hub.world(uid)), content_type="application/json")
        if not await self._brief_worlds.has_turn(uid):
            return _refusal(429, "another caller of this job is still taking its answer; ask again in a moment")
        return await self._brief_worlds.answer(request, self._hub.job(uid) or job)

    async def _report(self, request: web.Request) -> web.StreamResponse:
        uid = request.match_info["uid"]
        if not self._gate.is_agent(_bearer(request), uid):
            return _refusal(401, "this token is not one of this job's")
        if (request.content_length or limits.REPORT_BODY + 1) > limits.REPORT_BODY:
            return _refusal(413, f"a report has a Content-Length of at most {limits.REPORT_BODY} bytes")
        try:
            report = _reports.decode(await request.read())
            answer = self._hub.report(uid, report)
        except (msgspec.MsgspecError, RecursionError) as error:
            return _refusal(400, f"report: {error}")
        return web.Response(body=encode(answer), content_type="application/json")

    async def _signals(self, request: web.Request) -> web.StreamResponse:
        if (refusal := await self._refuse_others(request, may_read=True)) is not None:
            return refusal
        return web.Response(body=encode(self._hub.signals(request.match_info["uid"])), content_type="application/json")

    async def _worlds(self, request: web.Request) -> web.StreamResponse:
        """Send every job's world, then every change, one JSON object a line. An empty line now and then shows that the stream is alive."""
        if (refusal := await self._refuse_others(request)) is not None:
            return refusal

        async def send(response: web.StreamResponse) -> None:
            transport = request.transport
            connection = transport.get_extra_info("socket") if transport is not None else None
            lines = WorldLines(self._hub, clock=self._clock, only_changes=protocol.takes_changes(request.headers.get(protocol.HEADER)))
            gives_signs = protocol.GIVES_SIGNS in request.headers
            with self._hub.signs.listening(None if gives_signs else lambda: answered_at(connection, now=self._clock())):
                await self._send_worlds(response, lines)

        return await self._stream(request, send)

    async def _lead(self, request: web.Request) -> web.StreamResponse:
        """Take a sign of the controller that leads in this term."""
        if (refusal := await self._refuse_others(request)) is not None:
            return refusal
        is_newest = self._hub.signs.led(int(request.match_info["term"]))
        return web.Response(status=204) if is_newest else _refusal(409, "a controller of a later term has spoken")

    async def _progress(self, request: web.Request) -> web.StreamResponse:
        """Send every job's progress, then every change, in the same form."""
        if (refusal := await self._refuse_others(request, may_read=True)) is not None:
            return refusal
        return await self._stream(request, self._send_progress)

    async def _stream(self, request: web.Request, send: Callable[[web.StreamResponse], Awaitable[None]]) -> web.StreamResponse:
        """Send until the connection breaks or the peer takes nothing more."""
        if self._streams >= MAX_STREAMS:
            return _refusal(429, f"{MAX_STREAMS} streams are open already")
        response = web.StreamResponse(headers={"Content-Type": "application/jsonl"})
        await response.prepare(request)
        transport, task = request.transport, asyncio.current_task()
        assert task is not None
        self._streams += 1
        self._listeners.add(task)
        try:
            await send(response)
        except (ConnectionError, TimeoutError):
            pass
        finally:
            self._streams -= 1
            self._listeners.discard(task)
            if transport is not None and not transport.is_closing():
                transport.abort()  # a client that does not read must not keep the connection
        return response

    async def _send_worlds(self, response: web.StreamResponse, lines: WorldLines) -> Never:
        while True:
            await _write(response, lines.news())
            await asyncio.sleep(LEAST_GAP_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hub.wait_newer(lines.version), LATE_GAP_S if lines.is_late else KEEP_ALIVE_S)

    async def _send_progress(self, response: web.StreamResponse) -> Never:
        version = -1
        while True:
            self._hub.progress.publish_due()
            newest = self._hub.progress.version
            await _write(response, (encode(progress) + b"\n" for progress in self._hub.progress_since(version)))
            version = newest
            await asyncio.sleep(PROGRESS_GAP_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hub.progress.wait_newer(version), KEEP_ALIVE_S)

    async def _refuse_others(self, request: web.Request, *, may_read: bool = False) -> web.Response | None:
        """Return a refusal for everybody but a controller. If the request changes nothing, an autoscaler may pass, too."""
        token, address = _bearer(request), request.remote or ""
        if not token:
            return _refusal(401, "a bearer token is needed")
        try:
            is_control = await self._gate.is_control(token, address=address) or (
                may_read and await self._gate.is_reader(token, address=address)
            )
        except Busy as error:
            return _refusal(503, f"{error}; try again")
        except KubeError as error:
            log.warning("the API server could not review a token", extra={"error": str(error)})
            return _refusal(503, "the API server could not be asked whose token this is; try again")
        return None if is_control else _refusal(403, "only the control plane may do this")


async def _write(response: web.StreamResponse, lines: Iterable[bytes]) -> None:
    """Write these lines, or an empty one."""
    is_empty, since_turn = True, 0
    async with asyncio.timeout(WRITE_S):
        for line in lines:
            is_empty = False
            await response.write(line)
            since_turn += len(line)
            if since_turn >= BYTES_A_TURN:
                since_turn = 0
                await asyncio.sleep(0)  # a peer that takes everything at once must not keep the loop
        if is_empty:
            await response.write(b"\n")


def _is_name(text: str) -> bool:
    try:
        msgspec.convert(text, Name)
    except msgspec.ValidationError:
        return False
    return True


def _bearer(request: web.Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _refusal(status: int, message: str) -> web.Response:
    return web.Response(status=status, body=encode({"error": message}), content_type="application/json")
