"""Waits until an agent's fork server has imported what workers import. Taken in before that, the agent would stop the whole world."""

import logging
import socket
import time
import typing

from elastic_worker.warm.launch import FOLDER, address_in

log = logging.getLogger(__name__)

LONGEST_S = 120.0
WORTH_A_LINE_S = 1.0


def wait_for_imports(environment: typing.Mapping[str, str], *, longest_s: float = LONGEST_S) -> None:
    """Return at once if there is no fork server, or if it has ended: workers then start plainly."""
    folder = environment.get(FOLDER, "")
    if not folder:
        return
    began = time.monotonic()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, address_in(folder) as address:
            connection.settimeout(longest_s)
            connection.connect(address)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)  # the server takes connections once it has imported, and closes one without a request
    except OSError as error:
        log.debug("the fork server did not answer: %s", error)
    waited_s = time.monotonic() - began
    if waited_s > WORTH_A_LINE_S:
        log.info("the fork server's imports took %.1f s more than torchrun's", waited_s)
