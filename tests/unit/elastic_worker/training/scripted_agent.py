"""An agent's end of the door between a worker and its agent, for a test that says every line itself."""

import json
import socket
import threading
from pathlib import Path

from elastic_worker.training.connections import Connections
from elastic_worker.training.control import Control

PATIENCE_S = 20.0


class ScriptedAgent:
    """Takes one worker's connection, and reads and writes its lines."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "door")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(1)
        self.left = threading.Event()
        self.exit_code: int | None = None

    def control(self, connections: Connections | None = None, *, step: int | None = None) -> Control:
        """Return a worker's control that has said hello. Its process does not end: `left` is set instead."""
        one = Control(self.path, connections or Connections(), leave=self._leave)
        self._control = one
        one.step = step or 0
        one.start(pid=1, local_rank=0, torch="2.13.0", step=step)
        self.accept()
        return one

    def accept(self) -> None:
        """Take the worker's connection."""
        self.connection, _ = self._listener.accept()
        self.connection.settimeout(PATIENCE_S)
        self._lines = self.connection.makefile("rb")

    def _leave(self, code: int) -> None:
        self.exit_code = self.exit_code or code
        self.left.set()

    def hears(self) -> dict:
        """Return the next message of the worker."""
        return json.loads(self._lines.readline())

    def says(self, phase: str, round: int, **fields: object) -> None:
        """Send the state of a change."""
        self.sends({"t": "change", "round": round, "phase": phase, **fields})

    def sends(self, message: object) -> None:
        """Send a message."""
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """End the listener and then the connection, as the agent's door does.

        A worker that loses its connection while the door still listens is not a worker of that agent.
        """
        for one in (self._listener, getattr(self, "_lines", None), getattr(self, "connection", None)):
            if one is not None:
                one.close()

    def end(self) -> None:
        """End everything, the worker's side too."""
        self.close()
        for thread in threading.enumerate():
            if thread.name == "elastic-control":
                thread.join(PATIENCE_S)
        if hasattr(self, "_control"):
            self._control._socket.close()
