"""Start a server's process when the first connection comes to its sockets, and keep it running. Clients wait in the sockets."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence

from elastic.local.children import LONGEST_PAUSE_S, Child, ChildFailed

log = logging.getLogger(__name__)


async def start_when_called(sockets: Sequence[socket.socket], child: Child) -> None:
    """Run until cancelled. This process listens on the sockets and never accepts connections; the child does."""
    called, loop = asyncio.Event(), asyncio.get_running_loop()
    for each in sockets:
        loop.add_reader(each.fileno(), called.set)
    try:
        await called.wait()
    finally:
        for each in sockets:
            loop.remove_reader(each.fileno())
    while True:
        try:
            await child.start()
            break
        except ChildFailed as error:
            log.warning("process did not start", extra={"child": child.name, "error": str(error)})
            await asyncio.sleep(LONGEST_PAUSE_S)
    await child.keep()
