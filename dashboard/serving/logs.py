"""Send the output of one worker as it comes, with the caller's own rights. A request gets at most 2 MiB in at most ten minutes."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
from aiohttp import web

from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic_training.dashboard.serving.stream import TAKEN_WITHIN_S
from elastic_training.dashboard.watching.seen import PodSeen

MOST_BYTES = 2 * 1024 * 1024
LONGEST_S = 600.0
MOST_LINES, USUAL_LINES = 2000, 200


async def send_log(request: web.Request, kube: Kube, pod: PodSeen, *, lines: int, follow: bool) -> web.StreamResponse:
    """Send the log. If the API server refuses before anything was sent, that refusal is the answer."""
    response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
    left = MOST_BYTES
    chunks = kube.logs(pod.key[1], namespace=pod.key[0], container=pod.container or None, follow=follow, tail_lines=lines)
    with contextlib.suppress(ConnectionError, TimeoutError):
        try:
            async with asyncio.timeout(LONGEST_S):
                async for chunk in chunks:
                    if not response.prepared:
                        await response.prepare(request)
                    async with asyncio.timeout(TAKEN_WITHIN_S):
                        await response.write(chunk[:left])
                    left -= len(chunk)
                    if left <= 0:
                        break
        except (KubeError, aiohttp.ClientError) as error:
            if not response.prepared:
                return _refused(error)
    if not response.prepared:
        await response.prepare(request)
    return response


def _refused(error: KubeError | aiohttp.ClientError) -> web.Response:
    if isinstance(error, KubeError):
        return web.Response(status=error.code if 400 <= error.code < 500 else 502, text=f"{error.message}\n")
    return web.Response(status=502, text="the API server could not be reached\n")
