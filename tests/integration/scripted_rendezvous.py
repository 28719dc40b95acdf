"""A rendezvous server that decides nothing: a test reads what its members say, and sends each of them the views that it wants."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from elastic.local.installation import ensure_installation
from elastic.local.ports import free_port
from elastic.membership import protocol
from elastic.membership.tokens import load_keys

Said = dict[str, Any]


class ScriptedServer:
    """The server, in a thread of this process. It takes the place of torch_agents.Server for Agents."""

    def __init__(self, folder: Path) -> None:
        self.installation = folder / "installation"
        ensure_installation(self.installation, addresses=())
        self.port = free_port()
        self.key = load_keys(self.installation)[0]
        self.ca = (self.installation / "ca.crt").read_text()
        self._lock = threading.Lock()
        self._heard: dict[str, list[Said]] = {}
        self._sockets: dict[str, web.WebSocketResponse] = {}
        self._views: dict[str, Said] = {}
        self._loop = asyncio.new_event_loop()
        self._serves = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._serves.wait(30)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)

    def heard(self, name: str) -> list[Said]:
        """Return all messages of this member so far, without beats."""
        with self._lock:
            return [dict(message) for message in self._heard.get(name, ())]

    def view(self, name: str, **fields: object) -> None:
        """Send a view to this member, now and on each later connection."""
        with self._lock:
            self._views[name] = fields
        asyncio.run_coroutine_threadsafe(self._send(name), self._loop).result(30)

    def break_connection(self, name: str) -> None:
        asyncio.run_coroutine_threadsafe(self._sockets[name].close(), self._loop).result(30)

    def world(self, job: str) -> object:
        """Return what a failed test shows."""
        with self._lock:
            return {name: (self._views.get(name), heard[-12:]) for name, heard in self._heard.items()}

    def log(self) -> str:
        return ""

    async def _send(self, name: str) -> None:
        socket, view = self._sockets.get(name), self._views.get(name)
        if socket is not None and view is not None and not socket.closed:
            await socket.send_str(json.dumps(view))

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._serves.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_get("/v1/jobs/{job}/members/{name}", self._member)
        self._runner = web.AppRunner(app, shutdown_timeout=0.5)
        await self._runner.setup()
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(self.installation / "tls.crt", self.installation / "tls.key")
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=tls).start()

    async def _member(self, request: web.Request) -> web.WebSocketResponse:
        name = request.match_info["name"]
        socket = web.WebSocketResponse(compress=False)
        socket.headers[protocol.HEADER] = protocol.VERSION
        await socket.prepare(request)
        self._sockets[name] = socket
        await self._send(name)
        async for frame in socket:
            message = json.loads(frame.data) if frame.type is WSMsgType.TEXT else {"t": "beat"}
            if message["t"] != "beat":
                with self._lock:
                    self._heard.setdefault(name, []).append(message)
        return socket
