"""Run a real elastic-rendezvous process for the benchmark, and play the controller's part towards it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from benchmarks.rescaling.settings import LARGEST
from elastic.local.installation import ensure_installation
from elastic.local.ports import free_port
from elastic.membership.client import RendezvousClient
from elastic.membership.tokens import control_token, job_token, load_keys
from elastic.membership.wire import Expectation, LeaveOrder, WorldReport

JOB = "bench"
START_S = 30.0


class Server:
    """The server process, with its installation in its own folder."""

    def __init__(self, folder: Path) -> None:
        installation = folder / "installation"
        ensure_installation(installation, addresses=())
        self.port = free_port()
        self.ca = (installation / "ca.crt").read_text()
        self._key = load_keys(installation)[0]
        self._ready = folder / "ready"
        command = [
            sys.executable,
            "-m",
            "elastic_training.rendezvous.main",
            "--installation",
            str(installation),
            "--listen",
            f"127.0.0.1:{self.port}",
        ]
        with (folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen([*command, "--ready-file", str(self._ready)], stdout=log, stderr=log)

    def __enter__(self) -> Self:
        until = time.monotonic() + START_S
        while not self._ready.exists():
            if time.monotonic() > until or self._process.poll() is not None:
                raise RuntimeError(f"elastic-rendezvous did not serve within {START_S:g} s")
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(START_S)

    def environment(self) -> dict[str, str]:
        """Return the environment that tells an agent where to meet."""
        return {
            "PET_RDZV_BACKEND": "elastic",
            "PET_RDZV_ENDPOINT": f"127.0.0.1:{self.port}",
            "ELASTIC_TOKEN": job_token(self._key, JOB),
            "ELASTIC_CA": self.ca,
        }

    def expect(self, members: tuple[str, ...], *, leaving: tuple[str, ...] = (), by_s: float = 0.0, most: int = LARGEST) -> None:
        """Write, as the controller does, which members should be there, and which leave because their machine goes."""
        going = tuple(LeaveOrder(member=name, by_s=by_s, cause="disruption") for name in leaving)
        asyncio.run(self._expect(Expectation(members=members, leaving=going, min=1, max=most)))

    def world(self) -> WorldReport | None:
        return asyncio.run(self._world())

    def _client(self) -> RendezvousClient:
        async def token() -> str:
            return control_token(self._key)

        return RendezvousClient(f"https://127.0.0.1:{self.port}", token, self.ca)

    async def _expect(self, expectation: Expectation) -> None:
        async with self._client() as client:
            await client.expect(JOB, expectation)

    async def _world(self) -> WorldReport | None:
        async with self._client() as client:
            return await client.world(JOB)
