"""Judge reviews one after another in a process of its own, which the controller may kill, so that no review can hold up the controller.

The process reads a length and a body from standard input, and reports the request's uid before it looks at the job. So a job that cannot be
judged in time can still be refused with a message. For a TrainJob the process asks its parent once for the runtime. It ends when its input
ends, and after ORPHAN_S of work on one job, because its parent must be gone then.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import resource
import signal
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import BinaryIO

import msgspec

from elastic.api.errors import Problem
from elastic.api.pod_schema import METRIC, POD_TEMPLATE, fast_type
from elastic.api.trainer.modes import Mode
from elastic_training.controller.deciding.trainjobs.admission import RuntimeSight
from elastic_training.controller.webhook.answers import AdmissionAnswer, Request, Review, Subject, refused
from elastic_training.controller.webhook.review import answer

LENGTH = struct.Struct(">I")
LIMIT_S = 2.0
MOST_MEMORY = 512 * 1024 * 1024
"""Bytes of address space. A review of the largest size takes a third of it."""
PR_SET_PDEATHSIG = 1
ORPHAN_S = 20.0
"""The most seconds of work on one review. This ends the process on systems whose kernel does not end it with the controller."""
GARBAGE_EVERY = 200_000
"""Allocations. Looked for as often as usual, it would take three quarters of the time that a large body takes."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The process can judge."""


class Unreadable(msgspec.Struct, frozen=True, tag="unreadable"):
    """The body is no review."""

    why: str


class Asked(msgspec.Struct, frozen=True, tag="asked"):
    """The object that the review is about; Judged follows, or Wanted and then Judged."""

    subject: Subject


class Judged(msgspec.Struct, frozen=True, tag="judged"):
    allowed: bool
    problems: str
    """The problems in words if it is not allowed."""
    body: msgspec.Raw
    """The AdmissionReview to answer with."""


class Wanted(msgspec.Struct, frozen=True, tag="wanted"):
    """The runtime without which a TrainJob cannot be judged. The parent answers with a RuntimeSight."""

    kind: str
    namespace: str
    name: str


Said = Ready | Unreadable | Asked | Wanted | Judged


class _Heading(msgspec.Struct, frozen=True):
    request: Subject


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--kinds", required=True)
    asked.add_argument("--namespace")
    asked.add_argument("--trainjobs", type=Mode, default=Mode.OFF)
    options = asked.parse_args()
    confine()
    for name in (POD_TEMPLATE, METRIC):
        fast_type(name)
    kinds = frozenset(options.kinds.split(","))
    serve(partial(answer, kinds=kinds, namespace=options.namespace, mode=options.trainjobs, look_up=look_up))


def look_up(kind: str, namespace: str, name: str) -> RuntimeSight:
    """Ask the parent for a runtime. If it does not know either, the TrainJob is judged without the runtime."""
    _say(sys.stdout.buffer, Wanted(kind, namespace, name))
    found = _next(sys.stdin.buffer)
    return msgspec.json.decode(found, type=RuntimeSight) if found else RuntimeSight()


def confine() -> None:
    """Take little memory, and end with the controller. A Ctrl-C is for the controller, which answers waiting reviews before it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    gc.set_threshold(GARBAGE_EVERY)


def serve(judge: Callable[[Request], AdmissionAnswer]) -> None:
    heard, said = sys.stdin.buffer, sys.stdout.buffer
    with contextlib.suppress(BrokenPipeError):
        _say(said, Ready())
        while (body := _next(heard)) is not None:
            signal.setitimer(signal.ITIMER_REAL, ORPHAN_S)
            _judge(body, judge, said)
            signal.setitimer(signal.ITIMER_REAL, 0)


def _judge(body: bytes, judge: Callable[[Request], AdmissionAnswer], said: BinaryIO) -> None:
    try:
        subject = msgspec.json.decode(body, type=_Heading).request
    except (msgspec.DecodeError, RecursionError) as error:
        _say(said, Unreadable(f"expected an AdmissionReview with a request: {error}"))
        return
    _say(said, Asked(subject))
    try:
        given = judge(msgspec.json.decode(body, type=Review).request)
    except (msgspec.DecodeError, RecursionError) as error:
        given = refused(subject, [Problem((), f"the review cannot be read: {error}")])
    response = given.response
    _say(said, Judged(response.allowed, response.status.message if response.status else "", msgspec.Raw(msgspec.json.encode(given))))


def _next(heard: BinaryIO) -> bytes | None:
    head = heard.read(LENGTH.size)
    return heard.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None


def _say(said: BinaryIO, message: Said) -> None:
    data = msgspec.json.encode(message)
    said.write(LENGTH.pack(len(data)) + data)
    said.flush()


if __name__ == "__main__":
    main()
