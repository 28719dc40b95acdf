"""Draw the output of a command again every two seconds, until the user ends it.

If the server does not answer, the last output stays on the screen, with the reason.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

import click

from elastic.cli import screen
from elastic.cli.cluster_choice import Cluster
from elastic.cli.failures import said
from elastic.cli.interrupts import cancelled_by_sigterm
from elastic.cli.jobs.found import NotFound
from elastic.cli.printing import plain
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError

EVERY_S = 2.0
WITHIN_S = 10.0
TERMINATED = 128 + 15
ENDING = (401, 403)
"""Status codes that another attempt does not change."""


def watch(cluster: Cluster, read: Callable[[Kube, str], Awaitable[str]]) -> None:
    """Draw the text that `read` makes, again and again. An error before the first text ends the command, as without --watch."""

    async def within(kube: Kube, namespace: str) -> None:
        text = await read(kube, namespace)
        logging.getLogger("elastic.kube").setLevel(logging.ERROR)  # the screen shows problems
        with cancelled_by_sigterm(), screen.opened() as drawn, _stopped_by_ctrl_z(drawn):
            trouble = ""
            while True:
                now = datetime.now().strftime("%H:%M:%S")
                drawn.draw(f"{now}, every {EVERY_S:g} s; Ctrl-C ends{trouble}\n\n{text}")
                await asyncio.sleep(EVERY_S)
                try:
                    async with asyncio.timeout(WITHIN_S):
                        text, trouble = await read(kube, namespace), ""
                except Exception as error:
                    trouble = f"\n{_trouble(error)}; below is the last output"

    try:
        cluster.ask(within)
    except KeyboardInterrupt:
        return
    except asyncio.CancelledError:
        sys.exit(TERMINATED)


@contextmanager
def _stopped_by_ctrl_z(drawn: screen.Screen) -> Iterator[None]:
    """Give the shell its screen back at Ctrl-Z, and draw again at `fg`."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        drawn.leave()
        loop.remove_signal_handler(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGTSTP)  # returns when the process continues
        loop.add_signal_handler(signal.SIGTSTP, stop)
        drawn.again()

    loop.add_signal_handler(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTSTP)


def _trouble(error: Exception) -> str:
    """Return the error in words, or raise it if another attempt does not help."""
    if isinstance(error, NotFound | click.UsageError) or (isinstance(error, KubeError) and error.code in ENDING):
        raise error
    words = error.message if isinstance(error, click.ClickException) else said(error)
    if words is None:
        raise error
    return plain(words)
