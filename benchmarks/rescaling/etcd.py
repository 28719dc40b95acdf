"""Run a real etcd for the benchmark, and play the controller's part in it."""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Self

from benchmarks.rescaling.server import JOB
from benchmarks.rescaling.settings import LARGEST
from elastic.etcd.place import EtcdPlace
from elastic.etcd.store import Away
from elastic.etcd.thread import EtcdThread, prefix_of
from elastic.local.etcd import program
from elastic.local.ports import free_ports
from elastic.membership.wire import Expectation, WorldReport

START_S = 30.0
TOKEN = "bench"


class Etcd:
    """One etcd without users, and the thread through which a controller talks to it."""

    def __init__(self, folder: Path) -> None:
        found = program()
        if found is None:
            raise RuntimeError("the setting etcd needs an etcd on PATH: install Debian's etcd-server")
        self.port, peer = free_ports(2)
        client, peers = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{peer}"
        command = [str(found), f"--data-dir={folder / 'etcd'}", f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        command += [f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=default={peers}"]
        with (folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._loop = asyncio.new_event_loop()
        self._world: WorldReport | None = None

    def __enter__(self) -> Self:
        until = time.monotonic() + START_S
        while not self._answers():
            if time.monotonic() > until or self._process.poll() is not None:
                raise RuntimeError(f"etcd did not serve within {START_S:g} s")
            time.sleep(0.02)
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._thread = EtcdThread(token_for=lambda job: TOKEN, read_secret=self._no_secret)
        self._thread.meet_at(JOB, EtcdPlace(endpoints=(f"127.0.0.1:{self.port}",), prefix=prefix_of(JOB)))
        self._listening = asyncio.run_coroutine_threadsafe(self._listen(), self._loop)
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.cancel()
        time.sleep(0.1)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._process.terminate()
        self._process.wait(START_S)

    def expect(self, members: tuple[str, ...]) -> None:
        """Write, as the controller does, which members should be there."""
        until = time.monotonic() + START_S
        while True:
            try:
                word = self._thread.expect(JOB, Expectation(members=members, min=1, max=LARGEST))
                asyncio.run_coroutine_threadsafe(word, self._loop).result(START_S)
                return
            except Away:  # the controller also tries again; the first attempt opens the connection
                if time.monotonic() > until:
                    raise

    def world(self) -> WorldReport | None:
        return self._world

    def environment(self) -> dict[str, str]:
        """Return the environment that tells an agent where to meet."""
        return {"PET_RDZV_BACKEND": "elastic-etcd", "PET_RDZV_ENDPOINT": f"127.0.0.1:{self.port}", "ELASTIC_TOKEN": TOKEN}

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
        try:
            connection.request("GET", "/health")
            return bool(json.loads(connection.getresponse().read()).get("health") == "true")
        except (OSError, ValueError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    async def _listen(self) -> None:
        async for world in self._thread.worlds():
            self._world = world

    async def _no_secret(self, namespace: str, name: str) -> dict[str, Any]:
        return {}
