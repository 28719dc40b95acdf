"""Check that errors of gRPC become the follower's errors: Away or StoreRefused. The server here takes every call and never answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from elastic.etcd import grpc_store
from elastic.etcd.channels import Channels
from elastic.etcd.grpc_store import MOST_KEYS, GrpcStore
from elastic.etcd.place import Access
from elastic.etcd.store import Away, StoreRefused


class Answering(grpc.GenericRpcHandler):
    def __init__(self, data: bytes) -> None:
        self._data = data

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return grpc.stream_stream_rpc_method_handler(self.take)

    async def take(self, requests: Any, context: Any) -> AsyncIterator[bytes]:
        yield self._data


class Silent(grpc.GenericRpcHandler):
    def __init__(self) -> None:
        self.calls = asyncio.Semaphore(0)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return grpc.stream_stream_rpc_method_handler(self.take)

    async def take(self, requests: Any, context: Any) -> None:
        self.calls.release()
        await asyncio.Event().wait()


@asynccontextmanager
async def silent() -> AsyncIterator[tuple[Silent, GrpcStore]]:
    handler = Silent()
    async with served(handler) as store:
        yield handler, store


@asynccontextmanager
async def served(handler: grpc.GenericRpcHandler) -> AsyncIterator[GrpcStore]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    store = GrpcStore(Channels(), (f"127.0.0.1:{port}",), Access(), is_tls=False)
    try:
        yield store
    finally:
        await store.close()
        await server.stop(None)


async def test_calls_end_as_away_if_another_call_went_on_to_the_next_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other call closes their connection. gRPC then says that they were cancelled, as if their task had been."""
    monkeypatch.setattr(grpc_store, "CALL_S", 60.0)
    async with silent() as (handler, store):
        watching = asyncio.create_task(anext(aiter(store.watch("/elastic-training/job/", 1))))
        reading = asyncio.create_task(store._at_current("KV/Range", store.message("RangeRequest", key=b"a")))
        for _ in range(2):
            await handler.calls.acquire()
        await store.try_next()
        for call in (watching, reading):
            with pytest.raises(Away, match="its connection was closed"):
                await call


async def test_a_call_whose_task_is_cancelled_stays_cancelled() -> None:
    async with silent() as (handler, store):
        reading = asyncio.create_task(store.newest("/elastic-training/job/"))
        await handler.calls.acquire()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading


HOSTILE = {
    "garbage": b"\xff" * 50,
    "half a message": b"\x12\x7f",
    "empty parts": b"\x12\x00" * 100_000,
    "much": b"\x12" + b"\x80\x80\x80\x04" + bytes(2**23),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=list(HOSTILE))
async def test_an_etcd_that_answers_nonsense_is_away_and_no_error_of_the_controller(data: bytes) -> None:
    """Each 15 s a traceback was logged, and a few megabytes of empty parts became a gigabyte in the controller."""
    async with served(Answering(data)) as store:
        with pytest.raises(Away):
            await anext(aiter(store.pages("/elastic-training/job/")))
        with pytest.raises(Away):
            await anext(aiter(store.watch("/elastic-training/job/", 1)))


async def test_a_listing_without_end_is_refused() -> None:
    page = GrpcStore(Channels(), ("nowhere:1",), Access(), is_tls=False).message("RangeResponse", more=True)
    page.kvs.add(key=b"/elastic-training/job/members/w0")
    async with served(Answering(page.SerializeToString())) as store:
        with pytest.raises(StoreRefused, match=f"more than {MOST_KEYS} keys"):
            async for _ in store.pages("/elastic-training/job/"):
                pass
