"""For training code of any framework: report a step and signals; the answer says whether to stop or to checkpoint now.

    reporter = Reporter.from_environment()
    answer = reporter.send(step, loss=loss)     # never waits: the newest report is sent once a second, the last answer is returned
    if answer.checkpoint_s is not None: save()

Reports are optional: if sending fails, training goes on at full speed. A thread of its own resolves names, connects and waits for the
server; `send` only stores the newest report for it.
"""

import atexit
import http.client
import json
import os
import socket
import ssl
import threading
import time
import typing

from elastic_worker import settings

LEAST_GAP_S = 1.0
TIMEOUT_S = 5.0
LONGEST_BACK_OFF_S = 30.0
FLUSH_S = 1.0
"""How long the end of a process waits until its last report is sent."""
LONGEST_ANSWER = 64 * 1024


class Answer(typing.NamedTuple):
    """What this worker shall do: stop at the next step, or checkpoint within this many seconds."""

    stop: bool = False
    reason: str = ""
    checkpoint_s: typing.Optional[float] = None


class Reporter:
    """Reports for one worker."""

    def __init__(self, own: "typing.Union[settings.Settings, Agent]", *, generation: int = 0, least_gap_s: float = LEAST_GAP_S) -> None:
        self._member = own.member
        self._peer = own if isinstance(own, Agent) else _Server(own)  # type: typing.Union[Agent, _Server]
        self._generation = generation
        self._least_gap_s = least_gap_s
        self._changed = threading.Condition()
        self._newest = None  # type: typing.Optional[str]
        self._is_sending = False
        self._is_closing = False
        self._answer, self._answered_at = Answer(), 0.0
        self._thread = None  # type: typing.Optional[threading.Thread]

    @classmethod
    def from_environment(cls) -> "Reporter":
        """A reporter for this pod, from the environment, which torchrun passes on to its workers."""
        env, generation = os.environ, int(os.environ.get(settings.GENERATION) or 0)
        if env.get(settings.REPORTS):
            return cls(Agent(env[settings.REPORTS], env.get(settings.MEMBER, "")), generation=generation)
        own = settings.read(env, endpoint=env.get("PET_RDZV_ENDPOINT", ""), job=env.get("PET_RDZV_ID", ""), local_address=None)
        return cls(own, generation=generation)

    def send(self, step: int, **values: float) -> Answer:
        """Store this report for sending; it replaces one that is not sent yet. Returns the server's last answer."""
        report = json.dumps({"member": self._member, "generation": self._generation, "step": step, "values": values})
        with self._changed:
            self._newest = report
            if self._thread is None or not self._thread.is_alive():
                self._start()
            self._changed.notify_all()
            answer = self._answer
        if answer.checkpoint_s is None:
            return answer
        return answer._replace(checkpoint_s=max(0.0, answer.checkpoint_s - (time.monotonic() - self._answered_at)))

    def close(self) -> None:
        """Wait up to FLUSH_S until the last report is sent, and stop."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            if self._thread is not None and self._thread.is_alive():
                self._changed.wait_for(lambda: self._newest is None and not self._is_sending, FLUSH_S)
        atexit.unregister(self.close)

    # --- the thread ---

    def _start(self) -> None:
        """Start the thread, also after a fork, which copies no threads."""
        self._is_closing = self._is_sending = False
        self._thread = threading.Thread(target=self._run, name="elastic-report", daemon=True)
        self._thread.start()
        atexit.unregister(self.close)
        atexit.register(self.close)

    def _run(self) -> None:
        back_off_s = 0.0
        while True:
            report = self._take()
            if report is None:
                self._peer.close()
                return
            answer = self._try(report)
            with self._changed:
                self._is_sending = False
                if answer is not None:
                    self._answer, self._answered_at = answer, time.monotonic()
                self._changed.notify_all()
            back_off_s = 0.0 if answer is not None else min(LONGEST_BACK_OFF_S, max(LEAST_GAP_S, 2 * back_off_s))
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing, max(self._least_gap_s, back_off_s))
                if self._is_closing and answer is None:
                    self._newest = None  # at the end there is no second attempt
                    self._changed.notify_all()

    def _take(self) -> typing.Optional[str]:
        """Wait for a report and return the newest one; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None or self._is_closing)
            report, self._newest = self._newest, None
            self._is_sending = report is not None
            return report

    def _try(self, report: str) -> typing.Optional[Answer]:
        """The server's answer; None if there is none."""
        try:
            fields = self._peer.post(report)
            return Answer(bool(fields.get("stop")), str(fields.get("reason", "")), fields.get("checkpoint_s"))
        except (OSError, ssl.SSLError, http.client.HTTPException, ValueError, TypeError):
            self._peer.close()
            return None


class _Server:
    """The rendezvous server."""

    def __init__(self, own: settings.Settings) -> None:
        self._settings = own
        self._tls = own.tls()
        self._connection = None  # type: typing.Optional[http.client.HTTPSConnection]

    def post(self, body: str) -> typing.Dict[str, typing.Any]:
        to = self._settings
        if self._connection is None:
            self._connection = http.client.HTTPSConnection(to.host, to.port, context=self._tls, timeout=TIMEOUT_S)
        headers = {
            "Authorization": "Bearer {}".format(to.token),
            "Content-Type": "application/json",
            settings.PROTOCOL_HEADER: settings.PROTOCOL_VERSION,
        }
        self._connection.request("POST", "/v1/jobs/{}/report".format(to.job), body, headers)
        response = self._connection.getresponse()
        text = response.read(LONGEST_ANSWER + 1)
        if response.status != 200 or len(text) > LONGEST_ANSWER:
            raise ValueError("the rendezvous server answered {} with {} bytes".format(response.status, len(text)))
        return _object(text)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Agent:
    """Connection to the worker's own agent, which meets its peers in an etcd and takes reports at a socket."""

    def __init__(self, path: str, member: str) -> None:
        self._path = path
        self.member = member
        self._socket = None  # type: typing.Optional[socket.socket]
        self._lines = None  # type: typing.Optional[typing.BinaryIO]

    def post(self, body: str) -> typing.Dict[str, typing.Any]:
        if self._socket is None or self._lines is None:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(TIMEOUT_S)
            self._socket.connect(self._path)
            self._lines = typing.cast(typing.BinaryIO, self._socket.makefile("rb"))
        self._socket.sendall(body.encode() + b"\n")
        text = self._lines.readline(LONGEST_ANSWER + 1)
        if not text.endswith(b"\n"):
            raise ValueError("the agent answered with {} bytes and no whole line".format(len(text)))
        return _object(text)

    def close(self) -> None:
        for opened in (self._lines, self._socket):
            if opened is not None:
                opened.close()
        self._lines = self._socket = None


def _object(text: bytes) -> typing.Dict[str, typing.Any]:
    fields = json.loads(text)
    return fields if isinstance(fields, dict) else {}
