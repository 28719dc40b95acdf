"""Run a Kube in a thread for callers that wait: programs, and notebooks whose own event loop runs already."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent import futures
from typing import Any, Generic, TypeVar

from elastic.kube.access import Access
from elastic.kube.client import Kube

T = TypeVar("T")
Started = futures.Future[tuple[asyncio.Event, Kube]]
AHEAD = 16
"""Number of items that are read before the caller takes them."""
LOOK_EVERY_S = 1.0
"""Seconds until a caller that waits looks whether the thread still runs."""
END_S = 5.0


class Closed(Exception):
    """The thread has ended, and its unfinished work never ends."""


class _Work(Generic[T]):
    """A coroutine of the thread, and its result for the caller. `begin` and `end` run in the loop."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self.result: futures.Future[T] = futures.Future()
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._coroutine)
        self._task.add_done_callback(self._tell)

    def end(self) -> None:
        """Cancel the work, or never begin it."""
        if self._task is not None:
            self._task.cancel()
        self.close()

    def close(self) -> None:
        """Close a coroutine that has not begun."""
        if self._task is None:
            self._coroutine.close()

    def _tell(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.result.cancel()
        elif (error := task.exception()) is not None:
            self.result.set_exception(error)
        else:
            self.result.set_result(task.result())


class Background:
    """An event loop with a Kube, in a daemon thread. It ends with `close`, with the last reference to it, or with the process."""

    def __init__(self, access: Access) -> None:
        started: Started = futures.Future()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_serve, args=(self._loop, access, started), name="elastic-client", daemon=True)
        self._thread.start()
        stop, self.kube = started.result()
        self.pid = os.getpid()
        """The process that has the thread; a fork of it has none."""
        self.close = weakref.finalize(self, _end, self._loop, stop, self._thread)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine. Ctrl-C cancels it."""
        work = _Work(coroutine)
        try:  # Ctrl-C may come at any moment, also while the loop has begun the work and this thread does not know it yet
            self._call(work.begin)
            while not futures.wait([work.result], LOOK_EVERY_S).done:
                self._check()
            return _result(work.result)
        finally:
            self._end(work)

    def each(self, items: AsyncGenerator[T, None], every_s: float = LOOK_EVERY_S) -> Iterator[T | None]:
        """Yield a generator's values, and None after each silence of `every_s` seconds. The generator ends with this iterator."""
        room, come = asyncio.Semaphore(AHEAD), queue.SimpleQueue[tuple[T] | None]()
        reading = _Work(_read(items, come, room))
        try:
            reading.result.add_done_callback(lambda _: come.put(None))
            self._call(reading.begin)
            while True:
                try:
                    found = come.get(timeout=every_s)
                except queue.Empty:
                    self._check()
                    yield None
                    continue
                if found is None:
                    return _result(reading.result)
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(room.release)
                yield found[0]
        finally:
            self._end(reading)

    def _end(self, work: _Work[Any]) -> None:
        try:
            self._call(work.end)
        except Closed:
            work.close()

    def _call(self, act: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(act)
        except RuntimeError as error:  # the loop is closed
            raise Closed from error

    def _check(self) -> None:
        if not self._thread.is_alive():
            raise Closed


def _result(future: futures.Future[T]) -> T:
    try:
        return future.result()
    except futures.CancelledError:
        raise Closed from None


async def _read(items: AsyncGenerator[T, None], come: queue.SimpleQueue[tuple[T] | None], room: asyncio.Semaphore) -> None:
    async with contextlib.aclosing(items):
        async for item in items:
            await room.acquire()
            come.put((item,))


def _serve(loop: asyncio.AbstractEventLoop, access: Access, started: Started) -> None:
    try:
        loop.run_until_complete(_until_stopped(access, started))
    finally:
        loop.close()


async def _until_stopped(access: Access, started: Started) -> None:
    """Let coroutines run until stopped, and then cancel the remaining ones."""
    stop = asyncio.Event()
    async with Kube(access) as kube:
        started.set_result((stop, kube))
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
