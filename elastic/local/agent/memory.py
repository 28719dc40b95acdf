"""Holds containers to their memory limits by watching, where the kernel cannot be asked to.

A whole tree that has grown beyond its limit is killed, as out of memory. A container can be above its limit for as long as one look takes
to come round.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from elastic.kube import quantity
from elastic.local.agent.environment import Object

log = logging.getLogger(__name__)

LOOK_S = 0.5


def limit_of(container: Object) -> int | None:
    """In bytes."""
    written = ((container.get("resources") or {}).get("limits") or {}).get("memory")
    return None if written is None else int(quantity.parse(written))


def used(pids: list[int]) -> int:
    """Bytes that the processes hold together; what several of them share is counted once."""
    total = 0
    for pid in pids:
        # A process that has just ended holds nothing.
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


async def watch(limit: int, *, pids: Callable[[], Awaitable[list[int]]], kill: Callable[[], Awaitable[None]]) -> None:
    """Until the container's processes are above the limit and have been killed, or the watch is cancelled."""
    while True:
        held = used(await pids())
        if held > limit:
            log.info("a container holds %d bytes and may hold %d; ending it", held, limit)
            await kill()
            return
        await asyncio.sleep(LOOK_S)
