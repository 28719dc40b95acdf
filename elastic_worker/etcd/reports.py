"""Take the reports of this agent's workers, over a socket in a folder that only this user may enter.

A report is a line of JSON, and so is its answer. elastic_worker.report is the other end. This module passes on steps and decides nothing.
"""

import contextlib
import json
import logging
import os
import shutil
import socket
import tempfile
import threading
import typing

from elastic_worker.etcd.fields import Fields, Unusable

log = logging.getLogger(__name__)

LONGEST_REPORT = 64 * 1024
LONGEST_PATH = 100
"""Bytes that the path of a socket may have."""
MOST_CONNECTIONS = 256
SILENCE_S = 300.0

OnStep = typing.Callable[[int, int], None]
Answer = typing.Callable[[], typing.Mapping[str, typing.Any]]


class Reports:
    """The socket, open for as long as the agent lives."""

    def __init__(self) -> None:
        """Open the socket. Raise OSError if no folder can hold it."""
        self._folder = _folder()
        self.path = os.path.join(self._folder, "reports")
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.bind(self.path)
            self._socket.listen(16)
        except OSError:
            self.close()
            raise
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)

    def begin(self, on_step: OnStep, answer: Answer) -> None:
        """Give each step and its generation to `on_step`, in threads of its own, and answer every report."""
        threading.Thread(target=self._accept, args=(on_step, answer), name="elastic-reports", daemon=True).start()

    def close(self) -> None:
        """Take no more reports."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self, on_step: OnStep, answer: Answer) -> None:
        while True:
            self._free.acquire()
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection, on_step, answer), name="elastic-reports", daemon=True).start()

    def _serve(self, connection: socket.socket, on_step: OnStep, answer: Answer) -> None:
        try:
            with connection, connection.makefile("rb") as lines:
                connection.settimeout(SILENCE_S)
                while True:
                    line = lines.readline(LONGEST_REPORT + 1)
                    if not line.endswith(b"\n"):
                        return
                    fields = Fields(json.loads(line))
                    generation, step = fields.generation("generation"), fields.step("step")
                    if generation and step is not None:
                        on_step(generation, step)
                    connection.sendall(json.dumps(answer()).encode() + b"\n")
        except (Unusable, ValueError, RecursionError) as error:
            log.warning("a worker's report cannot be read: %s", str(error)[:300])
        except OSError:
            pass  # the worker has ended, or is silent
        finally:
            self._free.release()


def _folder() -> str:
    """Return a new folder, outside of a TMPDIR that is so long that the path of the socket would not fit."""
    made = tempfile.mkdtemp(prefix="elastic-")
    if len(os.fsencode(made)) <= LONGEST_PATH - len("/reports"):
        return made
    os.rmdir(made)
    return tempfile.mkdtemp(prefix="elastic-", dir="/tmp")
