"""Lets nothing of ours out once the Lease may be another's: a process that was stopped and wakes up later must not act on what it knew.

Each request gets the time that is left and no more, tries and pauses included.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from elastic.kube.client import Patch
from elastic.kube.errors import KubeError
from elastic.kube.resources import Object, Resource

T = TypeVar("T")
LAPSED = "LeaseLapsed"
Left = Callable[[], float]
"""Seconds for which the Lease is ours for certain."""


class Lapsed(ConnectionError):
    """The Lease may be another's by now."""


def is_lapse(error: BaseException) -> bool:
    """Was something not done only because the Lease may be another's? The election logs that once; no other code needs to."""
    return isinstance(error, Lapsed) or (isinstance(error, KubeError) and error.reason == LAPSED)


class Writer(Protocol):
    """What is needed of elastic.kube.client.Kube to carry out a plan."""

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> Object: ...

    async def create(self, resource: Resource, body: Object, *, namespace: str | None = None) -> Object: ...

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Any,
        *,
        namespace: str | None = None,
        kind: Patch = Patch.MERGE,
        subresource: str | None = None,
    ) -> Object: ...

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        grace_s: int | None = None,
        propagation: str | None = None,
        uid: str | None = None,
    ) -> Object: ...


class FencedWriter:
    """A writer that fails as an API server out of reach does, once the Lease has lapsed."""

    def __init__(self, writer: Writer, left: Left) -> None:
        self._writer = writer
        self._left = left

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> Object:
        return await self._writer.get(resource, name, namespace=namespace)

    async def create(self, resource: Resource, body: Object, *, namespace: str | None = None) -> Object:
        return await self._guarded(lambda: self._writer.create(resource, body, namespace=namespace))

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Any,
        *,
        namespace: str | None = None,
        kind: Patch = Patch.MERGE,
        subresource: str | None = None,
    ) -> Object:
        return await self._guarded(
            lambda: self._writer.patch(resource, name, body, namespace=namespace, kind=kind, subresource=subresource)
        )

    async def delete(self, resource: Resource, name: str, **options: Any) -> Object:
        return await self._guarded(lambda: self._writer.delete(resource, name, **options))

    async def _guarded(self, send: Callable[[], Awaitable[Object]]) -> Object:
        try:
            return await in_time(self._left, send)
        except Lapsed as error:
            raise KubeError(code=0, reason=LAPSED, message=str(error)) from None


async def in_time(left: Left, send: Callable[[], Awaitable[T]]) -> T:
    """A request that has no answer when the Lease lapses is given up."""
    left_s = left()
    if left_s <= 0:
        raise Lapsed("the request was not sent: another process may hold the lease")
    limit = asyncio.timeout(left_s)
    try:
        async with limit:
            return await send()
    except TimeoutError:
        if not limit.expired():
            raise
        raise Lapsed("no answer before the lease could pass to another process") from None
