"""Run a command in a container of a pod, with the caller's own rights, and return its output."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlencode

import aiohttp

from elastic.kube.client import NO_UPGRADE, Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import PODS

PROTOCOL = "v4.channel.k8s.io"
OUTPUT, ERRORS, STATUS = 1, 2, 3
NO_RIGHT = "running a command in pod {pod} needs the rights to get and to create pods/exec in namespace {namespace}"
"""Kubernetes before 1.35 asks for `get` only, since a WebSocket begins with a GET."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended."""

    status: int
    output: str
    errors: str
    trouble: str = ""
    """Why the command could not be run, in the words of the cluster."""


async def run(kube: Kube, pod: str, command: Sequence[str], *, namespace: str, container: str, timeout_s: float, most_bytes: int) -> Ended:
    """Run a command to its end. Raises KubeError if the cluster refuses it, it takes too long, or it writes too much."""
    words = [("container", container), ("stdout", "true"), ("stderr", "true"), *(("command", word) for word in command)]
    path = f"{PODS.path(namespace=namespace, name=pod, subresource='exec')}?{urlencode(words, quote_via=quote)}"
    channels = {OUTPUT: bytearray(), ERRORS: bytearray(), STATUS: bytearray()}
    try:
        async with asyncio.timeout(timeout_s), kube.websocket(path, params={}, protocol=PROTOCOL) as socket:
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.BINARY or not message.data or message.data[0] not in channels:
                    continue
                channels[message.data[0]] += message.data[1:]
                if sum(map(len, channels.values())) > most_bytes:
                    raise KubeError(code=0, reason="TooLong", message=f"the command in pod {pod} wrote more than {most_bytes} bytes")
    except TimeoutError as error:
        raise KubeError(code=0, reason="Timeout", message=f"the command in pod {pod} did not end within {timeout_s:g} s") from error
    except (OSError, aiohttp.ClientError) as error:
        raise KubeError(code=0, reason="Lost", message=f"the connection to pod {pod} was lost: {error or type(error).__name__}") from error
    except KubeError as error:
        if error.code != 403 or error.reason != NO_UPGRADE:
            raise
        raise KubeError(code=403, reason="NoRight", message=NO_RIGHT.format(pod=pod, namespace=namespace)) from error
    return _ended(pod, *(bytes(channels[channel]).decode(errors="replace") for channel in (OUTPUT, ERRORS, STATUS)))


def _ended(pod: str, output: str, errors: str, told: str) -> Ended:
    """Return the end of a command from what its channels held."""
    try:
        status = json.loads(told)
        if status.get("status") == "Success":
            return Ended(0, output, errors)
        causes = (status.get("details") or {}).get("causes") or ()
        code = next((int(cause["message"]) for cause in causes if cause.get("reason") == "ExitCode"), None)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KubeError(code=0, reason="Lost", message=f"the cluster did not say how the command in pod {pod} ended") from error
    return Ended(1, output, errors, str(status.get("message") or "")) if code is None else Ended(code, output, errors)
