"""Take what a training program reports of itself in the form of Kubeflow Trainer: `POST /v1/jobs/UID/trainer-status`.

The clients are the KubeflowCallback of Hugging Face's transformers and `update_trainjob_status` of Kubeflow's SDK. Both send at most once
in 5 s, read only the status of the answer, and never repeat a request. The SDK does not slow down after a refusal. So a report that comes
early is taken too: it replaces the one before it. Metrics that do not fit are left out, because a refusal would hide all others.
"""

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Protocol

import msgspec
from aiohttp import web
from msgspec import Meta

from elastic.membership.bounds import MOST_SECONDS
from elastic.membership.hosts import MAX_VALUES
from elastic_training.rendezvous.server.access import Gate

PATH = "/v1/jobs/{uid}/trainer-status"
LONGEST_BODY = 16 * 2**10
MOST_METRICS = 256
"""Metrics that the clients send at most. The first MAX_VALUES of them are kept."""
LONGEST_NAME = 64
STEP_NAMES = ("current_step", "global_step", "step")
"""Metrics that say which step was made last; transformers sends the first one."""
TOTAL = "total_steps"
"""The metric with the number of all steps, as transformers sends it."""
MOST_STEP = 2**53
AT_ONCE, A_SECOND = 128.0, 64.0
"""Reports of a job in a row, and a second in the long run: each of some hundred processes may report once in 5 s."""
BODY_S = 10.0
"""Seconds in which a body must arrive. The clients wait for 5 s."""
COMPLETE = 100


class Metric(msgspec.Struct, frozen=True):
    name: str
    value: str


class TrainerStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The report of a program. Its time is not used, because the clocks of two hosts may differ."""

    progress_percentage: Annotated[float, Meta(ge=0, le=COMPLETE)] | None = None
    estimated_remaining_seconds: Annotated[float, Meta(ge=0)] | None = None
    metrics: Annotated[tuple[Metric, ...], Meta(max_length=MOST_METRICS)] = ()
    last_updated_time: datetime | None = None


class Body(msgspec.Struct, frozen=True, rename="camel"):
    """The body of a request. Fields of later versions of the clients do not matter."""

    trainer_status: TrainerStatus


_bodies = msgspec.json.Decoder(Body)


@dataclass(frozen=True, slots=True)
class Told:
    """The newest facts that the program of a job has reported."""

    generation: int = 0
    step: int | None = None
    """The newest step. It was made in the world `generation`, at the moment `stepped_at`."""
    stepped_at: float = 0.0
    values: dict[str, float] = field(default_factory=dict)
    percent: int | None = None
    remaining_s: float | None = None
    first: tuple[int, float] | None = None
    """The first step of this world that was reported, and when."""

    def age_s(self, now: float) -> float:
        """Return the seconds since the step was made; 0 without a step."""
        return max(0.0, round(now - self.stepped_at, 3)) if self.step is not None else 0.0

    @property
    def is_complete(self) -> bool:
        return self.percent == COMPLETE


def told_now(known: Told, status: TrainerStatus, *, generation: int, now: float) -> Told:
    """Return the facts after this report. A report without a step leaves the step of this world as it is."""
    if known.generation != generation:
        known = replace(known, generation=generation, step=None, values={}, first=None)
    numbers = dict(_numbers(status.metrics))
    step = next((int(numbers[name]) for name in STEP_NAMES if 0 <= numbers.get(name, -1.0) <= MOST_STEP), None)
    values = dict([one for one in numbers.items() if one[0] not in STEP_NAMES][:MAX_VALUES])
    done = status.progress_percentage
    # Each start of transformers reports 0 % once, although it goes on at a checkpoint.
    is_start = step is None and done == 0 and known.percent is not None
    return replace(
        known,
        step=known.step if step is None else step,
        stepped_at=known.stepped_at if step is None else now,
        values=values or known.values,
        percent=known.percent if done is None or is_start else int(done),
        remaining_s=_remaining_s(known, status, step=step, total=numbers.get(TOTAL), now=now),
        first=(step, now) if step is not None and (known.first is None or step < known.first[0]) else known.first,
    )


def _remaining_s(known: Told, status: TrainerStatus, *, step: int | None, total: float | None, now: float) -> float | None:
    """Return the remaining time, measured since the first step of this world if the report says how many steps there are.

    After a restart, transformers divides the time since the restart by all steps from the beginning. That is far too short, so the former
    time stands until two steps were reported.
    """
    said = status.estimated_remaining_seconds
    if said is None:
        return known.remaining_s
    if step is not None and total is not None and total >= step:
        if known.first is not None and step > known.first[0]:
            begin, at = known.first
            return min((total - step) * (now - at) / (step - begin), MOST_SECONDS)
        if known.remaining_s is not None:
            return known.remaining_s
    return min(said, MOST_SECONDS)


def _numbers(metrics: tuple[Metric, ...]) -> Iterator[tuple[str, float]]:
    for metric in metrics:
        try:
            number = float(metric.value)
        except ValueError:
            continue
        if math.isfinite(number) and 0 < len(metric.name) <= LONGEST_NAME:
            yield metric.name, number


class Taking(Protocol):
    """The jobs of a server, as far as programs report to it."""

    def may_report(self, uid: str) -> bool:
        """Return whether the job may report again now."""

    def take_status(self, uid: str, status: TrainerStatus) -> None:
        """Keep the newest report of the program."""


class TrainerStatusRoute:
    """The route, for callers with the status token of the job."""

    def __init__(self, *, jobs: Taking, gate: Gate) -> None:
        self._jobs = jobs
        self._gate = gate

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Add the route."""
        router.add_post(PATH, self._report)

    async def _report(self, request: web.Request) -> web.Response:
        uid = request.match_info["uid"]
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not self._gate.is_program(token.strip(), uid):
            return _error(401, "this is not the status token of this job; send the content of the file in KUBEFLOW_TRAINER_SERVER_TOKEN")
        if not self._jobs.may_report(uid):
            return _error(429, f"this job sends more than {A_SECOND:.0f} reports a second; send one a second")
        if (request.content_length or LONGEST_BODY + 1) > LONGEST_BODY:
            return _error(413, f"a report has a Content-Length of at most {LONGEST_BODY} bytes; send fewer metrics")
        try:
            async with asyncio.timeout(BODY_S):
                status = _bodies.decode(await request.read()).trainer_status
        except TimeoutError:
            return _error(408, f"the report did not arrive within {BODY_S:.0f} s; send it again")
        except (msgspec.MsgspecError, RecursionError) as error:
            return _error(400, f"report: {error}")
        self._jobs.take_status(uid, status)
        return web.json_response({})


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)
