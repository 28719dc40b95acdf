"""Serve the node agent's HTTPS endpoint, like a kubelet's: the API server asks it for logs, and to run programs in containers.

Only clients with the API server's client certificate get an answer.
"""

import asyncio
import socket
import ssl
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import NoReturn

from aiohttp import web

from elastic.certificates import issue, make_ca
from elastic.local.agent import attach, logs, portforward
from elastic.local.agent import exec as running
from elastic.local.agent.dial import dial
from elastic.local.agent.environment import ConfigError, Object
from elastic.local.agent.fleet import Fleet
from elastic.local.agent.links import SPDY, ClientGone, Streams, linked, negotiated
from elastic.local.agent.pod import PodRunner
from elastic.local.agent.runs import Run
from elastic.local.agent.spdysession import Connection, Session, Tunnel
from elastic.local.agent.usage import Usage
from elastic.local.sandbox import SandboxError
from elastic.local.sandbox.channel import Channel, HolderGone
from elastic.local.takeover import both_ways, taken_over
from elastic.runtime.listener import Bounds, Listener

ALLOWED = {("commonName", "kube-apiserver-kubelet-client"), ("organizationName", "system:masters")}
SHUTDOWN_S = 1.0
BOUNDS = Bounds(most=2048, strangers=64, of_one_address=2048)
"""Limits of connections. An API server holds a connection for each stream that it passes on."""
BACKLOG = 128


def server_context(authority: str) -> ssl.SSLContext:
    """Return a TLS context with a new certificate, which API servers do not check. Clients need one that the cluster's CA has signed."""
    own = make_ca("node agent")
    pair = issue(own, "node agent", names=("127.0.0.1", "localhost"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile() as file:
        file.write(pair.certificate + b"\n" + pair.key)
        file.flush()
        context.load_cert_chain(file.name)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority)
    return context


class Endpoint:
    """Serves all nodes of a process at one port. Namespace and name identify a pod."""

    def __init__(self, fleet: Fleet, channel: Channel, usage: Usage) -> None:
        self._fleet = fleet
        self._channel = channel
        self._usage = usage
        self._listener = Listener(BOUNDS)
        app = web.Application(middlewares=[self._listener.middleware, _api_server_only])
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        for method in ("GET", "POST"):
            app.router.add_route(method, "/exec/{namespace}/{pod}/{container}", self._exec)
            app.router.add_route(method, "/attach/{namespace}/{pod}/{container}", self._attach)
            app.router.add_route(method, "/portForward/{namespace}/{pod}", self._forward)
        app.router.add_get("/dial/{namespace}/{pod}/{port}", self._dial)
        app.router.add_get("/stats/summary", self._summary)
        app.router.add_get("/healthz", _healthy)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)

    async def start(self, host: str, authority: str) -> int:
        """Start to listen, and return the port."""
        await self._runner.setup()
        assert self._runner.server is not None
        self._opened = socket.create_server((host, 0), backlog=BACKLOG)
        self._listener.open([self._opened], self._runner.server, tls=server_context(authority), backlog=BACKLOG)
        return int(self._opened.getsockname()[1])

    async def stop(self) -> None:
        await self._listener.close()
        self._opened.close()
        await self._listener.cleanup(self._runner)

    async def _summary(self, request: web.Request) -> web.Response:
        """Return a node's summary. A kubelet has only one node; here the parameter `node` names it."""
        name = request.query.get("node", "")
        agent = self._fleet.agent(name)
        if agent is None:
            _refuse(404, f'no node "{name}" runs here; name a node with ?node=')
        return web.json_response(await self._usage.summary(name, agent.runners))

    def _runner_of(self, request: web.Request) -> PodRunner:
        where = request.match_info
        runner = self._fleet.runner(where["namespace"], where["pod"])
        if runner is None:
            _refuse(404, f'pod "{where["pod"]}" in namespace "{where["namespace"]}" is not on this node')
        return runner

    def _container(self, request: web.Request) -> tuple[PodRunner, Object]:
        where, runner = request.match_info, self._runner_of(request)
        container = runner.container(where["container"])
        if container is None:
            _refuse(404, f'container {where["container"]} not found in pod "{where["pod"]}"')
        return runner, container

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        runner, container = self._container(request)
        wanted, previous = _wanted(request, now=time.time())
        name = container["name"]
        runs = runner.folder.runs(container)
        attempt = len(runs) - (2 if previous else 1)
        if attempt < 0:
            pod = request.match_info["pod"]
            if previous:
                _refuse(400, f'previous terminated container "{name}" in pod "{pod}" not found')
            _refuse(400, f'container "{name}" in pod "{pod}" is waiting to start: {runner.why_waiting(name)}')
        path = runner.folder.log(name, attempt)
        if not path.exists():
            _refuse(404, f'the log of container "{name}" is not kept any more')
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        async for chunk in logs.read(path, wanted, running=lambda: runner.runs_now(name, attempt)):
            await response.write(chunk)
        await response.write_eof()
        return response

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        runner, container = self._container(request)
        argv = request.query.getall("command", [])
        if not argv:
            _refuse(400, "you must specify at least 1 command for the container")
        run = _running(runner, container)
        try:
            launch = await runner.launch_beside(container, run_id=run.id)
        except ConfigError as error:
            _refuse(500, str(error))
        streams = _streams(request)
        try:
            async with linked(request, streams) as link:
                await running.serve(link, self._channel, running.command(launch, argv), streams)
                return link.response
        except ClientGone as gone:
            return gone.response

    async def _attach(self, request: web.Request) -> web.StreamResponse:
        runner, container = self._container(request)
        run = _running(runner, container)
        name, streams = container["name"], _streams(request)
        try:
            async with linked(request, streams) as link:
                path = runner.folder.log(name, run.attempt)
                typing = attach.Typing(self._channel, container, run.id)
                await attach.serve(link, path, streams, typing, running=lambda: runner.runs_now(name, run.attempt))
                return link.response
        except ClientGone as gone:
            return gone.response

    def _dialler(self, request: web.Request, *, inside: bool) -> Callable[[int], Awaitable[socket.socket]]:
        """Return a function that connects to a port of the pod."""
        runner = self._runner_of(request)
        if not runner.ip:
            _refuse(400, f'pod "{request.match_info["pod"]}" has no network yet')

        async def to(port: int) -> socket.socket:
            return await dial(self._channel, runner.pod["metadata"]["uid"], ip=runner.ip, port=port, inside=inside)

        return to

    async def _dial(self, request: web.Request) -> web.StreamResponse:
        """Connect the API server to a port of a pod.

        The API server is outside of the pods' network, but it asks webhooks and passes requests on.
        """
        try:
            connection = await self._dialler(request, inside=False)(_port(request.match_info["port"]))
        except (OSError, SandboxError, HolderGone) as error:
            _refuse(502, (error.strerror if isinstance(error, OSError) else None) or str(error))
        far = await asyncio.open_connection(sock=connection)
        try:
            async with taken_over(request, {"Connection": "Upgrade", "Upgrade": "tcp"}) as taken:
                await both_ways((taken.reader, taken.writer), far)
                return taken.response
        finally:
            far[1].close()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        to = self._dialler(request, inside=True)
        if request.headers.get("Upgrade", "").lower() == SPDY.lower():
            version = negotiated(request, (portforward.SPDY_PROTOCOL,))
            headers = {"Connection": "Upgrade", "Upgrade": SPDY, "X-Stream-Protocol-Version": version}
            async with taken_over(request, headers) as taken:
                await portforward.over_spdy(Session(Connection(taken.reader, taken.writer)), to)
                return taken.response
        ports = _ports(request)
        ws = web.WebSocketResponse(protocols=(portforward.TUNNEL_PROTOCOL, portforward.CHANNEL_PROTOCOL), max_msg_size=0)
        await ws.prepare(request)
        if ws.ws_protocol == portforward.TUNNEL_PROTOCOL:
            await portforward.over_spdy(Session(Tunnel(ws)), to)
        else:
            await portforward.over_channels(ws, ports, to)
        return ws


def _running(runner: PodRunner, container: Object) -> Run:
    runs = runner.folder.runs(container)
    if not runs or not runs[-1].running:
        _refuse(400, f"container {container['name']} is not running")
    return runs[-1]


def _streams(request: web.Request) -> Streams:
    query = request.query
    flags = {name: _flag(query.get(name) or query.get(old, "")) for name, old in _STREAMS.items()}
    return Streams(flags["stdin"], flags["stdout"], flags["stderr"], flags["tty"])


def _ports(request: web.Request) -> list[int]:
    """Return the ports named in the request. Clients that speak SPDY name them later."""
    words = [word for name in ("port", "ports") for text in request.query.getall(name, []) for word in text.split(",")]
    if len(words) > portforward.MOST_PORTS:
        _refuse(400, f"{len(words)} ports are asked for, but {portforward.MOST_PORTS} is the most")
    return [_port(word) for word in words]


def _port(word: str) -> int:
    if not word.isdigit() or not 0 < int(word) < 65536:
        _refuse(400, f"port is {word} but has to be a number between 1 and 65535")
    return int(word)


_STREAMS = {"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"}
"""Names of the streams in requests to the API server, and their names in requests to a kubelet."""


def _flag(text: str) -> bool:
    return text.lower() in ("1", "true")


def _wanted(request: web.Request, *, now: float) -> tuple[logs.Wanted, bool]:
    query = request.query
    numbers = {}
    for name in ("tailLines", "limitBytes", "sinceSeconds"):
        text = query.get(name)
        if text is not None and not text.isdigit():
            _refuse(400, f"{name} is {text} but has to be a whole number, zero or more")
        numbers[name] = None if text is None else int(text)
    seconds, since = numbers["sinceSeconds"], query.get("sinceTime")
    wanted = logs.Wanted(
        follow=_flag(query.get("follow", "")),
        tail_lines=numbers["tailLines"],
        limit_bytes=numbers["limitBytes"],
        since=_moment(since) if since else None if seconds is None else now - seconds,
        timestamps=_flag(query.get("timestamps", "")),
    )
    return wanted, _flag(query.get("previous", ""))


def _moment(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        _refuse(400, f"sinceTime is {text} but has to be a time like 2026-01-31T10:20:30Z")


def _refuse(code: int, words: str) -> NoReturn:
    kinds = {
        400: web.HTTPBadRequest,
        403: web.HTTPForbidden,
        404: web.HTTPNotFound,
        502: web.HTTPBadGateway,
        500: web.HTTPInternalServerError,
    }
    raise kinds[code](text=words)


async def _healthy(request: web.Request) -> web.Response:
    return web.Response(text="ok")


@web.middleware
async def _api_server_only(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
    certificate = request.get_extra_info("peercert") or {}
    subject = {entry for part in certificate.get("subject", ()) for entry in part}
    if not subject & ALLOWED:
        _refuse(403, "this client certificate does not belong to an API server")
    return await handler(request)
