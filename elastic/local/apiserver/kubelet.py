"""Logs, exec and attach of pods: passed on to the agent of the pod's node, which serves them as a kubelet does."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

import aiohttp
from aiohttp import WSMsgType, web

from elastic.local.apiserver.calls import Call
from elastic.local.apiserver.errors import Cause, Json, StatusError, bad, bad_request, forbidden_field, invalid, not_found
from elastic.local.apiserver.store import Store

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")


class Kubelets:
    def __init__(self, store: Store, context: Callable[[], ssl.SSLContext]) -> None:
        self._store, self._context = store, context
        self._session: aiohttp.ClientSession | None = None

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._context(), limit=0)
            self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None, sock_connect=5))
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def serve(self, request: web.Request, call: Call) -> web.StreamResponse:
        entry = self._store.get("pods", call.namespace, call.name)
        if entry is None:
            raise not_found("", "pods", call.name)
        pod = entry.load()
        if call.subresource == "log":
            return await self._log(request, call, pod)
        return await self._exec(request, call, pod)

    def _address(self, pod: Json) -> str:
        """The base URL of the node's agent."""
        name = pod["spec"]["nodeName"]
        entry = self._store.get("nodes", "", name)
        if entry is None:
            raise StatusError(500, "InternalError", f'Internal error occurred: node "{name}" not found')
        status = entry.load().get("status") or {}
        port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port")
        addresses = {a["type"]: a["address"] for a in status.get("addresses") or ()}
        host = addresses.get("InternalIP") or addresses.get("Hostname")
        if not port or not host:
            raise StatusError(500, "InternalError", f'Internal error occurred: node "{name}" tells no address and port of its agent')
        return f"https://{host}:{port}"

    async def _log(self, request: web.Request, call: Call, pod: Json) -> web.StreamResponse:
        self._check_log_options(call)
        container = container_of(call, pod)
        if not pod["spec"].get("nodeName"):
            return web.Response(status=204)
        url = f"{self._address(pod)}/containerLogs/{call.namespace}/{call.name}/{container}"
        query = {k: v for k, v in call.query.items() if k != "container"}
        try:
            async with self._client().get(url, params=query) as answer:
                response = web.StreamResponse(status=answer.status, headers={"Content-Type": "text/plain"})
                await response.prepare(request)
                try:
                    async for chunk in answer.content.iter_any():
                        await response.write(chunk)
                    await response.write_eof()
                except aiohttp.ClientPayloadError:
                    # The agent ended in the middle. An answer can no longer say so; a stream that breaks off does.
                    if request.transport is not None:
                        request.transport.abort()
                return response
        except aiohttp.ClientConnectorError as e:
            raise StatusError(
                500, "InternalError", f"Internal error occurred: the agent of node {pod['spec']['nodeName']} does not answer: {e}"
            ) from None

    @staticmethod
    def _check_log_options(call: Call) -> None:
        causes: list[Cause] = []
        for name in ("tailLines", "limitBytes", "sinceSeconds"):
            value = call.integer(name)
            least = 0 if name == "tailLines" else 1
            if value is not None and value < least:
                causes.append(bad(name, value, f"must be greater than or equal to {least}" if not least else "must be greater than 0"))
        if call.query.get("sinceSeconds") and call.query.get("sinceTime"):
            causes.append(forbidden_field("[]", "at most one of `sinceTime` or `sinceSeconds` may be specified"))
        if causes:
            raise invalid("", "PodLogOptions", call.name, causes)

    async def _exec(self, request: web.Request, call: Call, pod: Json) -> web.StreamResponse:
        container = container_of(call, pod)
        if not pod["spec"].get("nodeName"):
            raise bad_request(f"pod {call.name} does not have a host assigned")
        if request.headers.get("Upgrade", "").lower() != "websocket":
            raise bad_request("Upgrade request required: only WebSocket connections are served")
        base = self._address(pod).replace("https://", "wss://")
        url = f"{base}/{call.subresource}/{call.namespace}/{call.name}/{container}?{request.query_string}"
        offered = [p.strip() for p in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        wanted = [p for p in PROTOCOLS if p in offered]
        try:
            async with self._client().ws_connect(url, protocols=wanted, max_msg_size=0, autoping=True) as inner:
                outer = web.WebSocketResponse(protocols=[inner.protocol] if inner.protocol else (), max_msg_size=0)
                await outer.prepare(request)
                await _both_ways(outer, inner)
                return outer
        except aiohttp.WSServerHandshakeError as e:
            raise StatusError(e.status, "InternalError", f"the agent refused: {e.message}") from None
        except aiohttp.ClientConnectorError as e:
            raise StatusError(
                500, "InternalError", f"Internal error occurred: the agent of node {pod['spec']['nodeName']} does not answer: {e}"
            ) from None


async def _both_ways(outer: web.WebSocketResponse, inner: aiohttp.ClientWebSocketResponse) -> None:
    """Passes frames on until the agent's side closes, or the client's does."""

    async def inwards() -> None:
        async for message in outer:
            if message.type is WSMsgType.BINARY:
                await inner.send_bytes(message.data)
            elif message.type is WSMsgType.TEXT:
                await inner.send_str(message.data)
        await inner.close()

    sending = asyncio.create_task(inwards())
    try:
        async for message in inner:
            if message.type is WSMsgType.BINARY:
                await outer.send_bytes(message.data)
            elif message.type is WSMsgType.TEXT:
                await outer.send_str(message.data)
        sending.cancel()  # else its reading takes the client's answer to the close frame
        await outer.close(code=inner.close_code or 1000)
    except ConnectionError:
        pass
    finally:
        sending.cancel()


def container_of(call: Call, pod: Json) -> str:
    spec = pod["spec"]
    known = [c["name"] for key in ("initContainers", "containers", "ephemeralContainers") for c in spec.get(key) or ()]
    asked = call.query.get("container", "")
    if asked:
        if asked not in known:
            raise bad_request(f"container {asked} is not valid for pod {call.name}")
        return asked
    names = [c["name"] for c in spec["containers"]]
    marked = (pod["metadata"].get("annotations") or {}).get("kubectl.kubernetes.io/default-container")
    if marked in names:
        return str(marked)
    if len(names) == 1:
        return str(names[0])
    inits = [c["name"] for c in spec.get("initContainers") or ()]
    more = f" or one of the init containers: [{' '.join(inits)}]" if inits else ""
    raise bad_request(f"a container name must be specified for pod {call.name}, choose one of: [{' '.join(names)}]{more}")
