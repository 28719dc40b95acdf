"""Run the handlers of a container's probes and life-cycle hooks (exec, httpGet, tcpSocket, sleep).

They return a failure in words, and never decide about the consequences.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from elastic.local.agent.dial import dial
from elastic.local.agent.environment import ConfigError, Object
from elastic.local.agent.exec import command
from elastic.local.agent.probes import port_of
from elastic.local.sandbox import Launch, SandboxError
from elastic.local.sandbox.channel import Channel, HolderGone

MOST_HEADER = 64 * 1024


@dataclass(frozen=True, slots=True)
class Target:
    """A running container, as its handlers reach it."""

    channel: Channel
    pod: str
    ip: str
    container: Object
    launch: Callable[[], Awaitable[Launch]]


async def ask(target: Target, handler: Object, *, timeout_s: float) -> str:
    """Run a handler. Return an empty text if it succeeds, otherwise the failure in words."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _ask(target, handler)
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except OSError as error:
        return error.strerror or str(error)
    except (SandboxError, HolderGone, ConfigError) as error:
        return str(error)


async def _ask(target: Target, handler: Object) -> str:
    if "exec" in handler:
        return await _run(target, handler["exec"].get("command") or [])
    if "httpGet" in handler:
        return await _get(target, handler["httpGet"])
    if "tcpSocket" in handler:
        (await _connect(target, handler["tcpSocket"]["port"])).close()
        return ""
    if "sleep" in handler:
        await asyncio.sleep(float(handler["sleep"]["seconds"]))
        return ""
    return f"handlers of the type {', '.join(sorted(handler))} are not supported here"


async def _run(target: Target, argv: list[str]) -> str:
    launch = command(await target.launch(), argv)
    null = os.open(os.devnull, os.O_RDWR)
    try:
        end = await target.channel.join(launch, (null, null, null), terminal=False)
    finally:
        os.close(null)
    code, words = await end
    return words or ("" if code == 0 else f"command {argv} exited with {code}")


async def _connect(target: Target, port: int | str) -> socket.socket:
    number = port_of(target.container, port)
    if number is None:
        raise ConfigError(f"the container has no port named {port}")
    return await dial(target.channel, target.pod, ip=target.ip, port=number, inside=False)


async def _get(target: Target, wanted: Object) -> str:
    connection = await _connect(target, wanted["port"])
    tls = None
    if wanted.get("scheme", "HTTP") == "HTTPS":
        # Like the kubelet's, a probe checks that a server answers, but not which server.
        tls = ssl.create_default_context()
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(
        sock=connection, ssl=tls, server_hostname=target.ip if tls is not None else None, limit=MOST_HEADER
    )
    try:
        headers = {"Host": target.ip, "User-Agent": "kube-probe/1.36", "Accept": "*/*", "Connection": "close"}
        headers |= {entry["name"]: entry["value"] for entry in wanted.get("httpHeaders") or ()}
        lines = [f"GET {wanted.get('path') or '/'} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        status = (await reader.readline()).split()
    finally:
        writer.close()
    if len(status) < 2 or not status[1].isdigit():
        return "the answer is not HTTP"
    code = int(status[1])
    return "" if 200 <= code < 400 else f"HTTP probe failed with statuscode: {code}"
