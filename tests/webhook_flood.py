"""Flood a webhook without credentials: `python webhook_flood.py PORT ADDRESS KIND`. It prints `flooding` first."""

import contextlib
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator

HEAD = b"POST /validate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
LARGE = 3_000_000
CONNECTIONS = 300
THREADS = 8


def opened(port: int, address: str, *, tls: bool) -> socket.socket:
    plain = socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(address, 0))
    if not tls:
        return plain
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(plain)


def silent(port: int, address: str) -> Iterator[None]:
    """Open connections that never begin to speak TLS, many at a time and new ones all the time."""
    held: list[socket.socket] = []
    while True:
        held = [*held[-CONNECTIONS // THREADS :], opened(port, address, tls=False)]
        yield


def slow(port: int, address: str) -> Iterator[None]:
    """Send large bodies that never end."""
    held: list[socket.socket] = []
    while True:
        one = opened(port, address, tls=True)
        one.sendall(HEAD % LARGE + b"x")
        held = [*held[-CONNECTIONS // THREADS :], one]
        yield


def large(port: int, address: str) -> Iterator[None]:
    """Send reviews that take long to read."""
    kind = b'{"group":"kubeflow.org","version":"v1","kind":"PyTorchJob"}'
    start, end = b'{"request":{"uid":"u","kind":%s,"operation":"CREATE","object":{"a":[' % kind, b"1]}}}"
    body = start + b"[]," * ((LARGE - len(start) - len(end)) // 3) + end
    while True:
        with opened(port, address, tls=True) as one:
            one.sendall(HEAD % len(body) + body)
            one.recv(1000)
        yield


def keep_on(kind: str, port: int, address: str) -> None:
    """Flood for ever. Connections that are refused or cut off do not stop it."""
    while True:
        with contextlib.suppress(OSError):
            for _ in {"silent": silent, "slow": slow, "large": large}[kind](port, address):
                pass
        time.sleep(0.001)


def main() -> None:
    port, address, kind = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    for _ in range(THREADS):
        threading.Thread(target=keep_on, args=(kind, port, address), daemon=True).start()
    print("flooding", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
