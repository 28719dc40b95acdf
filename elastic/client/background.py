"""Run coroutines in a thread for callers that wait for them: programs, and notebooks whose own event loop runs already."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import weakref
from collections.abc import AsyncGenerator, Coroutine, Iterator
from concurrent import futures
from typing import Any, Generic, TypeVar

from elastic.client.errors import ElasticError
from elastic.kube.access import Access
from elastic.kube.client import Kube

T = TypeVar("T")
AHEAD = 16
"""Number of items that a stream reads before the caller takes them."""
LOOK_EVERY_S = 1.0
"""Seconds until a caller that waits looks whether the thread still runs."""
END_S = 5.0
CLOSED = "this client is closed; make another one"


class Background:
    """An event loop with a Kube, in a daemon thread. It ends with `close`, with the last reference to it, or with the process."""

    def __init__(self, access: Access) -> None:
        started: futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, Kube]] = futures.Future()
        self._thread = threading.Thread(target=_serve, args=(access, started), name="elastic-client", daemon=True)
        self._thread.start()
        self._loop, stop, self.kube = started.result()
        self.pid = os.getpid()
        """The process that has the thread; a fork of it has none."""
        self.close = weakref.finalize(self, _end, self._loop, stop, self._thread)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine. Ctrl-C cancels it."""
        future = self.start(coroutine)
        try:
            while not futures.wait([future], LOOK_EVERY_S).done:
                self.check()
            return future.result()
        except futures.CancelledError:
            raise ElasticError(CLOSED) from None
        except BaseException:
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> futures.Future[T]:
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:  # the loop is closed
            coroutine.close()
            raise ElasticError(CLOSED) from None

    def check(self) -> None:
        """Raise an error if the thread has ended: what is started then is never done."""
        if not self._thread.is_alive():
            raise ElasticError(CLOSED)

    def soon(self, act: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(act)


class Stream(Iterator[T], Generic[T]):
    """Yield what an asynchronous generator yields in the background. It goes on until `close`, or until nobody has the stream any more."""

    def __init__(self, background: Background, items: AsyncGenerator[T, None]) -> None:
        self._background, self._room = background, asyncio.Semaphore(AHEAD)
        self._come: queue.SimpleQueue[tuple[T] | None] = queue.SimpleQueue()
        self._reading = background.start(_read(items, self._come, self._room))
        come = self._come  # the callback must not keep the stream
        self._reading.add_done_callback(lambda _: come.put(None))

    def __next__(self) -> T:
        try:
            found = self._next()
        except BaseException:
            self.close()
            raise
        if found is None:
            self._come.put(None)  # for a further call
            try:
                self._reading.result()
            except futures.CancelledError:
                raise ElasticError(CLOSED) from None
            raise StopIteration
        self._background.soon(self._room.release)
        return found[0]

    def _next(self) -> tuple[T] | None:
        while True:
            try:
                return self._come.get(timeout=LOOK_EVERY_S)
            except queue.Empty:
                self._background.check()

    def close(self) -> None:
        self._reading.cancel()

    def __del__(self) -> None:
        if hasattr(self, "_reading"):
            self.close()


async def _read(items: AsyncGenerator[T, None], come: queue.SimpleQueue[tuple[T] | None], room: asyncio.Semaphore) -> None:
    async with contextlib.aclosing(items):
        async for item in items:
            await room.acquire()
            come.put((item,))


def _serve(access: Access, started: futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, Kube]]) -> None:
    try:
        loop = asyncio.new_event_loop()
    except BaseException as error:  # the caller waits for it
        started.set_exception(error)
        raise
    try:
        loop.run_until_complete(_work(access, started))
    finally:
        loop.close()


async def _work(access: Access, started: futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, Kube]]) -> None:
    """Let coroutines run until the end; then cancel those that are left."""
    stop = asyncio.Event()
    async with Kube(access) as kube:
        started.set_result((asyncio.get_running_loop(), stop, kube))
        await stop.wait()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=END_S / 2)


def _end(loop: asyncio.AbstractEventLoop, stop: asyncio.Event, thread: threading.Thread) -> None:
    with contextlib.suppress(RuntimeError):  # it has ended
        loop.call_soon_threadsafe(stop.set)
    if thread is not threading.current_thread():  # the garbage collector may run in any thread
        thread.join(END_S)
