"""Run the laptop cluster's API server as a process of a test, which can kill and restart it on the same data folder."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

PATIENCE_S = 60.0
Json = dict[str, Any]


class ApiProcess:
    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder, self._flags = folder, flags
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def start(self) -> None:
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "elastic.local.apiserver", "--data-dir", str(self.folder), "--listen", f"127.0.0.1:{self.port}"]
        self._process = subprocess.Popen([*command, "--ready-file", str(ready), *self._flags])
        end = time.monotonic() + PATIENCE_S
        while not (ready.exists() and ready.read_text().endswith("\n")):
            assert self._process.poll() is None, f"ended with {self._process.returncode} before it was ready"
            assert time.monotonic() < end, f"not ready within {PATIENCE_S:.0f} s"
            time.sleep(0.01)
        self.port = int(ready.read_text())

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(30)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def token(self) -> str:
        return (self.folder / "admin.token").read_text()

    def client(self, token: str | None = None, **headers: str) -> Client:
        return Client(self.url, self.folder / "ca.crt", {"Authorization": f"Bearer {token or self.token}", **headers})


class Client:
    """A client for plain requests, which checks the CA. Answers are a status and JSON."""

    def __init__(self, url: str, ca: Path, headers: dict[str, str]) -> None:
        context = ssl.create_default_context(cafile=ca)
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        self.session = aiohttp.ClientSession(url, connector=connector, headers=headers, timeout=aiohttp.ClientTimeout(total=PATIENCE_S))

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()
        await asyncio.sleep(0.1)  # TLS connections end a few turns of the loop later

    async def ask(self, method: str, path: str, body: Any = None, *, media: str = "application/json", **query: str) -> tuple[int, Json]:
        headers = {"Content-Type": media} if body is not None else {}
        async with self.session.request(method, path, params=query, json=body, headers=headers) as answer:
            return answer.status, await answer.json(content_type=None)

    async def make(self, path: str, body: Json) -> Json:
        status, made = await self.ask("POST", path, body)
        assert status == 201, made
        return made


@contextlib.contextmanager
def running(folder: Path, *flags: str) -> Iterator[ApiProcess]:
    server = ApiProcess(folder, *flags)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def closing(answer: web.Response) -> web.Response:
    """End the connection with the answer, so that no connection is half closed when the test's loop ends."""
    answer.force_close()
    return answer


def config_map(name: str, **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
MERGE = "application/merge-patch+json"
