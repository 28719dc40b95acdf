"""Pass logs, exec, attach and port-forward of pods on to the agent of the pod's node, which serves them as a kubelet does."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

import aiohttp
import orjson
from aiohttp import web

from elastic.kube.interim import BoundedAnswer
from elastic.local.apiserver.calls import Call
from elastic.local.apiserver.errors import Cause, Json, StatusError, bad, bad_request, forbidden_field, invalid, not_found
from elastic.local.apiserver.store import Store
from elastic.local.apiserver.upgrades import Tunnels, is_upgrade, passed_on
from elastic.local.dialled import bounded

SUMMARY_S, MOST_SUMMARY = 5.0, 8 << 20


class Kubelets:
    def __init__(self, store: Store, context: Callable[[], ssl.SSLContext]) -> None:
        self._store, self._context = store, context
        self._tunnels = Tunnels()
        self._session: aiohttp.ClientSession | None = None
        self._kept: ssl.SSLContext | None = None

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector, timeout = aiohttp.TCPConnector(ssl=self._tls(), limit=0), aiohttp.ClientTimeout(total=None, sock_connect=5)
            self._session = aiohttp.ClientSession(connector=connector, response_class=BoundedAnswer, timeout=timeout)
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        await self._tunnels.close()

    async def serve(self, request: web.Request, call: Call) -> web.StreamResponse:
        entry = self._store.get("pods", call.namespace, call.name)
        if entry is None:
            raise not_found("", "pods", call.name)
        pod = entry.load()
        if call.subresource == "log":
            return await self._log(request, call, pod)
        return await self._stream(request, call, pod)

    async def dial(self, pod: Json, port: int) -> socket.socket:
        """Return a connection to a port of a pod, in the pod's own network. Raises OSError with the reason if that fails."""
        meta = pod["metadata"]
        path = f"/dial/{meta['namespace']}/{meta['name']}/{port}"
        try:
            return await self._tunnels.dig(address=self._address(pod), path=path, context=self._tls())
        except StatusError as refused:
            raise OSError(refused.message) from None

    def address(self, pod: Json) -> tuple[str, int] | None:
        """Return the address of the agent of the pod's node; None for a pod that no agent of a node plays."""
        try:
            return self._address(pod) if pod["spec"].get("nodeName") else None
        except StatusError:
            return None

    async def summary(self, node: str) -> Json:
        """Return the resources that a node and its pods use. Raises StatusError if the node's agent does not answer in time."""
        host, port = self._place(node)
        url = f"https://{host}:{port}/stats/summary"
        try:
            async with asyncio.timeout(SUMMARY_S), self._client().get(url, params={"node": node}) as answer:
                answer.raise_for_status()
                read: Json = orjson.loads(await bounded(answer, most=MOST_SUMMARY))
                return read
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise _silent(node, error) from None

    def _address(self, pod: Json) -> tuple[str, int]:
        return self._place(pod["spec"]["nodeName"])

    def _place(self, name: str) -> tuple[str, int]:
        entry = self._store.get("nodes", "", name)
        if entry is None:
            raise StatusError(500, "InternalError", f'Internal error occurred: node "{name}" not found')
        status = entry.load().get("status") or {}
        port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port")
        addresses = {a["type"]: a["address"] for a in status.get("addresses") or ()}
        host = addresses.get("InternalIP") or addresses.get("Hostname")
        if not port or not host:
            raise StatusError(500, "InternalError", f'Internal error occurred: node "{name}" tells no address and port of its agent')
        return str(host), int(port)

    async def _log(self, request: web.Request, call: Call, pod: Json) -> web.StreamResponse:
        self._check_log_options(call)
        container = container_of(call, pod)
        if not pod["spec"].get("nodeName"):
            return web.Response(status=204)
        host, port = self._address(pod)
        url = f"https://{host}:{port}/containerLogs/{call.namespace}/{call.name}/{container}"
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
            raise _silent(pod["spec"]["nodeName"], e) from None

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

    async def _stream(self, request: web.Request, call: Call, pod: Json) -> web.StreamResponse:
        """Serve exec, attach and port-forward, which are a protocol between the client and the agent."""
        container = f"/{container_of(call, pod)}" if call.subresource != "portforward" else ""
        if not pod["spec"].get("nodeName"):
            raise bad_request(f"pod {call.name} does not have a host assigned")
        if not is_upgrade(request):
            raise bad_request("Upgrade request required")
        verb = "portForward" if call.subresource == "portforward" else call.subresource
        path = f"/{verb}/{call.namespace}/{call.name}{container}?{request.rel_url.raw_query_string}"
        try:
            return await passed_on(request, address=self._address(pod), path=path, context=self._tls())
        except (OSError, TimeoutError) as e:
            raise _silent(pod["spec"]["nodeName"], e) from None

    def _tls(self) -> ssl.SSLContext:
        if self._kept is None:
            self._kept = self._context()
        return self._kept


def _silent(node: str, error: Exception) -> StatusError:
    why = str(error) or type(error).__name__
    return StatusError(500, "InternalError", f"Internal error occurred: the agent of node {node} does not answer: {why}")


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
