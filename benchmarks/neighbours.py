"""How much hostile jobs slow their neighbour's rescale at the rendezvous server, and how much memory they make it use.

Twenty jobs with one worker each send 20 requests a second each, with their own tokens: joins with as many restarts as a message holds,
joins that leave at once, and questions about their world whose answers nobody reads. In every other round they send the same requests with
a wrong token: the machine is as busy, and the server refuses all of them. The result is the ratio of the neighbour's rescale from two
workers to three. Server, controller, neighbour and hostile jobs are separate processes, and the hostile ones have the lowest priority.

    python -m benchmarks.neighbours [--rounds 10] [--jobs 20] [--rate 20] [--source FOLDER_OF_ANOTHER_RELEASE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp

from benchmarks.rendezvous import Server, start
from elastic.membership.client import RendezvousClient
from elastic.membership.tokens import control_token, job_token, load_keys
from elastic.membership.wire import Expectation

NEIGHBOUR = "neighbour"
PROCESSES = 2
MOST_IN_FLIGHT = 20
UNREAD_S = 5.0
PATIENCE_S = 60.0
SETTLE_S = 3.0
FILL_S = 10.0
"""How long the hostile jobs fill the server before the first round."""
RESCALES = 3
"""Rescales of the neighbour in each half of a round."""
FAT: list[dict[str, object]] = [{"id": f"{n:-<500}", "generation": 1, "cause": "disruption", "pod": "p" * 250} for n in range(250)]
INTRODUCTION = {"t": "join", "ready": True, "store": "127.0.0.1:1"}


class Hostile:
    """One hostile job."""

    def __init__(self, job: str, *, port: int, key: bytes, tls: ssl.SSLContext, orders: Path) -> None:
        self._job, self._port, self._key, self._tls, self._orders = job, port, key, tls, orders
        self._tasks: set[asyncio.Task[None]] = set()
        self.sent = 0

    async def run(self, rate: float) -> None:
        """Send requests at this rate until cancelled, as the file with the orders says."""
        for number in itertools.count():
            await asyncio.sleep(1 / rate)
            order = self._orders.read_text()
            if order == "rest" or len(self._tasks) >= MOST_IN_FLIGHT:
                continue
            token = job_token(self._key, self._job if order == "attack" else "another")
            task = asyncio.create_task(self._request(number, token))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self.sent += 1

    async def _request(self, number: int, token: str) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(2 * UNREAD_S):
                if number % 3 == 0:
                    await self._ask_without_reading(token)
                else:
                    await self._join(number, token, is_fat=number % 3 == 1)

    async def _ask_without_reading(self, token: str) -> None:
        async with self._connected(f"/v1/jobs/{self._job}/world", token, receive_buffer=4096):
            await asyncio.sleep(UNREAD_S)

    async def _join(self, number: int, token: str, *, is_fat: bool) -> None:
        name = f"x{number % 60}"
        introduction: dict[str, object] = {**INTRODUCTION, "incarnation": f"{name}/{number}"}
        if is_fat:
            restarts = [{**one, "id": f"{number}-{one['id']}"} for one in FAT]
            introduction["held"] = {"id": "w", "generation": 4, "rank": 0, "size": 1, "uncounted": restarts}
        upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")
        async with self._connected(f"/v1/jobs/{self._job}/members/{name}", token, *upgrade) as (reader, writer):
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 101 " in head:
                for message in (introduction, {"t": "leave"}):
                    writer.write(frame(message))
                await writer.drain()
                await reader.read(2)

    @contextlib.asynccontextmanager
    async def _connected(
        self, path: str, token: str, *headers: str, receive_buffer: int | None = None
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        plain = socket.socket()
        if receive_buffer is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        plain.setblocking(False)
        await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", self._port))
        reader, writer = await asyncio.open_connection(sock=plain, ssl=self._tls, server_hostname="localhost", limit=2**12)
        try:
            lines = (f"GET {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}", *headers, "", "")
            writer.write("\r\n".join(lines).encode())
            yield reader, writer
        finally:
            writer.transport.abort()


def frame(message: object) -> bytes:
    """Return a message as a client's WebSocket frame."""
    payload = json.dumps(message).encode()
    return struct.pack(">BBQ", 0x81, 0xFF, len(payload)) + b"\0\0\0\0" + payload  # a mask of zeros is a mask


async def attack(jobs: list[str], *, port: int, folder: Path, rate: float, nice: int) -> None:
    """Be these hostile jobs until killed, and write down how many requests they sent."""
    os.nice(nice)
    tls = ssl.create_default_context(cadata=(folder / "ca.crt").read_text())
    key = load_keys(folder)[0]
    hostile = [Hostile(job, port=port, key=key, tls=tls, orders=folder / "orders") for job in jobs]
    tasks = [asyncio.create_task(one.run(rate)) for one in hostile]
    while not any(task.done() for task in tasks):
        await asyncio.sleep(0.5)
        (folder / f"sent-{jobs[0]}").write_text(str(sum(one.sent for one in hostile)))
    await asyncio.gather(*tasks)


def client(server: Server) -> RendezvousClient:
    """Return a controller's client."""

    async def token() -> str:
        return control_token(server.key)

    return RendezvousClient(f"https://127.0.0.1:{server.port}", token, server.ca)


async def listen(server: Server) -> None:
    """Read every job's worlds, as a controller does, until killed."""
    async with client(server) as controller:
        async for _ in controller.worlds():
            pass


class Neighbour:
    """The job that is measured."""

    def __init__(self, server: Server, session: aiohttp.ClientSession) -> None:
        self._server, self._session = server, session
        self._numbers = itertools.count(1)

    async def rescale_s(self) -> float:
        """Form a world of two, and return the seconds from the order for a third worker to the world of three."""
        async with client(self._server) as controller:
            await self._expect(controller, 2)
            sockets = [await self._join(0), await self._join(1)]
            await asyncio.gather(*(self._is_in_world_of(2, socket) for socket in sockets))
            began = time.perf_counter()
            await self._expect(controller, 3)
            sockets.append(await self._join(2))
            await asyncio.gather(*(self._is_in_world_of(3, socket) for socket in sockets))
            took_s = time.perf_counter() - began
            for socket in sockets:
                await socket.close()
            await controller.forget(NEIGHBOUR)
        return took_s

    async def _expect(self, controller: RendezvousClient, size: int) -> None:
        names = tuple(f"w{n}" for n in range(size))
        await controller.expect(NEIGHBOUR, Expectation(members=names, min=size, max=size, term=1, speaker="b", number=next(self._numbers)))

    async def _join(self, index: int) -> aiohttp.ClientWebSocketResponse:
        url = f"https://127.0.0.1:{self._server.port}/v1/jobs/{NEIGHBOUR}/members/w{index}"
        headers = {"Authorization": f"Bearer {job_token(self._server.key, NEIGHBOUR)}"}
        opened = await self._session.ws_connect(url, headers=headers, max_msg_size=0)
        await opened.send_json(INTRODUCTION | {"incarnation": f"w{index}/{time.time()}"})
        return opened

    async def _is_in_world_of(self, size: int, opened: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            view = await opened.receive_json(timeout=PATIENCE_S)
            if view.get("reform"):
                await opened.send_json({"t": "ready", "after": view.get("generation", 0), "store": "127.0.0.1:1"})
            elif view.get("size") == size:
                await opened.send_json({"t": "started", "generation": view["generation"]})
                return


async def measure(server: Server, folder: Path, *, jobs: list[str], rounds: int) -> None:
    """Measure the neighbour in turn next to refused and to answered requests, and print the ratio."""
    orders, took_s, memory_mb = folder / "orders", {"refused": list[float](), "attack": list[float]()}, [server.memory_mb()]

    async def watch_memory() -> None:
        while True:
            memory_mb.append(server.memory_mb())
            await asyncio.sleep(0.1)

    watching = asyncio.create_task(watch_memory())
    tls = ssl.create_default_context(cadata=server.ca)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as session:
        neighbour = Neighbour(server, session)
        while len(list(folder.glob("sent-*"))) < PROCESSES:  # noqa: ASYNC110 - other processes write these files
            await asyncio.sleep(0.1)
        orders.write_text("attack")
        await asyncio.sleep(FILL_S)
        for number in range(rounds):
            for order in ("refused", "attack"):
                orders.write_text(order)
                sent, cpu_s, began = requests(folder), server.cpu_s(), time.perf_counter()
                await asyncio.sleep(SETTLE_S)
                found = [await neighbour.rescale_s() for _ in range(RESCALES)]
                seconds = time.perf_counter() - began
                took_s[order] += found
                shown = " ".join(f"{one:.3f}" for one in found)
                rate, share = (requests(folder) - sent) / seconds, (server.cpu_s() - cpu_s) / seconds
                load = os.getloadavg()[0]
                print(f"{number + 1:3} {order:8} {shown} s, {rate:.0f} requests/s, server {share:.2f} cores, load {load:.0f}", flush=True)
    watching.cancel()
    orders.write_text("rest")
    attacked, refused = (statistics.median(took_s[order]) for order in ("attack", "refused"))
    print(f"{len(jobs)} hostile jobs: the neighbour's rescale took {attacked:.3f} s, and {refused:.3f} s next to refused ones")
    print(f"ratio {attacked / refused:.2f}, most memory of the server {max(memory_mb):.0f} MB")


def requests(folder: Path) -> int:
    """Return how many requests the hostile jobs have sent."""
    return sum(int(path.read_text() or 0) for path in folder.glob("sent-*"))


@contextlib.contextmanager
def processes(server: Server, folder: Path, *, jobs: list[str], rate: float, nice: int) -> Iterator[None]:
    """Run the controller and the hostile jobs meanwhile."""
    common = [sys.executable, "-m", "benchmarks.neighbours", "--folder", str(folder), "--port", str(server.port)]
    common += ["--rate", str(rate), "--nice", str(nice)]
    roles = [["--role", "controller"], *(["--role", "hostile", "--names", ",".join(jobs[n::PROCESSES])] for n in range(PROCESSES))]
    running = [subprocess.Popen([*common, *role]) for role in roles]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def main() -> None:
    """Measure, or be one of the other processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second of each job")
    parser.add_argument("--nice", type=int, default=19, help="how much lower the priority of the hostile jobs is")
    parser.add_argument("--source", type=Path, help="a folder with the source of another release, for its server")
    parser.add_argument("--role", choices=["measure", "controller", "hostile"], default="measure", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--names", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "hostile":
        asyncio.run(attack(options.names.split(","), port=options.port, folder=options.folder, rate=options.rate, nice=options.nice))
    elif options.role == "controller":
        key, ca = load_keys(options.folder)[0], (options.folder / "ca.crt").read_text()
        asyncio.run(listen(Server(subprocess.Popen(["true"]), options.port, key, ca)))
    else:
        run(options)


def run(options: argparse.Namespace) -> None:
    """Start all processes and measure."""
    jobs = [f"hostile-{number}" for number in range(options.jobs)]
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        (folder / "orders").write_text("rest")
        server = start(folder, source=options.source)
        try:
            server.expect({job: Expectation(members=("w0",), min=1, max=8192, floor=5) for job in jobs})
            with processes(server, folder, jobs=jobs, rate=options.rate, nice=options.nice):
                asyncio.run(measure(server, folder, jobs=jobs, rounds=options.rounds))
        finally:
            server.process.terminate()
            server.process.wait()


if __name__ == "__main__":
    main()
