"""`python -m elastic.local.apiserver`: the API server of the laptop cluster as a process."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import socket
from pathlib import Path

import uvloop

from elastic.local.apiserver.audit import Audit
from elastic.local.apiserver.datadir import DataDir
from elastic.local.apiserver.faults import Faults
from elastic.local.apiserver.server import ApiServer
from elastic.local.files import FolderError
from elastic.logs import log_plainly

GUARDS_OWNERS = "OwnerReferencesPermissionEnforcement"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m elastic.local.apiserver", description="The API server of the laptop cluster.")
    parser.add_argument("--data-dir", type=Path, required=True, help="where keys, kubeconfig and objects lie; made if absent")
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="a loopback address; port 0 picks a free one; the default where no --listen-fd is given"
    )
    parser.add_argument(
        "--listen-fd", type=int, action="append", default=[], metavar="N", help="an open listening socket to serve as well; repeatable"
    )
    parser.add_argument(
        "--san", action="append", default=[], metavar="NAME", help="a further name or address of the server certificate; repeatable"
    )
    parser.add_argument("--ready-fd", type=int, metavar="N", help="gets one line, the port, when requests are answered")
    parser.add_argument("--ready-file", type=Path, help="the same as a file")
    parser.add_argument(
        "--audit-file", type=Path, metavar="F", help="gets a line of JSON for each verb of each user on each resource, once"
    )
    parser.add_argument(
        "--enable-admission-plugins",
        action="append",
        default=[],
        choices=[GUARDS_OWNERS],
        help="refuses owner references that hold up the deletion of an owner whose finalizers the user may not set",
    )
    parser.add_argument("--faults", type=int, metavar="SEED", help="for tests: serves /faults, where faults on purpose are asked for")
    return parser.parse_args()


def listening(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    if host not in ("127.0.0.1", "localhost", "::1", "[::1]") and not host.startswith("127."):
        raise SystemExit(f"--listen is {address} but only a loopback address is served; use 127.0.0.1:{port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    s = socket.socket(family, socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        s.bind((host.strip("[]"), int(port)))
    except OSError as e:
        raise SystemExit(f"cannot listen on {address}: {e.strerror}; choose another port with --listen") from None
    return s


async def serve(args: argparse.Namespace) -> None:
    own = [listening(args.listen or "127.0.0.1:0")] if args.listen or not args.listen_fd else []
    sockets = [*own, *(socket.socket(fileno=fd) for fd in args.listen_fd)]
    port = sockets[0].getsockname()[1]
    try:
        data = DataDir.open(args.data_dir, tuple(args.san))
    except FolderError as error:
        raise SystemExit(str(error)) from None
    faults = Faults(args.faults) if args.faults is not None else None
    audit = Audit(args.audit_file) if args.audit_file is not None else None
    server = ApiServer(data, faults, audit, guards_owners=GUARDS_OWNERS in args.enable_admission_plugins)
    server.load()
    server.publish(port)
    # Objects come and go by the thousand and hold no cycles; looking for some all the time would be felt by watchers.
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await server.start(sockets)
    data.write_kubeconfig(port)
    if args.ready_file:
        args.ready_file.write_text(f"{port}\n")
    if args.ready_fd is not None:
        os.write(args.ready_fd, f"{port}\n".encode())
        os.close(args.ready_fd)
    await stopped.wait()
    await server.stop()


def main() -> None:
    log_plainly()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(arguments()))


if __name__ == "__main__":
    main()
