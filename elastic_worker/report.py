"""Report a step from training code of any framework, and learn whether to stop or to checkpoint now.

    from elastic_worker.report import report

    answer = report(step, loss=loss)     # never waits: the newest report is sent once a second, the last answer is returned
    if answer.checkpoint_s is not None: save()

The same call works with the rendezvous server, with an etcd, and without a control plane: then it does nothing and the answer is to go on.
Training goes on at full speed if sending fails: a thread resolves names, connects and waits for the server.
"""

import atexit
import functools
import http.client
import json
import logging
import math
import os
import socket
import threading
import time
import typing

from elastic_worker import flight_recorder, settings, stack_signal

log = logging.getLogger(__name__)

BACKEND = "PET_RDZV_BACKEND"
SERVERS_BACKEND = "elastic"
LEAST_GAP_S = 1.0
TIMEOUT_S = 5.0
LONGEST_BACK_OFF_S = 30.0
FLUSH_S = 1.0
"""Seconds for which the end of a process waits until its last report is sent."""
LONGEST_ANSWER = 64 * 1024


class Answer(typing.NamedTuple):
    """Tell this worker to stop at the next step, or to checkpoint within `checkpoint_s` seconds."""

    stop: bool = False
    reason: str = ""
    checkpoint_s: typing.Optional[float] = None


def report(step: int, **values: float) -> Answer:
    """Report a step of this process and return the newest answer. Every rank may call it, with or without a control plane."""
    return _of_this_process().send(step, **values)


class Reporter:
    """Reports for one worker. Without a peer it sends nothing, and its answer is to go on."""

    def __init__(
        self,
        own: "typing.Union[settings.Settings, Agent, None]",
        *,
        generation: typing.Optional[int] = None,
        least_gap_s: float = LEAST_GAP_S,
    ) -> None:
        """Prepare the reports. generation: of the world; without it, the environment names the present one at each report."""
        self._member = own.member if own is not None else ""
        self._peer = _Server(own) if isinstance(own, settings.Settings) else own  # type: typing.Union[Agent, _Server, None]
        self._generation = generation
        self._least_gap_s = least_gap_s
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self._closing = threading.Condition(lock)
        """Ends the thread's pause between two reports. A report in the pause must not wake it: that would cost more than the report."""
        self._newest = None  # type: typing.Optional[typing.Dict[str, typing.Any]]
        self._is_sending = False
        self._is_closing = False
        self._answer, self._answered_at = Answer(), 0.0
        self._thread = None  # type: typing.Optional[threading.Thread]

    @classmethod
    def from_environment(cls) -> "Reporter":
        """Return the reporter of this worker, from the environment that torchrun passes on. It never fails."""
        env = os.environ
        if "RANK" in env:
            stack_signal.register(env)
            flight_recorder.serve(env)
        try:
            int(env.get(settings.GENERATION) or 0)
            if env.get(settings.REPORTS):
                return cls(Agent(env[settings.REPORTS], env.get(settings.MEMBER, "")))
            if env.get(BACKEND) == SERVERS_BACKEND:
                own = settings.read(env, endpoint=env.get("PET_RDZV_ENDPOINT", ""), job=env.get("PET_RDZV_ID", ""), local_address=None)
                return cls(own)
        except (ValueError, OSError) as error:  # ssl.SSLError is an OSError
            log.warning("elastic_worker: this process reports no steps: %s", error)
        return cls(None)

    @property
    def is_heard(self) -> bool:
        """Tell whether a control plane takes the reports."""
        return self._peer is not None

    def send(self, step: int, **values: float) -> Answer:
        """Store this report for sending, in place of one that is not sent yet, and return the newest answer.

        A value that is not finite is left out: JSON has no word for it, and the server would refuse the report with its step.
        """
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        if self._peer is None:
            return Answer()
        report = {"member": self._member, "generation": self._world(), "step": step, "values": finite}
        with self._changed:
            self._newest = report
            if self._thread is None or not self._thread.is_alive():
                self._start()
            self._changed.notify_all()
            answer = self._answer
        if answer.checkpoint_s is None:
            return answer
        return answer._replace(checkpoint_s=max(0.0, answer.checkpoint_s - (time.monotonic() - self._answered_at)))

    def _world(self) -> int:
        """Return the generation of the present world. A process that lives on in the next world has its number in the environment."""
        return int(os.environ.get(settings.GENERATION) or 0) if self._generation is None else self._generation

    def close(self) -> None:
        """Wait up to FLUSH_S until the last report is sent, and stop."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            self._closing.notify_all()
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
        back_off_s, peer = 0.0, self._peer
        assert peer is not None
        while True:
            report = self._take()
            if report is None:
                peer.close()
                return
            answer = _answer_of(peer, report)
            with self._changed:
                self._is_sending = False
                if answer is not None:
                    self._answer, self._answered_at = answer, time.monotonic()
                self._changed.notify_all()
            back_off_s = 0.0 if answer is not None else min(LONGEST_BACK_OFF_S, max(LEAST_GAP_S, 2 * back_off_s))
            with self._changed:
                self._closing.wait_for(lambda: self._is_closing, max(self._least_gap_s, back_off_s))
                if self._is_closing and answer is None:
                    self._newest = None  # at the end there is no second attempt
                    self._changed.notify_all()

    def _take(self) -> typing.Optional[str]:
        """Wait for a report and return the newest one; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None or self._is_closing)
            report, self._newest = self._newest, None
            self._is_sending = report is not None
        return None if report is None else json.dumps(report)


@functools.lru_cache(maxsize=None)
def _of_this_process() -> Reporter:
    return Reporter.from_environment()


def _answer_of(peer: "typing.Union[Agent, _Server]", report: str) -> typing.Optional[Answer]:
    """Return the peer's answer, or None if it gave no usable one."""
    try:
        fields = peer.post(report)
        left_s = fields.get("checkpoint_s")
        return Answer(bool(fields.get("stop")), str(fields.get("reason", "")), None if left_s is None else float(left_s))
    except (OSError, http.client.HTTPException, ValueError, TypeError, ArithmeticError, RecursionError):
        peer.close()
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
