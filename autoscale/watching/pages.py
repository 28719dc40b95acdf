"""Read a page that a pod serves.

The request goes to the pod, or through the API server if pods have a network of their own that this process cannot reach. Outside that
network, the pod's address may belong to a stranger.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import aiohttp

from elastic.api.scaling import PrometheusProgress
from elastic.kube.client import Kube
from elastic.kube.errors import UNTOLD, error_from_response
from elastic.kube.interim import BoundedAnswer
from elastic_training.autoscale.deciding.cluster import PodSeen

LONGEST_PAGE = 1024 * 1024
LONGEST_REFUSAL = 4096
PAGE_S = 3.0


class Pages:
    def __init__(self, kube: Kube, *, through_api: bool) -> None:
        self._kube = kube
        self._through_api = through_api
        self._session: aiohttp.ClientSession | None = None

    async def read(self, pod: PodSeen, page: PrometheusProgress) -> bytes:
        """Return the beginning of the page. Raises ValueError with the status of another answer, or with the API server's own refusal."""
        async with self._answer(pod, page) as response:
            if response.status != 200:
                told = await self._told_by_api(response)
                raise ValueError(told or f"{page.path} on port {page.port} answered {response.status}")
            if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
                raise ValueError(f"its page came as {encoding[:20]!r}, although it was asked for as it is")
            return await _bounded(response.content, LONGEST_PAGE)

    async def _told_by_api(self, response: aiohttp.ClientResponse) -> str:
        """Return the API server's refusal, or nothing if the pod itself has answered."""
        if not self._through_api:
            return ""
        refusal = error_from_response(response.status, await _bounded(response.content, LONGEST_REFUSAL))
        return "" if refusal.reason == UNTOLD else refusal.message

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    @contextlib.asynccontextmanager
    async def _answer(self, pod: PodSeen, page: PrometheusProgress) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._through_api:
            namespace, name = pod.key
            async with self._kube.asked_of_pod(name, page.path, namespace=namespace, port=page.port, timeout_s=PAGE_S) as response:
                yield response
            return
        if not pod.address:
            raise ValueError("the pod has no address")
        host = f"[{pod.address}]" if ":" in pod.address else pod.address
        if self._session is None:
            headers = {"Accept-Encoding": "identity"}
            self._session = aiohttp.ClientSession(response_class=BoundedAnswer, auto_decompress=False, headers=headers)
        timeout = aiohttp.ClientTimeout(total=PAGE_S)
        async with self._session.get(f"http://{host}:{page.port}{page.path}", timeout=timeout, allow_redirects=False) as response:
            yield response


async def _bounded(content: aiohttp.StreamReader, most: int) -> bytes:
    body = bytearray()
    async for chunk in content.iter_any():
        body += chunk
        if len(body) >= most:
            break
    return bytes(body[:most])
