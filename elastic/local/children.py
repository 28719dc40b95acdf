"""Run a child process of the cluster, with its log, its sockets and its sign that it is ready.

It is restarted with back-off if it ends by itself, and has time to end when it is stopped. This module does not know what the child does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from elastic.local.files import last_line
from elastic.local.sandbox import linux

log = logging.getLogger(__name__)

READY_S = 60.0
STOP_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
CALM_S = 10.0


class ChildFailed(Exception):
    """A process ended before it was ready, or was not ready in time. The text names the process and its log."""


@dataclass(slots=True, kw_only=True)
class Child:
    name: str
    module: str
    arguments: Sequence[str]
    log: Path
    is_ready: Callable[[], bool] | None = None
    before: Callable[[], None] = lambda: None
    fds: Sequence[int] = ()
    """Descriptors that the process gets, with the same numbers."""
    started: Callable[[str, int], None] = lambda name, pid: None
    process: asyncio.subprocess.Process | None = field(default=None, init=False)

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None else 0

    async def start(self) -> None:
        """Start the process, and wait until it says that it is ready."""
        self.before()
        descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self.module,
                *self.arguments,
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                pass_fds=self.fds,
                start_new_session=True,  # only the supervisor gets Ctrl-C; it stops its children in order
                preexec_fn=_end_with_supervisor,
            )
        finally:
            os.close(descriptor)
        self.started(self.name, self.process.pid)
        await self._wait_ready()

    async def _wait_ready(self) -> None:
        assert self.process is not None
        if self.is_ready is None:
            return
        ended = asyncio.create_task(self.process.wait())
        try:
            async with asyncio.timeout(READY_S):
                while not self.is_ready():
                    await asyncio.wait([ended], timeout=0.01)
                    if ended.done():
                        words = f"{self.name} ended with status {ended.result()} before it was ready"
                        raise ChildFailed(f"{words}: {last_line(self.log) or 'it wrote no message'}; see {self.log}")
        except TimeoutError:
            raise ChildFailed(f"{self.name} was not ready within {READY_S:.0f} s; see {self.log}") from None
        finally:
            ended.cancel()

    async def keep(self) -> None:
        """Start the process again whenever it ends by itself. The pauses grow while it ends soon after its start."""
        pause = FIRST_PAUSE_S
        loop = asyncio.get_running_loop()
        since = loop.time()
        while True:
            assert self.process is not None
            status = await self.process.wait()
            pause = FIRST_PAUSE_S if loop.time() - since > CALM_S else min(pause * 2, LONGEST_PAUSE_S)
            log.warning("process ended, starting it again", extra={"child": self.name, "status": status, "pause_s": pause})
            await asyncio.sleep(pause)
            since = loop.time()
            try:
                await self.start()
            except ChildFailed as error:
                log.warning("process did not start", extra={"child": self.name, "error": str(error)})

    async def stop(self) -> None:
        """Stop the process. The caller has cancelled the task that restarts it."""
        if self.process is None or self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await self.process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()


def _end_with_supervisor() -> None:
    """Let the kernel signal this process if the supervisor ends, because a killed supervisor cannot stop its children."""
    linux.die_with_parent(signal.SIGTERM)
