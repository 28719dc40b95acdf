"""Run the main of a process of the control plane.

It ends on signals, runs parts that are all needed, and shows by a file that it is ready.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Collection, Coroutine, Iterable
from pathlib import Path
from typing import Protocol

BLIND_S = 10.0
"""How long resources may be unlisted before a warning names them, and between two warnings."""


def stop_on_signals() -> asyncio.Event:
    """Set once the process gets a signal to end; call this in the loop that waits for it."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


class Parts:
    """Runs parts for the length of a block; they are cancelled at its end."""

    def __init__(self, parts: Iterable[Coroutine[None, None, object]]) -> None:
        self._parts = list(parts)
        self._tasks: list[asyncio.Task[object]] = []

    async def __aenter__(self) -> "Parts":
        self._tasks = [asyncio.create_task(part) for part in self._parts]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait_for_end(self, stop: asyncio.Event) -> None:
        """Wait until it is stopped or a part ends. Raise a part's error, because the process needs all parts."""
        stopping = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait([*self._tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            stopping.cancel()


class Observer(Protocol):
    """Lists and watches resources."""

    def lacking(self) -> Collection[str]:
        """Return the kinds that have not been listed yet."""

    async def wait_synced(self) -> None:
        """Wait until all needed kinds are listed."""


async def wait_listed(observer: Observer, log: logging.Logger, *, remedy: str) -> None:
    """Wait until the observer has listed all needed kinds. Meanwhile report those that it cannot list, with the remedy."""
    while observer.lacking():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BLIND_S):
                await observer.wait_synced()
                break
        log.warning("some resources cannot be listed: %s; grant list and watch", remedy, extra={"lacking": observer.lacking()})


def write_ready(path: Path, text: str = "ready\n") -> None:
    """Write the file in one step, so that nobody sees a part of it."""
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.replace(path)
