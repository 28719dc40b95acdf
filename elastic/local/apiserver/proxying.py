"""Serve pods/proxy and services/proxy, through which tools read metrics of pods.

The proxy passes a request on to a port of a pod, and the pod's answer back. It drops the client's credentials and the headers that are for
one connection only (hop by hop). It agrees on no other protocol.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from functools import cache

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from elastic.kube.interim import BoundedAnswer
from elastic.local.apiserver.calls import Call
from elastic.local.apiserver.errors import StatusError, bad_request, not_found
from elastic.local.apiserver.kubelet import Kubelets
from elastic.local.apiserver.paths import beyond_proxy
from elastic.local.apiserver.routes import Place, Routes, Unreachable, numbered
from elastic.local.apiserver.store import Store
from elastic.local.apiserver.upgrades import CONTROL
from elastic.local.dialled import DialledConnector, reason

_NAMED = re.compile(r"(?:(?P<scheme>https?):)?(?P<name>[^:]+)(?::(?P<port>[^:]*))?")
OURS = {"host", "authorization", "content-length", "expect"}
HOP_BY_HOP = {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade"}
WAIT = aiohttp.ClientTimeout(total=None, sock_read=300)
REQUEST_S = 60.0
"""Seconds until an answer must have begun."""


class Proxy:
    def __init__(self, store: Store, routes: Routes, kubelets: Kubelets) -> None:
        self._store, self._routes, self._kubelets = store, routes, kubelets

    async def serve(self, request: web.Request, call: Call) -> web.StreamResponse:
        named = _NAMED.fullmatch(call.name)
        if named is None:
            raise bad_request(f'invalid {call.kind.singular} request "{call.name}"')
        find = self._pod if call.kind.plural == "pods" else self._behind
        place = find(call.namespace, named["name"], named["port"] or "")
        asked = request.rel_url
        text = f"{named['scheme'] or 'http'}://{place.host}:{place.port}{beyond_proxy(asked.raw_path)}"
        url = URL(f"{text}?{asked.raw_query_string}" if asked.raw_query_string else text, encoded=True)
        try:
            return await self._passed_on(request, call, place, url)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise _unavailable(f"error trying to reach service: {reason(error)}") from None

    def _pod(self, namespace: str, name: str, port: str) -> Place:
        entry = self._store.get("pods", namespace, name)
        if entry is None:
            raise not_found("", "pods", name)
        pod = entry.load()
        declared = [p["containerPort"] for c in pod["spec"].get("containers") or () for p in c.get("ports") or ()]
        number = int(port) if port.isdigit() else numbered(pod, port) if port else (declared or [80])[0]
        if not 0 < number < 65536:
            raise _unavailable(f'no port "{port}" found for pod "{name}"')
        address = (pod.get("status") or {}).get("podIP")
        if not address or self._kubelets.address(pod) is None:
            raise _unavailable(f'address not allowed or not known of pod "{name}"')
        return Place(address, number, pod)

    def _behind(self, namespace: str, name: str, port: str) -> Place:
        entry = self._store.get("services", namespace, name)
        if entry is None:
            raise not_found("", "services", name)
        ports = entry.load()["spec"].get("ports") or []
        wanted = [p for p in ports if port in (p.get("name"), str(p["port"]))] if port else ports[:1] if len(ports) == 1 else []
        if not wanted:
            raise _unavailable(f'no service port "{port}" found for service "{name}"')
        try:
            place = self._routes.find(f"{name}.{namespace}", wanted[0]["port"])
        except Unreachable as error:
            raise _unavailable(str(error)) from None
        if place.pod is None:
            # This server can reach addresses that its clients should not reach.
            raise _unavailable(f'no endpoints available for service "{name}"')
        return place

    async def _passed_on(self, request: web.Request, call: Call, place: Place, url: URL) -> web.StreamResponse:
        headers = [(k, v) for k, v in request.headers.items() if k.lower() not in OURS | HOP_BY_HOP]
        connector = DialledConnector(lambda host, port: self._routes.reach(place))
        async with (
            asyncio.timeout(REQUEST_S) as limit,
            aiohttp.ClientSession(connector=connector, response_class=BoundedAnswer, auto_decompress=False, timeout=WAIT) as session,
            session.request(
                request.method, url, headers=headers, data=call.body or None, allow_redirects=False, ssl=_trusting_anybody()
            ) as answer,
        ):
            limit.reschedule(None)
            response = begun(answer)
            await response.prepare(request)
            try:
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
            except (aiohttp.ClientError, TimeoutError, OSError):
                # An error now would be taken for more of the answer; a stream that breaks off says that it is not whole.
                if request.transport is not None:
                    request.transport.abort()
            return response


def begun(answer: aiohttp.ClientResponse) -> web.StreamResponse:
    """Return the part of an answer that goes on to the client. Raises ValueError if it cannot be sent, so that the client gets an error."""
    if not 200 <= answer.status < 600:
        raise ValueError(f"the answer is no HTTP: its status is {answer.status}")
    kept = CIMultiDict((k, v) for k, v in answer.headers.items() if k.lower() not in HOP_BY_HOP)
    if unsendable := next((k for k, v in kept.items() if CONTROL.search(k + v)), None):
        raise ValueError(f"the answer is no HTTP: {unsendable!a} has control characters")
    return web.StreamResponse(status=answer.status, headers=kept)


@cache
def _trusting_anybody() -> ssl.SSLContext:
    """Return a context that checks no certificate, as a real server uses for pods."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _unavailable(words: str) -> StatusError:
    return StatusError(503, "ServiceUnavailable", words)
