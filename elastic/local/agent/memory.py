"""Enforce containers' memory limits by watching, if the kernel cannot do it.

A process tree that has grown beyond its limit is killed as a whole, as out of memory. Between two looks, a container may exceed its limit.
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
    """Return a container's memory limit in bytes."""
    written = ((container.get("resources") or {}).get("limits") or {}).get("memory")
    return None if written is None else int(quantity.parse(written))


def used(pids: list[int]) -> int:
    """Return the bytes that the processes hold together. Shared memory counts once."""
    total = 0
    for pid in pids:
        # A process that has just ended holds nothing.
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


async def watch(limit: int, *, pids: Callable[[], Awaitable[list[int]]], kill: Callable[[], Awaitable[None]]) -> None:
    """Watch until the container's processes exceed the limit and have been killed, or until cancelled."""
    while True:
        held = used(await pids())
        if held > limit:
            log.info("a container uses %d bytes, but its limit is %d; killing it", held, limit)
            await kill()
            return
        await asyncio.sleep(LOOK_S)
