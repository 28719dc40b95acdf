"""For training code of any framework: report a step and signals, and hear in the reply whether to stop or to checkpoint now.

    reporter = Reporter.from_environment()
    answer = reporter.send(step, loss=loss)     # at most once a second goes out; between, the last answer is returned
    if answer.checkpoint_s is not None: save()

A report is a courtesy: whatever goes wrong on its way, training goes on.
"""

import http.client
import json
import os
import ssl
import time
import typing

from elastic_worker import settings

LEAST_GAP_S = 1.0
TIMEOUT_S = 1.0


class Answer(typing.NamedTuple):
    """What the rendezvous wants of this worker: stop at the next step, or checkpoint within this many seconds."""

    stop: bool = False
    reason: str = ""
    checkpoint_s: typing.Optional[float] = None


class Reporter:
    """Reports for one worker. Not thread-safe; use one per thread."""

    def __init__(self, told: settings.Settings, *, generation: int = 0, least_gap_s: float = LEAST_GAP_S) -> None:
        self._settings = told
        self._generation = generation
        self._tls = told.tls()
        self._least_gap_s = least_gap_s
        self._connection = None  # type: typing.Optional[http.client.HTTPSConnection]
        self._sent_at = float("-inf")
        self._answer = Answer()

    @classmethod
    def from_environment(cls) -> "Reporter":
        """A reporter as the pod's environment says. torchrun hands it on to its workers."""
        env = os.environ
        told = settings.read(env, endpoint=env.get("PET_RDZV_ENDPOINT", ""), job=env.get("PET_RDZV_ID", ""), local_address=None)
        return cls(told, generation=int(env.get(settings.GENERATION) or 0))

    def send(self, step: int, **values: float) -> Answer:
        """Report, if the last report is long enough ago, and return what the rendezvous last answered."""
        now = time.monotonic()
        if now < self._sent_at + self._least_gap_s:
            return self._answer
        self._sent_at = now
        body = json.dumps({"member": self._settings.member, "generation": self._generation, "step": step, "values": values})
        try:
            fields = self._post(body)
            self._answer = Answer(bool(fields.get("stop")), str(fields.get("reason", "")), fields.get("checkpoint_s"))
        except (OSError, ssl.SSLError, http.client.HTTPException, ValueError):
            self.close()
        return self._answer

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post(self, body: str) -> typing.Dict[str, typing.Any]:
        told = self._settings
        if self._connection is None:
            self._connection = http.client.HTTPSConnection(told.host, told.port, context=self._tls, timeout=TIMEOUT_S)
        headers = {"Authorization": "Bearer {}".format(told.token), "Content-Type": "application/json"}
        self._connection.request("POST", "/v1/jobs/{}/report".format(told.job), body, headers)
        response = self._connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise ValueError("the rendezvous server answered {}".format(response.status))
        fields = json.loads(text)
        return fields if isinstance(fields, dict) else {}
