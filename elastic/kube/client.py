"""A thin asynchronous client of the Kubernetes API: the verbs, paging, patches and watches, on one HTTP session.

Objects are raw dicts. It retries only what is safe to send twice, and knows nothing of any kind's meaning.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson
from yarl import URL

from elastic.kube.access import Access, AccessError, TokenCommand
from elastic.kube.answering import Answering
from elastic.kube.answers import WatchEvent, event_of, items_of, lines, text_of
from elastic.kube.decoding import decoded
from elastic.kube.errors import KubeError, error_from_response
from elastic.kube.interim import bound
from elastic.kube.resources import PODS, SERVICE_ACCOUNTS, Object, Resource

log = logging.getLogger(__name__)
PAGE = 500
NO_CREDENTIALS, NO_UPGRADE = "NoCredentials", "NoUpgrade"
REQUEST_TIMEOUT_S = 30.0
REQUESTS_AT_ONCE, AS_MANY_AS_ASKED_FOR = 256, 0
"""The latter is for streams."""
WATCH_TIMEOUT_S = 290
# A real server sends a bookmark about once a minute, so a longer silence means a dead connection; starting over costs one request.
WATCH_SILENCE_S = 100.0
RETRIES = 6
FIRST_BACK_OFF_S = 0.1
LONGEST_BACK_OFF_S = 5.0
LONGEST_ASKED_FOR_S = 60.0
LARGEST_MESSAGE = 4 * 1024 * 1024


class Patch(StrEnum):
    """The kinds of patch, by what they are called here; the value is the media type."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class Listing:
    """All objects of a list, and the version of the collection from which a watch goes on."""

    items: list[Object]
    resource_version: str


class Kube:
    """One user's view of one API server. Close it, or use it as an asynchronous context manager."""

    def __init__(self, access: Access, *, user_agent: str = "elastic-training") -> None:
        self.access = access
        self.sent: Counter[str] = Counter()
        """Requests sent so far by method, without watches: what a process costs the API server."""
        self._user_agent = user_agent
        self._sessions: dict[int, aiohttp.ClientSession] = {}
        """By how many connections each has at most."""
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
        """None where it is not there, or its kind is not known."""
        try:
            return await self.get(resource, name, namespace=namespace)
        except KubeError as error:
            if error.code == 404:
                return None
            raise

    async def token_of(self, account: str, *, namespace: str, lasts_s: int) -> str:
        """A new token of this service account."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": lasts_s}}
        answer = await self.create(SERVICE_ACCOUNTS, body, namespace=namespace, name=account, subresource="token")
        return str(answer["status"]["token"])

    async def list(
        self, resource: Resource, *, namespace: str | None = None, labels: str | None = None, fields: str | None = None
    ) -> Listing:
        items: list[Object] = []
        params = _without_none(labelSelector=labels, fieldSelector=fields, limit=str(PAGE))
        path = resource.path(namespace=namespace)
        while True:
            page = await self.request("GET", path, params=params)
            items += items_of(page, path)
            version, more = (text_of(page.get("metadata"), key) for key in ("resourceVersion", "continue"))
            if not more:
                return Listing(items, version)
            params["continue"] = more

    async def create(
        self, resource: Resource, body: Object, *, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> Object:
        """Creates an object; with name and subresource, an eviction, a binding or a token of that object."""
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
        """Deletes one object; uid and resource_version are preconditions, so that a namesake made meanwhile survives."""
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
    ) -> AsyncIterator[WatchEvent]:
        """Yields changes after resource_version until the server ends the stream; raises KubeError with code 410 when that is too old."""
        params = _without_none(labelSelector=labels, fieldSelector=fields, resourceVersion=resource_version)
        params |= {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(timeout_s)}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT_S, sock_read=WATCH_SILENCE_S)
        path = resource.path(namespace=namespace)
        async with self._open(AS_MANY_AS_ASKED_FOR).get(
            self._url(path), params=params, headers=await self._headers(), timeout=timeout
        ) as response:
            if response.status != 200:
                raise error_from_response(response.status, await response.read())
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
        """Yields a container's output in chunks as they come."""
        params = _without_none(container=container, follow="true" if follow else None, previous="true" if previous else None)
        if tail_lines is not None:
            params["tailLines"] = str(tail_lines)
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/log"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT_S)
        async with self._open(AS_MANY_AS_ASKED_FOR).get(
            self._url(path), params=params, headers=await self._headers(), timeout=timeout
        ) as response:
            if response.status == 204:  # the pod has no node yet, and so has said nothing
                return
            if response.status != 200:
                raise error_from_response(response.status, await response.read())
            async for chunk in response.content.iter_any():
                yield chunk

    @asynccontextmanager
    async def asked_of_pod(
        self, name: str, path: str, *, namespace: str, port: int, timeout_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """What a port of a pod answers over HTTP, or the API server in its place: nothing is unpacked, no redirect followed."""
        way = self._url(PODS.path(namespace=namespace, name=f"{name}:{port}", subresource="proxy"))
        # As a client of the pod itself would send it: what goes up in it ends at the pod's root, and is no other path of the API server.
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
        """Sends one request and returns the decoded answer; for paths that have no verb of their own above (/version, /healthz)."""
        data = None if body is None else orjson.dumps(body)
        for attempt in range(RETRIES):
            try:
                return await self._send(method, path, params=params, data=data, content_type=content_type, accept=accept)
            except KubeError as error:
                busy = (error.code == 429 and retry_refusals) or (error.code == 503 and method == "GET")
                if not busy or attempt == RETRIES - 1:
                    raise
                pause = _pause_s(error, attempt)
            except (aiohttp.ClientError, TimeoutError) as error:
                # Nothing was sent when the connection was never made; otherwise only a read may be sent again.
                safe = method == "GET" or isinstance(error, aiohttp.ClientConnectorError)
                if not safe or attempt == RETRIES - 1:
                    raise KubeError(code=0, reason="Unreachable", message=f"{self.access.server}: {_words(error)}") from error
                pause = _back_off_s(attempt)
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def websocket(self, path: str, *, params: Mapping[str, str], protocol: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A connection of another protocol than HTTP's, such as to a port of a pod; refusals are KubeErrors."""
        # A real API server answers 406 to a client that accepts JSON only: what the kubelet sends has no media type.
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

    async def bearer(self) -> str | None:
        """The token by which the API server knows us; None where it is a certificate."""
        try:
            return await self._token()
        except AccessError as error:
            raise KubeError(code=0, reason=NO_CREDENTIALS, message=str(error)) from error

    async def _send(
        self, method: str, path: str, *, params: Mapping[str, str] | None, data: bytes | None, content_type: str, accept: str
    ) -> Object:
        headers = await self._headers() | {"Accept": accept}
        self.sent[method] += 1
        if data is not None:
            headers["Content-Type"] = content_type
        async with self._open().request(method, self._url(path), params=params, data=data, headers=headers) as response:
            answer = await response.read()
            if response.status >= 400:
                error = error_from_response(response.status, answer)
                if response.headers.get("Retry-After", "").isdigit() and error.retry_after_s is None:
                    error.body = {**error.body, "details": {"retryAfterSeconds": int(response.headers["Retry-After"])}}
                raise error
        if not answer:
            return {}
        try:
            parsed: Any = decoded(answer)
        except orjson.JSONDecodeError:
            return {"text": answer.decode(errors="replace")}
        return parsed if isinstance(parsed, dict) else {"value": parsed}

    async def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if token := await self.bearer():
            headers["Authorization"] = f"Bearer {token}"
        return headers

    async def _token(self) -> str | None:
        """A credential program runs in a thread, once at a time; until it has answered, the token that it gave before will do."""
        source = self.access.token
        if not isinstance(source, TokenCommand) or not source.is_due():
            return source()
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(asyncio.to_thread(source))
            self._renewing.add_done_callback(_log_failure)
        return source.unexpired() or await asyncio.shield(self._renewing)

    def _url(self, path: str) -> str:
        return self.access.server + path

    def _open(self, most: int = REQUESTS_AT_ONCE) -> aiohttp.ClientSession:
        """Streams, which stay open, have connections of their own: no request waits for the end of a watch."""
        session = self._sessions.get(most)
        if session is None or session.closed:
            connector = bound(aiohttp.TCPConnector(ssl=self.access.tls if self.access.tls is not None else True, limit=most))
            self._sessions[most] = session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S),
                headers={"User-Agent": self._user_agent},
                cookie_jar=aiohttp.DummyCookieJar(),  # a pod, which the API server lets answer, says nothing of what others are asked
                trace_configs=[self._answering.trace()],
            )
        return session


def _log_failure(renewing: "asyncio.Task[str]") -> None:
    if not renewing.cancelled() and (error := renewing.exception()) is not None:
        log.warning("the credentials could not be renewed", extra={"error": str(error)})


def _pause_s(error: KubeError, attempt: int) -> float:
    """As long as the server asked for, and a little longer, each client another little: else all come back at the same moment."""
    if error.retry_after_s is None:
        return _back_off_s(attempt)
    return min(error.retry_after_s, LONGEST_ASKED_FOR_S) + _back_off_s(0)


def _back_off_s(attempt: int) -> float:
    return min(random.uniform(0.5, 1.0) * FIRST_BACK_OFF_S * 2.0**attempt, LONGEST_BACK_OFF_S)


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _without_none(**params: str | None) -> dict[str, str]:
    return {key: value for key, value in params.items() if value is not None}
