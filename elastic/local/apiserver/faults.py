"""Inject faults into requests, for tests, if the server was started for it.

A rule names the requests (method, path and agent as regular expressions), how often it applies (times, probability), and the fault:
latency, an error status, a dropped connection, a watch that ends or gets 410, or a list of some versions ago.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

import msgspec

from elastic.local.apiserver.errors import StatusError, bad_request


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    method: str = ".*"
    path: str = ".*"
    agent: str = ".*"
    probability: float = 1.0
    times: int | None = None
    latency_s: float = 0.0
    status: int | None = None
    retry_after_s: int | None = None
    drop: bool = False
    end_watch_after_s: float | None = None
    gone: bool = False
    stale_by: int = 0


@dataclass(slots=True)
class Fault:
    """The faults of a request."""

    latency_s: float = 0.0
    error: StatusError | None = None
    drop: bool = False
    end_watch_after_s: float | None = None
    gone: bool = False
    stale_by: int = 0


_REASONS = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired", 429: "TooManyRequests",
    500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout",
}  # fmt: skip


class Faults:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._rules: list[Rule] = []
        self._left: list[int | None] = []

    def replace(self, body: bytes) -> None:
        """Replace the rules with a JSON list of rules."""
        try:
            read = msgspec.json.decode(body, type=list[Rule])
            for rule in read:
                for pattern in (rule.method, rule.path, rule.agent):
                    re.compile(pattern)
        except (msgspec.MsgspecError, re.error) as e:
            raise bad_request(f"faults: {e}; expected a list of rules") from None
        self._rules, self._left = read, [r.times for r in read]

    def shown(self) -> bytes:
        return msgspec.json.encode([msgspec.structs.replace(r, times=n) for r, n in zip(self._rules, self._left, strict=True)])

    def meet(self, method: str, path: str, agent: str) -> Fault:
        fault = Fault()
        for i, rule in enumerate(self._rules):
            left = self._left[i]
            if left == 0 or not _concerns(rule, method, path, agent) or self._random.random() >= rule.probability:
                continue
            if left is not None:
                self._left[i] = left - 1
            fault.latency_s += rule.latency_s
            fault.drop = fault.drop or rule.drop
            fault.gone = fault.gone or rule.gone
            fault.stale_by = max(fault.stale_by, rule.stale_by)
            if rule.end_watch_after_s is not None:
                fault.end_watch_after_s = rule.end_watch_after_s
            if rule.status is not None and fault.error is None:
                headers = {"Retry-After": str(rule.retry_after_s)} if rule.retry_after_s is not None else {}
                fault.error = StatusError(rule.status, _REASONS.get(rule.status, ""), "a fault on purpose", details={}, headers=headers)
        return fault


def _concerns(rule: Rule, method: str, path: str, agent: str) -> bool:
    return bool(re.fullmatch(rule.method, method) and re.fullmatch(rule.path, path) and re.search(rule.agent, agent))
