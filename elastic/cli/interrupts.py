"""Handle Ctrl-C while a job runs: on a terminal the user goes and the job stays; elsewhere the run ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, TypeVar

T = TypeVar("T")
DELETE = "d"


class Left(Exception):
    """The user goes; the job stays."""


async def until_interrupted(
    work: Awaitable[T],
    *,
    asks: bool,
    say: Callable[[str], None],
    held: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> T:
    """Return the result of the work, or raise Left if the user presses Ctrl-C on a terminal, and CancelledError if the job must go.

    `asks`: the cluster ends with this command, so the command asks what shall become of it. Meanwhile other output is `held`. Only the
    answer `d` deletes. SIGTERM, and Ctrl-C without a terminal, come from programs, which answer no question: the job goes.
    """
    task = asyncio.ensure_future(work)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return await task
    with _interruptions() as (interrupted, terminated):
        await _first(task, interrupted)
        if not task.done() and asks and not terminated.is_set():
            interrupted.clear()
            say("interrupted: d and Enter deletes the job and stops the cluster; Enter, or Ctrl-C again, leaves both running")
            with held():
                deletes = await _asked(task, interrupted)
        else:
            deletes = False
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait({task})
        if deletes or terminated.is_set():
            raise asyncio.CancelledError
        raise Left


async def _first(task: asyncio.Future[Any], event: asyncio.Event, *others: asyncio.Future[Any]) -> None:
    """Wait for the end of the task, for the event, or for another future."""
    happens = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({task, happens, *others}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        happens.cancel()


async def _asked(task: asyncio.Future[Any], interrupted: asyncio.Event) -> bool:
    """Return whether the user wants the job and the cluster to go. Ctrl-C once more, and the end of the input, leave them."""
    loop = asyncio.get_running_loop()
    typed: asyncio.Future[str] = loop.create_future()

    def hear(line: str) -> None:
        if not typed.done():
            typed.set_result(line)

    def read() -> None:  # in a thread that nothing waits for: no signal ends a read
        line = sys.stdin.readline()
        with suppress(RuntimeError):  # the loop is closed, because the command ended before the user typed a line
            loop.call_soon_threadsafe(hear, line)

    threading.Thread(target=read, daemon=True).start()
    await _first(task, interrupted, typed)
    return typed.done() and typed.result().strip().lower()[:1] == DELETE


def end_by_sigterm() -> None:
    """Let SIGTERM end the command as Ctrl-C does, also if SIGINT is ignored. A shell ignores it for its background commands.

    While an event loop runs, use `cancelled_by_sigterm` instead.
    """
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGTERM, signal.default_int_handler if is_ignored else lambda *_: os.kill(os.getpid(), signal.SIGINT))


@contextmanager
def cancelled_by_sigterm() -> Iterator[None]:
    """Let SIGTERM cancel the present task at the point where it waits.

    The handler of `end_by_sigterm` would raise at any point in the event loop.
    """
    former = signal.getsignal(signal.SIGTERM)
    _let_sigterm_cancel()
    try:
        yield
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, former)


def _let_sigterm_cancel() -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


@contextmanager
def _interruptions() -> Iterator[tuple[asyncio.Event, asyncio.Event]]:
    """Yield two events. SIGINT sets the first; SIGTERM sets both, because it comes from a program, which cannot answer a question."""
    loop, interrupted, terminated = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    def terminate() -> None:
        terminated.set()
        interrupted.set()

    loop.add_signal_handler(signal.SIGINT, interrupted.set)
    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        yield interrupted, terminated
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        _let_sigterm_cancel()
