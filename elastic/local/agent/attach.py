"""What `kubectl attach` sees of a container: what it writes from now on, until it ends. Both of its outputs go to one log, so both arrive
as one stream; a container's input is nobody's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from elastic.local.agent import logs
from elastic.local.agent.links import STDERR, STDOUT, Link, Streams, outcome


async def serve(link: Link, log: Path, streams: Streams, *, running: Callable[[], bool]) -> None:
    """Until the container ends or the client goes."""

    async def tell() -> None:
        async for chunk in logs.read(log, logs.Wanted(follow=True, tail_lines=0), running=running):
            if streams.stdout or streams.stderr:
                await link.send(STDOUT if streams.stdout else STDERR, chunk)

    async def listen() -> None:
        async for _ in link.incoming():
            pass

    telling, listening = asyncio.create_task(tell()), asyncio.create_task(listen())
    try:
        await asyncio.wait((telling, listening), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (telling, listening):
            if not task.done():
                task.cancel()
        await asyncio.gather(telling, listening, return_exceptions=True)
    if not telling.cancelled() and telling.exception() is None:
        await link.end(outcome(0, ""))
