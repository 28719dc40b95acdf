"""Report a training program's progress to its launcher.

The launcher passes the progress on with its own reports, and answers whether a checkpoint is asked for. Training never waits: a thread
sends the newest report, at most once a second.
"""

import http.client
import json
import threading
import time
import typing

from elastic_worker.horovod.joining import Launcher

SCOPE = "elastic-progress"
LEAST_GAP_S = 1.0
TIMEOUT_S = 5.0
MOST_BYTES = 64 * 1024


class Progress:
    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._has_news = threading.Event()
        self._newest: typing.Optional[str] = None
        self._is_asked = False
        self._thread: typing.Optional[threading.Thread] = None

    def send(self, step: typing.Optional[int], values: typing.Mapping[str, float]) -> None:
        self._newest = json.dumps({"step": step, "values": {name: float(value) for name, value in values.items()}})
        self._has_news.set()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="elastic-progress", daemon=True)
            self._thread.start()

    def is_checkpoint_asked(self) -> bool:
        """Return whether a checkpoint was asked for since the last call."""
        is_asked, self._is_asked = self._is_asked, False
        return is_asked

    def _run(self) -> None:
        was_asked = False
        while True:
            self._has_news.wait()
            self._has_news.clear()
            try:
                is_asked = self._post(self._newest or "{}")
            except (OSError, ValueError, http.client.HTTPException):
                is_asked = was_asked
            if is_asked and not was_asked:
                self._is_asked = True
            was_asked = is_asked
            time.sleep(LEAST_GAP_S)

    def _post(self, report: str) -> bool:
        """Send it; whether a checkpoint is asked for."""
        at = "/{}/{}:{}".format(SCOPE, self._launcher.host, self._launcher.local_rank)
        self._call("PUT", at, report)
        found = json.loads(self._call("GET", at) or b"{}")
        return bool(isinstance(found, dict) and found.get("checkpoint"))

    def _call(self, method: str, path: str, body: typing.Optional[str] = None) -> bytes:
        connection = http.client.HTTPConnection(self._launcher.address, self._launcher.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            text = response.read(MOST_BYTES)
            return text if response.status == 200 else b""
        finally:
            connection.close()
