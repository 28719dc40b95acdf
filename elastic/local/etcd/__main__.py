"""Run etcd behind sockets that another process opened, one of them inside the pods' network.

etcd opens its own sockets, so this process passes bytes on. etcd speaks TLS with the installation's certificate, and the controller turns
authentication on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import platform
import signal
import socket
import sys
from pathlib import Path

from elastic.local.sandbox import linux
from elastic.logs import log_plainly

log = logging.getLogger("elastic.local.etcd")

HOST = "127.0.0.1"
MOST_CONNECTIONS = 4096
CHUNK = 64 * 1024
READY_S, LOOK_EVERY_S = 60.0, 0.05
STOP_S = 5.0
LEAST_BCRYPT_COST = "4"
"""Passwords here are keys of 256 bits, which nobody guesses; the default makes each login cost a tenth of a second."""


def command(program: Path, *, folder: Path, installation: Path, port: int, peer_port: int) -> list[str]:
    """Etcd with one member, listening on loopback only."""
    client, peer = f"https://{HOST}:{port}", f"http://{HOST}:{peer_port}"
    return [
        str(program),
        "--name=laptop",
        f"--data-dir={folder}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=laptop={peer}",
        f"--cert-file={installation / 'tls.crt'}",
        f"--key-file={installation / 'tls.key'}",
        f"--bcrypt-cost={LEAST_BCRYPT_COST}",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=1h",
        "--logger=zap",
        "--log-level=warn",
    ]


class Relay:
    """Passes the bytes of each connection on to etcd, both ways."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._gate = asyncio.Semaphore(MOST_CONNECTIONS)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._gate:
            try:
                inner_reader, inner_writer = await asyncio.open_connection(HOST, self._port)
            except OSError:
                writer.close()
                return
            try:
                await asyncio.gather(_pass(reader, inner_writer), _pass(inner_reader, writer))
            finally:
                for each in (writer, inner_writer):
                    each.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        if writer.can_write_eof():
            writer.write_eof()


async def wait_until_it_listens(port: int, process: asyncio.subprocess.Process) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + READY_S
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(HOST, port)
            writer.close()
            return
        if process.returncode is not None or loop.time() > until:
            raise SystemExit(f"etcd did not start within {READY_S:.0f} s (status {process.returncode}); its words are above")
        await asyncio.sleep(LOOK_EVERY_S)


async def run(options: argparse.Namespace) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    options.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    words = command(
        options.program, folder=options.folder, installation=options.installation, port=options.port, peer_port=options.peer_port
    )
    # Debian's etcd asks for this word on machines that its authors do not test on.
    environment = os.environ | ({"ETCD_UNSUPPORTED_ARCH": "arm64"} if platform.machine() == "aarch64" else {})
    process = await asyncio.create_subprocess_exec(*words, env=environment, preexec_fn=linux.die_with_parent)
    try:
        await wait_until_it_listens(options.port, process)
        relay = Relay(options.port)
        for descriptor in options.listen_fd:
            await asyncio.start_server(relay.serve, sock=socket.socket(fileno=descriptor))
        options.ready_file.touch()
        waits = [asyncio.create_task(stop.wait()), asyncio.create_task(process.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if process.returncode is None:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()
    return 0 if stop.is_set() else 1


def main() -> int:
    log_plainly()
    parser = argparse.ArgumentParser(prog="python -m elastic.local.etcd", description="The etcd of the laptop cluster.")
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--installation", type=Path, required=True, help="folder with tls.crt and tls.key")
    parser.add_argument("--port", type=int, required=True, help="where etcd listens, on loopback")
    parser.add_argument("--peer-port", type=int, required=True)
    parser.add_argument("--listen-fd", type=int, action="append", required=True)
    parser.add_argument("--ready-file", type=Path, required=True)
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
