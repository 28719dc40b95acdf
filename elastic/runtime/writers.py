"""Name the requests that carry out a plan, and pass them on from one writer to another."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from elastic.kube.client import Patch
from elastic.kube.resources import Object, Resource


class Writer(Protocol):
    """The part of elastic.kube.client.Kube that carries out a plan."""

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


class PassingWriter:
    """Passes every request on to another writer. A subclass decides when a change may be sent."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> Object:
        return await self._writer.get(resource, name, namespace=namespace)

    async def create(self, resource: Resource, body: Object, *, namespace: str | None = None) -> Object:
        return await self._change(lambda: self._writer.create(resource, body, namespace=namespace))

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
        return await self._change(lambda: self._writer.patch(resource, name, body, namespace=namespace, kind=kind, subresource=subresource))

    async def delete(self, resource: Resource, name: str, **options: Any) -> Object:
        return await self._change(lambda: self._writer.delete(resource, name, **options))

    async def _change(self, send: Callable[[], Awaitable[Object]]) -> Object:
        """Send a request that changes something."""
        return await send()
