"""Ask the running cluster, through the node agents' control socket, to add a node or to let a node vanish."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec

from elastic.local.agent.control import SOCKET, Add, Kill
from elastic.local.sandbox.channel import address_in

ANSWER_S = 60.0


class NotDone(Exception):
    """The node agents refused, or none runs; the text says why."""


def ask_agents(data_dir: Path, request: Add | Kill) -> None:
    """Send the request, and return when the node agents have carried it out."""
    try:
        with address_in(data_dir, SOCKET) as address, socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_S)
            connection.connect(address)
            connection.sendall(msgspec.json.encode(request) + b"\n")
            answer = msgspec.json.decode(connection.makefile("rb").readline(), type=dict[str, object])
    except TimeoutError:
        raise NotDone(f"no answer from the node agents within {ANSWER_S:.0f} s") from None
    except (OSError, msgspec.DecodeError) as error:
        raise NotDone(f"the node agents in {data_dir} do not answer: {error}") from error
    if "error" in answer:
        raise NotDone(str(answer["error"]))
