"""Provide a thin asynchronous client of the Kubernetes API: the verbs, paging, patches and watches, on one HTTP session.

Objects are raw dicts. The client retries only requests that are safe to send twice, and knows nothing about the meaning of kinds.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson
from yarl import URL

from elastic.kube.access import Access, AccessError, SlowToken
from elastic.kube.answering import Answering
from elastic.kube.answers import LARGEST_ANSWER, WatchEvent, event_of, lines, redirected, refusal, whole
from elastic.kube.decoding import decoded
from elastic.kube.errors import KubeError
from elastic.kube.interim import BoundedAnswer
from elastic.kube.paging import MOST_LISTED, Listing, listed
from elastic.kube.pauses import back_off_s, pause_s
from elastic.kube.resources import PODS, SERVICE_ACCOUNTS, Object, Resource

log = logging.getLogger(__name__)
NO_CREDENTIALS, NO_UPGRADE = "NoCredentials", "NoUpgrade"
REQUEST_TIMEOUT_S = 30.0
"""Limit for one whole answer, however slowly its bytes come."""
LAST_TRY_S = 45.0
"""Seconds after which no request is sent again."""
REQUESTS_AT_ONCE, AS_MANY_AS_ASKED_FOR = 256, 0
"""The latter is for streams."""
WATCH_TIMEOUT_S = 290
# A real server sends a bookmark about once a minute, so a longer silence means a dead connection; starting over costs one request.
WATCH_SILENCE_S = 100.0
RETRIES = 6
LARGEST_MESSAGE = 4 * 1024 * 1024


class Patch(StrEnum):
    """Types of patches. The value is the media type."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


class Kube:
    """One user's view of one API server. Close it, or use it as an asynchronous context manager."""

    def __init__(self, access: Access, *, user_agent: str = "elastic-training", most_listed: int = MOST_LISTED) -> None:
        self.access = access
        self._most_listed = most_listed
        self.sent: Counter[str] = Counter()
        """Number of requests so far by method, without watches. It shows the load that a process puts on the API server."""
        self._user_agent = user_agent
        self._sessions: dict[int, aiohttp.ClientSession] = {}
        """Sessions by the number of connections that each may have."""
        self._answering = Answering()
        self._renewing: asyncio.Task[str] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        if self._sessions:
            while self._sessions:
                _, session = self._sessions.popitem()
                await session.close()
            self._answering.abort()
            await asyncio.sleep(0)

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None, subresource: str | None = None) -> Object:
        return await self.request("GET", resource.path(namespace=namespace, name=name, subresource=subresource))

    async def find(self, resource: Resource, name: str, *, namespace: str | None = None) -> Object | None:
        """Get an object; None if it does not exist, or its kind is not known."""
        try:
            return await self.get(resource, name, namespace=namespace)
        except KubeError as error:
            if error.code == 404:
                return None
            raise

    async def token_of(self, account: str, *, namespace: str, lasts_s: int) -> str:
        """Make a new token of this service account."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": lasts_s}}
        answer = await self.create(SERVICE_ACCOUNTS, body, namespace=namespace, name=account, subresource="token")
        return str(answer["status"]["token"])

    async def list(
        self, resource: Resource, *, namespace: str | None = None, labels: str | None = None, fields: str | None = None
    ) -> Listing:
        params = _without_none(labelSelector=labels, fieldSelector=fields)
        path = resource.path(namespace=namespace)

        async def ask(more: Mapping[str, str]) -> tuple[Object, int]:
            return await self._asked(_Request("GET", path, {**params, **more}))

        return await listed(ask, path, most=self._most_listed, server=self.access.server)

    async def create(
        self, resource: Resource, body: Object, *, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> Object:
        """Create an object; with name and subresource, an eviction, a binding or a token of that object."""
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        # A 429 of an eviction is the answer (a disruption budget says no), not a request to slow down.
        return await self.request("POST", path, body=body, retry_refusals=subresource != "eviction")

    async def replace(
        self,
        resource: Resource,
        body: Object,
        *,
        name: str,
        namespace: str | None = None,
        subresource: str | None = None,
        field_manager: str | None = None,
    ) -> Object:
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        return await self.request("PUT", path, params=_without_none(fieldManager=field_manager), body=body)

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: object,
        *,
        namespace: str | None = None,
        kind: Patch = Patch.MERGE,
        subresource: str | None = None,
        field_manager: str | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> Object:
        params = _without_none(fieldManager=field_manager, dryRun="All" if dry_run else None)
        if kind is Patch.APPLY and force:
            params["force"] = "true"
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        return await self.request("PATCH", path, params=params, body=body, content_type=kind.value)

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        grace_s: int | None = None,
        propagation: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> Object:
        """Delete one object; uid and resource_version are preconditions, so that a namesake made meanwhile survives."""
        preconditions = _without_none(uid=uid, resourceVersion=resource_version)
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if propagation is not None:
            options["propagationPolicy"] = propagation
        if preconditions:
            options["preconditions"] = preconditions
        return await self.request("DELETE", resource.path(namespace=namespace, name=name), body=options)

    async def watch(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
        resource_version: str | None = None,
        timeout_s: int = WATCH_TIMEOUT_S,
    ) -> AsyncGenerator[WatchEvent, None]:
        """Yield changes after resource_version until the server ends the stream; raise KubeError with code 410 if that is too old."""
        params = _without_none(labelSelector=labels, fieldSelector=fields, resourceVersion=resource_version)
        params |= {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(timeout_s)}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT_S, sock_read=WATCH_SILENCE_S)
        path = resource.path(namespace=namespace)
        async with self._open(AS_MANY_AS_ASKED_FOR).get(
            self._url(path), params=params, headers=await self._headers(), timeout=timeout, allow_redirects=False
        ) as response:
            if response.status != 200:
                raise await self._refusal(response)
            async for line in lines(response.content):
                yield event_of(decoded(line), path)

    async def logs(
        self,
        name: str,
        *,
        namespace: str,
        container: str | None = None,
        follow: bool = False,
        previous: bool = False,
        tail_lines: int | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """Yield a container's output in chunks as they come."""
        params = _without_none(container=container, follow="true" if follow else None, previous="true" if previous else None)
        if tail_lines is not None:
            params["tailLines"] = str(tail_lines)
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/log"
        # A followed program may print nothing for hours; TCP's own keep-alive notices a server that is gone.
        silence_s = None if follow else REQUEST_TIMEOUT_S
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT_S, sock_read=silence_s)
        async with self._open(AS_MANY_AS_ASKED_FOR).get(
            self._url(path), params=params, headers=await self._headers(), timeout=timeout, allow_redirects=False
        ) as response:
            if response.status == 204:  # the pod has no node yet, and so has said nothing
                return
            if response.status != 200:
                raise await self._refusal(response)
            async for chunk in response.content.iter_any():
                yield chunk

    @asynccontextmanager
    async def asked_of_pod(
        self, name: str, path: str, *, namespace: str, port: int, timeout_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Ask a port of a pod over HTTP. The API server may answer in its place. Nothing is unpacked, and no redirect is followed."""
        way = self._url(PODS.path(namespace=namespace, name=f"{name}:{port}", subresource="proxy"))
        # Resolve the path as for the pod itself: `..` then ends at the pod's root, and cannot lead to another path of the API server.
        url = URL(way + URL(f"http://pod{path}").raw_path_qs, encoded=True)
        headers = await self._headers() | {"Accept": "*/*", "Accept-Encoding": "identity"}
        self.sent["GET"] += 1
        async with self._open(AS_MANY_AS_ASKED_FOR).get(
            url, headers=headers, timeout=aiohttp.ClientTimeout(total=timeout_s), allow_redirects=False, auto_decompress=False
        ) as response:
            yield response

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        retry_refusals: bool = True,
    ) -> Object:
        """Send one request and return the decoded answer; for paths that have no verb of their own above (/version, /healthz)."""
        headers = {"Accept": accept}
        if body is not None:
            headers["Content-Type"] = content_type
        data = None if body is None else orjson.dumps(body)
        answer, _ = await self._asked(_Request(method, path, params, data, headers), retry_refusals=retry_refusals)
        return answer

    async def _asked(self, request: "_Request", *, retry_refusals: bool = True) -> tuple[Object, int]:
        """Send a request, again if that is safe, and return the decoded answer and its length in bytes."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LAST_TRY_S
        for attempt in range(RETRIES):
            try:
                return await self._send(request)
            except KubeError as error:
                busy = (error.code == 429 and retry_refusals) or (error.code == 503 and request.method == "GET")
                if not busy or attempt == RETRIES - 1:
                    raise
                pause = pause_s(error, attempt)
            except (aiohttp.ClientError, TimeoutError) as error:
                # Nothing was sent when the connection was never made; otherwise only a read may be sent again.
                safe = request.method == "GET" or isinstance(error, aiohttp.ClientConnectorError)
                if not safe or attempt == RETRIES - 1 or loop.time() >= until:
                    words = f"no whole answer within {REQUEST_TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else _words(error)
                    raise KubeError(code=0, reason="Unreachable", message=f"{self.access.server}: {words}") from error
                pause = back_off_s(attempt)
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def websocket(self, path: str, *, params: Mapping[str, str], protocol: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open a connection of another protocol than HTTP, such as to a port of a pod; refusals are KubeErrors."""
        # A real API server answers 406 to a client that accepts only JSON, because the kubelet's data has no media type.
        headers = await self._headers() | {"Accept": "*/*"}
        opening = self._open(AS_MANY_AS_ASKED_FOR).ws_connect(
            self._url(path), params=params, protocols=(protocol,), headers=headers, max_msg_size=LARGEST_MESSAGE
        )
        try:
            socket = await opening
        except aiohttp.WSServerHandshakeError as error:
            raise KubeError(code=error.status, reason=NO_UPGRADE, message=f"{self._url(path)}: {error.message}") from error
        async with socket:
            yield socket

    async def _refusal(self, response: aiohttp.ClientResponse) -> KubeError:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            return await refusal(response, server=self.access.server)

    async def _refuse_redirect(self, _: aiohttp.ClientSession, __: object, params: aiohttp.TraceRequestRedirectParams) -> None:
        """End the opening of a websocket that is redirected: it has no option for that, and other requests follow none."""
        answer = params.response
        raise redirected(answer.status, answer.headers.get("Location", ""), server=self.access.server)

    async def bearer(self) -> str | None:
        """Return the token by which the API server knows us; None if that is a certificate."""
        try:
            return await self._token()
        except AccessError as error:
            raise KubeError(code=0, reason=NO_CREDENTIALS, message=str(error)) from error

    async def _send(self, request: "_Request") -> tuple[Object, int]:
        headers = {**await self._headers(), **request.headers}
        self.sent[request.method] += 1
        url = self._url(request.path)
        async with self._open().request(
            request.method, url, params=request.params, data=request.data, headers=headers, allow_redirects=False
        ) as response:
            if response.status >= 300:
                error = await self._refusal(response)
                if response.headers.get("Retry-After", "").isdigit() and error.retry_after_s is None:
                    error.body = {**error.body, "details": {"retryAfterSeconds": int(response.headers["Retry-After"])}}
                raise error
            answer = await whole(response, LARGEST_ANSWER, server=self.access.server)
        return _object_of(answer), len(answer)

    async def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if token := await self.bearer():
            headers["Authorization"] = token if " " in token else f"Bearer {token}"
        return headers

    async def _token(self) -> str | None:
        """Return the token. A slow source is asked in a thread, once at a time; until it answers, its last token is used."""
        source = self.access.token
        if not isinstance(source, SlowToken) or not source.is_due():
            return source()
        unexpired = source.unexpired()
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(asyncio.to_thread(source))
            if unexpired:  # otherwise the failure is raised below
                self._renewing.add_done_callback(_log_failure)
        return unexpired or await asyncio.shield(self._renewing)

    def _url(self, path: str) -> str:
        return self.access.server + path

    def _open(self, most: int = REQUESTS_AT_ONCE) -> aiohttp.ClientSession:
        """Return the session. Streams stay open, so they have connections of their own: no request waits for the end of a watch."""
        session = self._sessions.get(most)
        if session is None or session.closed:
            redirects = aiohttp.TraceConfig()
            redirects.on_request_redirect.append(self._refuse_redirect)
            connector = aiohttp.TCPConnector(ssl=self.access.tls if self.access.tls is not None else True, limit=most)
            self._sessions[most] = session = aiohttp.ClientSession(
                connector=connector,
                response_class=BoundedAnswer,
                timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S),
                headers={"User-Agent": self._user_agent, **self.access.headers},
                proxy=self.access.proxy,
                cookie_jar=aiohttp.DummyCookieJar(),  # a pod that answers through the API server must not set cookies for other requests
                trace_configs=[self._answering.trace(), redirects],
            )
        return session


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    params: Mapping[str, str] | None = None
    data: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def _object_of(answer: bytes) -> Object:
    if not answer:
        return {}
    try:
        parsed: Any = decoded(answer)
    except orjson.JSONDecodeError:
        return {"text": answer.decode(errors="replace")}
    return parsed if isinstance(parsed, dict) else {"value": parsed}


def _log_failure(renewing: "asyncio.Task[str]") -> None:
    if not renewing.cancelled() and (error := renewing.exception()) is not None:
        log.warning("the credentials could not be renewed", extra={"error": str(error)})


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _without_none(**params: str | None) -> dict[str, str]:
    return {key: value for key, value in params.items() if value is not None}
