"""Measure the cost of elastic Horovod's launchers for the rendezvous server while nothing changes.

There are jobs with some hosts each, and these kinds of callers, one after the other:

- `script` asks like discover_hosts.sh, whose child waits for the next list with a connection each time.
- `library` asks like our horovodrun, which waits too, and reports, on two connections that stay.
- `kept` makes a request each second on a connection that stays.
- `plain` makes a new connection each second.
- `openssl` makes the calls of `plain` to `openssl s_server`, which reads a file for each. It shows the cost of connections in C.

    python -m benchmarks.host_polls [--jobs 200] [--hosts 8] [--seconds 30]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from benchmarks.rendezvous import Server, free_port, start
from elastic.membership.hosts import Host, HostFacts
from elastic.membership.tokens import Role, job_token
from elastic.membership.wire import Expectation

REPORT_EVERY_S = 5.0
REPORT = b'{"launcher":"l","proven":[],"assigned":[],"working":[],"assignment":1,"size":8}'
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Job:
    """The launcher of one job."""

    def __init__(self, server: Server, name: str, tls: ssl.SSLContext) -> None:
        self._port, self._name, self._tls = server.port, name, tls
        self._token = job_token(server.key, name, Role.LAUNCHER)
        self.answers = 0

    async def open(self) -> Streams:
        return await asyncio.open_connection("127.0.0.1", self._port, ssl=self._tls, server_hostname="localhost")

    async def ask(self, streams: Streams, query: str = "", body: bytes | None = None) -> dict[str, str]:
        """Make one request, and return the headers of its answer."""
        reader, writer = streams
        writer.write(self._request(query, body))
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        if " 200 " not in lines[0]:
            raise RuntimeError(lines[0])
        headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        await reader.readexactly(int(headers["Content-Length"]))
        self.answers += 1
        return headers

    def _request(self, query: str, body: bytes | None) -> bytes:
        head = [
            f"{'GET' if body is None else 'POST'} /v1/jobs/{self._name}/hosts{query} HTTP/1.1",
            "Host: localhost",
            f"Authorization: Bearer {self._token}",
            f"Content-Length: {len(body or b'')}",
            *(["Accept: application/json"] if body is not None else []),
        ]
        return ("\r\n".join(head) + "\r\n\r\n").encode() + (body or b"")

    async def once(self, query: str) -> dict[str, str]:
        streams = await self.open()
        try:
            return await self.ask(streams, query)
        finally:
            streams[1].close()

    async def plain(self) -> None:
        await _each_second(lambda: self.once("?unproven"))

    async def openssl(self) -> None:
        await _each_second(self._read_file)

    async def _read_file(self) -> None:
        """Read an answer of s_server. It sends no length, so the answer ends with the connection."""
        reader, writer = await self.open()
        try:
            writer.write(self._request("", None))
            if b" 200 " not in await reader.read():
                raise RuntimeError("s_server has no such file")
            self.answers += 1
        finally:
            writer.close()

    async def kept(self) -> None:
        streams = await self.open()
        await _each_second(lambda: self.ask(streams, "?unproven"))

    async def script(self) -> None:
        version = ""
        while True:
            version = (await self.once(f"?unproven&version{version and '&after=' + version}"))["Elastic-Version"]

    async def library(self) -> None:
        async def follow() -> None:
            streams, version = await self.open(), ""
            while True:
                version = (await self.ask(streams, version and "?after=" + version))["Elastic-Version"]

        async def report() -> None:
            streams = await self.open()
            while True:
                await self.ask(streams, body=REPORT)
                await asyncio.sleep(REPORT_EVERY_S)

        await asyncio.gather(follow(), report())


async def _each_second(ask: Callable[[], Awaitable[object]]) -> None:
    while True:
        began = time.monotonic()
        await ask()
        await asyncio.sleep(max(0.0, began + 1.0 - time.monotonic()))


@contextlib.contextmanager
def openssl_server(folder: Path, ours: Server, *, jobs: int, hosts: int) -> Iterator[Server]:
    """Run OpenSSL's server with our certificate. Each job's whole answer is a file."""
    files = folder / "files"
    for index in range(jobs):
        file = files / f"v1/jobs/job-{index}/hosts"
        file.parent.mkdir(parents=True)
        file.write_text("HTTP/1.0 200 OK\r\n\r\n" + "".join(f"w{number}:1\n" for number in range(hosts)))
    port = free_port()
    pair = ["-cert", str(folder / "tls.crt"), "-key", str(folder / "tls.key")]
    command = ["openssl", "s_server", "-accept", f"127.0.0.1:{port}", *pair, "-num_tickets", "0", "-HTTP", "-quiet"]
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=files, stdin=nothing, stdout=nothing, stderr=nothing)
    try:
        yield Server(process, port, ours.key, ours.ca)
    finally:
        process.terminate()
        process.wait()


async def measure(what: str, server: Server, jobs: list[Job], caller: Callable[[Job], Awaitable[None]], seconds: float) -> None:
    async def later(index: int, job: Job) -> None:
        await asyncio.sleep(index / len(jobs))  # real launchers do not ask at the same moment
        await caller(job)

    tasks = [asyncio.ensure_future(later(index, job)) for index, job in enumerate(jobs)]
    await asyncio.sleep(3.0)
    began, cpu, answers = time.perf_counter(), server.cpu_s(), sum(job.answers for job in jobs)
    await asyncio.sleep(seconds)
    took = time.perf_counter() - began
    used, answered = (server.cpu_s() - cpu) / took, (sum(job.answers for job in jobs) - answers) / took
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    failures = [end for end in ended if not isinstance(end, asyncio.CancelledError)]
    print(f"{what:8} {used * 100:5.1f} % of a core, {answered:.0f} answers a second, {len(failures)} callers failed", flush=True)


async def run(folder: Path, server: Server, count: int, hosts: int, seconds: float) -> None:
    tls = ssl.create_default_context(cadata=server.ca)
    jobs = [Job(server, f"job-{index}", tls) for index in range(count)]
    facts = HostFacts(hosts=tuple(Host(name=f"w{number}", uid=f"u{number}", is_ready=True, is_local=True) for number in range(hosts)))
    server.expect({f"job-{index}": Expectation(hosts=facts, speaker="benchmark", number=1) for index in range(count)})
    for what, caller in (("script", Job.script), ("library", Job.library), ("kept", Job.kept), ("plain", Job.plain)):
        await measure(what, server, jobs, caller, seconds)
    if shutil.which("openssl") is None:
        print("openssl  is not on PATH")
        return
    with openssl_server(folder, server, jobs=count, hosts=hosts) as floor:
        await asyncio.sleep(1.0)
        await measure("openssl", floor, [Job(floor, f"job-{index}", tls) for index in range(count)], Job.openssl, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = start(Path(folder))
        try:
            asyncio.run(run(Path(folder), server, options.jobs, options.hosts, options.seconds))
        finally:
            print(f"{options.jobs} jobs with {options.hosts} hosts; load average of the last minute {os.getloadavg()[0]:.1f}")
            server.process.terminate()
            server.process.wait()


if __name__ == "__main__":
    main()
