"""Handle Ctrl-C while a job runs: on a terminal the command asks, elsewhere the run ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from typing import Any, TypeVar

T = TypeVar("T")


class Answer(StrEnum):
    GO_ON = ""
    DELETE = "d"
    LEAVE = "l"


class Left(Exception):
    """The user leaves; the job stays."""


async def asking(
    work: Awaitable[T],
    *,
    can_leave: bool,
    say: Callable[[str], None],
    held: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> T:
    """Return the result of the work.

    An interruption cancels the work; on a terminal only after the user has agreed. While the question is open, other output is `held`.
    """
    task = asyncio.ensure_future(work)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return await task
    with _interruptions() as (interrupted, terminated):
        while True:
            event = asyncio.ensure_future(interrupted.wait())
            try:
                await asyncio.wait({task, event}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                event.cancel()
            if task.done():
                return task.result()
            interrupted.clear()
            match Answer.DELETE if terminated.is_set() else await _asked(interrupted, can_leave=can_leave, say=say, held=held):
                case Answer.GO_ON:
                    say("going on")
                    continue
                case Answer.LEAVE:
                    task.cancel()
                    await asyncio.wait({task})
                    raise Left
                case Answer.DELETE:
                    task.cancel()
                    await asyncio.wait({task})
                    raise asyncio.CancelledError


async def _asked(
    interrupted: asyncio.Event, *, can_leave: bool, say: Callable[[str], None], held: Callable[[], AbstractContextManager[None]]
) -> Answer:
    leave = "; l and Enter leaves it running and goes" if can_leave else ""
    say(f"interrupted: d and Enter, or Ctrl-C again, deletes the job{leave}; Enter goes on")
    loop = asyncio.get_running_loop()
    typed: asyncio.Future[str] = loop.create_future()

    def hear(line: str) -> None:
        if not typed.done():
            typed.set_result(line)

    def read() -> None:  # in a thread that nothing waits for: no signal ends a read
        loop.call_soon_threadsafe(hear, sys.stdin.readline())

    threading.Thread(target=read, daemon=True).start()
    again = asyncio.ensure_future(interrupted.wait())
    both: set[asyncio.Future[Any]] = {typed, again}
    with held():
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if again.done():
        return Answer.DELETE
    again.cancel()
    word = typed.result().strip().lower()[:1]
    if not typed.result():  # the input has ended
        return Answer.DELETE
    return Answer.LEAVE if word == Answer.LEAVE and can_leave else Answer.DELETE if word == Answer.DELETE else Answer.GO_ON


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
