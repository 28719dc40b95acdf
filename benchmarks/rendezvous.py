"""Measure the rendezvous server with many agents: the time from the last join until a round closes, and the cost at rest.

Simulated agents speak the real protocol over real TLS connections to a real server process. All run on one machine, so the figures include
the cost of the simulation. There are two loads: many jobs with a few agents each, and one job with many agents.

    python -m benchmarks.rendezvous [--jobs 1000] [--agents 10] [--large 2000] [--rest 30] [--limit 900]
"""

from __future__ import annotations

import argparse
import asyncio
import asyncio.sslproto
import base64
import http.client
import json
import os
import resource
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from elastic.local.installation import ensure_installation
from elastic.membership.tokens import control_token, job_token, load_keys
from elastic.membership.wire import Expectation, encode

BEAT_S = 9.0
CONNECTS_IN_FLIGHT = 32
PATIENCE_S = 60.0
PROGRESS_S = 10.0


@dataclass
class Server:
    """The server process, and what the kernel counts for it."""

    process: subprocess.Popen[bytes]
    port: int
    key: bytes
    ca: str

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024

    def expect(self, expectations: Mapping[str, Expectation]) -> None:
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=ssl.create_default_context(cadata=self.ca), timeout=60)
        headers = {"Authorization": f"Bearer {control_token(self.key)}"}
        for job, expectation in expectations.items():
            connection.request("PUT", f"/v1/jobs/{job}/expectation", encode(expectation), headers)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 204:
                raise RuntimeError(f"expectation of {job}: {answer.status}")
        connection.close()


@dataclass
class Group:
    """The agents of one job, and when its last one joined."""

    job: str
    size: int
    joined: int = 0
    last_join: float = 0.0
    closed: list[float] = field(default_factory=list)
    generation: int = 1


class Agent(asyncio.Protocol):
    """One simulated agent: joins, beats, and notes when it hears of its world."""

    def __init__(self, group: Group, index: int, server: Server) -> None:
        self._group, self._name, self._server = group, f"w{index}", server
        self._buffer = b""
        self._is_open = False
        self._generation = 0
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def job(self) -> str:
        return self._group.job

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        key = base64.b64encode(os.urandom(16)).decode()
        lines = (
            f"GET /v1/jobs/{self._group.job}/members/{self._name} HTTP/1.1",
            "Host: localhost",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Key: {key}",
            f"Authorization: Bearer {job_token(self._server.key, self._group.job)}",
        )
        transport.write(("\r\n".join(lines) + "\r\n\r\n").encode())

    def join(self) -> None:
        self._say({"t": "join", "incarnation": f"{self._name}/1", "store": "127.0.0.1:1"})
        asyncio.get_running_loop().call_later(BEAT_S, self._beat)
        self._group.joined += 1
        self._group.last_join = time.perf_counter()

    def come(self) -> None:
        self._say({"t": "ready", "after": self._generation, "store": "127.0.0.1:1"})
        self._group.joined += 1
        self._group.last_join = time.perf_counter()

    def _beat(self) -> None:
        if not self._transport.is_closing():
            self._say({"t": "beat"})
            asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def close(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._is_open:
            head, end, rest = self._buffer.partition(b"\r\n\r\n")
            if not end:
                return
            if not head.startswith(b"HTTP/1.1 101"):
                raise RuntimeError(head.decode())
            self._is_open, self._buffer = True, rest
            self.ready.set_result(None)
        while (text := self._take()) is not None:
            view = json.loads(text)
            if view.get("generation", 0) > self._generation and not view.get("reform"):
                self._generation = view["generation"]
                self._group.closed.append(time.perf_counter())

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(exc or ConnectionError("closed"))

    def _say(self, message: dict[str, object]) -> None:
        payload = json.dumps(message).encode()
        head = struct.pack(">BB", 0x81, 0x80 | len(payload)) if len(payload) < 126 else struct.pack(">BBH", 0x81, 0xFE, len(payload))
        self._transport.write(head + b"\0\0\0\0" + payload)  # a mask of zeros is a mask

    def _take(self) -> bytes | None:
        if len(self._buffer) < 2:
            return None
        size, start = self._buffer[1] & 127, 2
        if size == 126:
            if len(self._buffer) < 4:
                return None
            size, start = struct.unpack(">H", self._buffer[2:4])[0], 4
        if len(self._buffer) < start + size:
            return None
        text, self._buffer = self._buffer[start : start + size], self._buffer[start + size :]
        return text if text.startswith(b"{") else b"{}"


async def join(group: Group, index: int, server: Server, *, tls: ssl.SSLContext) -> Agent:
    """Open one agent's connection and join."""
    loop = asyncio.get_running_loop()
    _, agent = await loop.create_connection(
        lambda: Agent(group, index, server), "127.0.0.1", server.port, ssl=tls, server_hostname="localhost"
    )
    await agent.ready
    agent.join()
    return agent


async def join_all_but_last(groups: list[Group], server: Server, *, tls: ssl.SSLContext) -> dict[str, list[Agent]]:
    """Let the agents of all jobs join, except the last one of each job, a few at a time."""
    gate = asyncio.Semaphore(CONNECTS_IN_FLIGHT)
    total = sum(group.size - 1 for group in groups)
    began = shown = time.perf_counter()

    async def one(group: Group, index: int) -> Agent:
        nonlocal shown
        async with gate:
            agent = await join(group, index, server, tls=tls)
        if time.perf_counter() > shown + PROGRESS_S:
            shown = time.perf_counter()
            joined = sum(group.joined for group in groups)
            print(
                f"  {joined} of {total} have joined after {shown - began:.0f} s, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True
            )
        return agent

    agents = await asyncio.gather(*(one(group, index) for group in groups for index in range(group.size - 1)))
    found: dict[str, list[Agent]] = {group.job: [] for group in groups}
    for agent in agents:
        found[agent.job].append(agent)
    return found


async def wait_closed(groups: list[Group]) -> None:
    began = time.perf_counter()
    while any(len(group.closed) < group.size for group in groups):
        if time.perf_counter() - began > PATIENCE_S:
            raise RuntimeError("rounds did not close in time")
        await asyncio.sleep(0.01)


def milliseconds(groups: list[Group]) -> list[float]:
    """Return, for each job, the time from its last join until its last agent heard of the world."""
    return sorted((max(group.closed) - group.last_join) * 1000 for group in groups)


def show(what: str, values: list[float]) -> None:
    p99 = values[min(len(values) - 1, int(len(values) * 0.99))]
    print(f"{what}: p50 {statistics.median(values):.1f} ms, p99 {p99:.1f} ms, worst {values[-1]:.1f} ms (n={len(values)})", flush=True)


async def many_jobs(server: Server, *, jobs: int, agents: int, rest_s: float) -> None:
    groups = [Group(f"job-{index}", agents) for index in range(jobs)]
    members = tuple(f"w{index}" for index in range(agents))
    server.expect({group.job: Expectation(members=members, min=agents, max=agents) for group in groups})
    began, cpu = time.perf_counter(), server.cpu_s()
    tls = ssl.create_default_context(cadata=server.ca)
    connected = await join_all_but_last(groups, server, tls=tls)
    took = time.perf_counter() - began
    each_ms = (server.cpu_s() - cpu) / jobs / agents * 1000
    print(f"{jobs} jobs with {agents} agents: connected in {took:.1f} s, {each_ms:.2f} ms of the server each", flush=True)
    cpu = server.cpu_s()
    for group in groups:
        connected[group.job].append(await join(group, group.size - 1, server, tls=tls))
    await wait_closed(groups)
    show("  round closed after the last join", milliseconds(groups))
    print(f"  server: {(server.cpu_s() - cpu) * 1000 / jobs:.1f} ms per job, {server.memory_mb():.0f} MB", flush=True)
    everybody = [agent for group in groups for agent in connected[group.job]]
    await rest(server, everybody, rest_s)
    for agent in everybody:
        agent.close()


async def rest(server: Server, agents: list[Agent], rest_s: float) -> None:
    """Measure the server at rest, while all agents beat and nothing else happens."""
    cpu, began = server.cpu_s(), time.perf_counter()
    await asyncio.sleep(rest_s)
    used = (server.cpu_s() - cpu) / (time.perf_counter() - began)
    print(f"  at rest, {len(agents)} agents: {used * 100:.1f} % of a core, {server.memory_mb():.0f} MB", flush=True)


async def one_large_job(server: Server, *, size: int) -> None:
    group = Group("large", size)
    members = tuple(f"w{index}" for index in range(size))
    server.expect({group.job: Expectation(members=members, min=size, max=size)})
    tls = ssl.create_default_context(cadata=server.ca)
    agents = (await join_all_but_last([group], server, tls=tls))[group.job]
    cpu = server.cpu_s()
    agents.append(await join(group, size - 1, server, tls=tls))
    await wait_closed([group])
    print(f"one job with {size} agents", flush=True)
    show("  round closed after the last join", milliseconds([group]))
    group.closed.clear()
    server.expect({group.job: Expectation(members=members, min=1, max=size)})
    agents[-1].close()  # its peers are called to the barrier
    group.size -= 1
    await asyncio.sleep(1.2)
    began = time.perf_counter()
    for agent in agents[:-1]:
        agent.come()
        await asyncio.sleep(0)
    await wait_closed([group])
    took_ms = (max(group.closed) - began) * 1000
    print(f"  after the loss of one all {size - 1} come at once: round closed {took_ms:.0f} ms after the first one came")
    print(f"  server: {server.cpu_s() - cpu:.2f} s of CPU for both rounds, {server.memory_mb():.0f} MB", flush=True)
    for agent in agents[:-1]:
        agent.close()


async def within(limit_s: float, load: Coroutine[None, None, None]) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await load
    except TimeoutError:
        raise SystemExit(f"not done within {limit_s:.0f} s; give a longer --limit, a smaller load, or a quieter machine") from None


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def start(folder: Path, *, source: Path | None = None) -> Server:
    """Start a server, of the release in the folder `source` if there is one."""
    ensure_installation(folder, addresses=())
    port = free_port()
    ready = folder / "ready"
    arguments = ["--installation", str(folder), "--listen", f"127.0.0.1:{port}", "--ready-file", str(ready), "--log-level", "warning"]
    is_before = source is not None and not (source / "elastic_training").is_dir()  # until 0.4.0, packages had no common name
    module = "rendezvous.main" if is_before else "elastic_training.rendezvous.main"
    process = subprocess.Popen([sys.executable, "-m", module, *arguments], cwd=source)
    for _ in range(600):
        if ready.exists():
            return Server(process, port, load_keys(folder)[0], (folder / "ca.crt").read_text())
        time.sleep(0.05)
    process.kill()
    raise RuntimeError("the server did not start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--agents", type=int, default=10)
    parser.add_argument("--large", type=int, default=2000)
    parser.add_argument("--rest", type=float, default=30.0)
    parser.add_argument("--limit", type=float, default=900.0, help="seconds that each of the two loads may take")
    options = parser.parse_args()
    wanted = max(options.jobs * options.agents, options.large) + 1000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, wanted), hard), hard))
    asyncio.sslproto.SSLProtocol.max_size = 16 * 1024  # as in the server: a quarter of a megabyte per idle agent would be all that is seen

    with tempfile.TemporaryDirectory() as folder:
        server = start(Path(folder))
        print(f"server with no agents: {server.memory_mb():.0f} MB")
        try:
            asyncio.run(within(options.limit, one_large_job(server, size=options.large)))
            asyncio.run(within(options.limit, many_jobs(server, jobs=options.jobs, agents=options.agents, rest_s=options.rest)))
        finally:
            cores, load = os.cpu_count(), os.getloadavg()[0]
            print(f"machine: {cores} cores, load average of the last minute {load:.1f}")
            server.process.terminate()
            server.process.wait()


if __name__ == "__main__":
    main()
