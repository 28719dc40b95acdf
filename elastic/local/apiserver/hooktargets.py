"""Ask an admission webhook, at a URL or a service of the cluster, for its answer to one review.

Like a real server, the connection checks the webhook's CA and, for a service, the name `SERVICE.NAMESPACE.svc`.
"""

from __future__ import annotations

import base64
import ssl
from functools import lru_cache
from urllib.parse import urlsplit

import aiohttp
import orjson

from elastic.kube.interim import BoundedAnswer
from elastic.local.apiserver.errors import Json
from elastic.local.apiserver.routes import DOMAIN, Routes
from elastic.local.dialled import DialledConnector, bounded

MAX_ANSWER = 3 << 20


def url_of(client: Json) -> str:
    """Return the webhook's address as messages show it."""
    service = client.get("service")
    if not service:
        return str(client.get("url", ""))
    path = (service.get("path") or "").removeprefix("/")
    return f"https://{service['name']}.{service['namespace']}{DOMAIN}:{service.get('port', 443)}/{path}"


class Targets:
    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._by_url: aiohttp.ClientSession | None = None
        self._by_service: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        for session in (self._by_url, self._by_service):
            if session is not None:
                await session.close()

    def _session(self, client: Json) -> aiohttp.ClientSession:
        """Return the session for this kind of address. The first call makes it, because that needs a running loop."""
        if client.get("service"):
            if self._by_service is None:
                self._by_service = aiohttp.ClientSession(connector=DialledConnector(self._routes.dial), response_class=BoundedAnswer)
            return self._by_service
        self._by_url = self._by_url or aiohttp.ClientSession(response_class=BoundedAnswer)
        return self._by_url

    async def ask(self, client: Json, review: Json, *, seconds: int) -> Json:
        """Return the response to a review. Raises an error if the webhook sends none that could be understood."""
        url = url_of(client)
        if client.get("service"):
            self._routes.find(urlsplit(url).hostname or "", urlsplit(url).port or 443)
        async with self._session(client).post(
            url,
            params={"timeout": f"{seconds}s"},
            data=orjson.dumps(review),
            headers={"Content-Type": "application/json"},
            ssl=_trusting(client.get("caBundle", "")),
            timeout=aiohttp.ClientTimeout(total=seconds),
            allow_redirects=False,
        ) as answer:
            if answer.status != 200:
                raise ValueError(f"the webhook answered {answer.status}")
            return _response(await bounded(answer, most=MAX_ANSWER), review["request"]["uid"])


@lru_cache(maxsize=32)
def _trusting(ca_bundle: str) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=base64.b64decode(ca_bundle).decode() if ca_bundle else None)


def _response(body: bytes, uid: str) -> Json:
    read = orjson.loads(body)
    if not isinstance(read, dict) or (read.get("apiVersion"), read.get("kind")) != ("admission.k8s.io/v1", "AdmissionReview"):
        found = f"{read.get('apiVersion', '')}, Kind={read.get('kind', '')}" if isinstance(read, dict) else "no object"
        raise ValueError(f"expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {found}")
    response = read.get("response")
    if not isinstance(response, dict):
        raise ValueError("webhook response was absent")
    if response.get("uid") != uid:
        raise ValueError(f"expected response.uid={uid!r}, got {response.get('uid', '')!r}".replace("'", '"'))
    return response
