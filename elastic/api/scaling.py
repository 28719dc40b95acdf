"""Define the user's policy of autoscaling, and the record that the autoscaler keeps of a job.

The record is in the job's annotation, from which the controller copies a few figures into the status.
"""

from __future__ import annotations

import enum
from typing import Annotated, ClassVar, TypeAlias

import msgspec
from msgspec import Meta, Struct

from elastic.api.book import MOST_MEMBERS, Time
from elastic.api.words import Through

ANNOTATION = "elastic-training/autoscaler"
MANAGER = "elastic-autoscaler"
"""Field manager of the autoscaler's writes: who else set the number of workers did so by hand."""
DESIRED = "desired_workers"
"""The external metric by which a HorizontalPodAutoscaler learns the decision."""
LONGEST_RECORD = 1024
MOST_SECONDS = 2**31 - 1
LATEST = 2**40
"""Latest time in seconds since 1970."""
MOST_CHANGES, MOST_DOUBLINGS = 64, 16
"""Counts of changes since a size was measured, and of doublings of a pause, end there."""
LEAST_RATE, MOST_RATE, MOST_SPREAD = 1e-9, 1e15, 1e3
"""Bounds of measurements. Ratios and squares of values beyond them would overflow."""

Percent: TypeAlias = Annotated[int, Meta(ge=1, le=100, extra_json_schema={"format": "int32"})]
Seconds: TypeAlias = Annotated[int, Meta(ge=0, le=MOST_SECONDS, extra_json_schema={"format": "int32"})]
Workers: TypeAlias = Annotated[int, Meta(ge=1, le=10_000, extra_json_schema={"format": "int32"})]
Amount: TypeAlias = Annotated[int, Meta(ge=1, le=2**53, extra_json_schema={"format": "int64"})]
MetricName: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=256,
        pattern=r"\A[a-zA-Z_:][a-zA-Z0-9_:]*\Z",
        extra={"form": "write a metric's name without labels, such as train_step_total, of at most 256 characters"},
    ),
]
TimeOfDay: TypeAlias = Annotated[
    str,
    Meta(
        max_length=5,
        pattern=r"\A([01][0-9]|2[0-3]):[0-5][0-9]\Z",
        extra={"form": 'write a time from 00:00 to 23:59 as HH:MM in quotes, such as "08:30"'},
    ),
]
PagePath: TypeAlias = Annotated[
    str,
    Meta(
        max_length=256,
        pattern=r"\A/[!-~]*\Z",
        extra={"form": "write what follows the port in the page's address, such as /metrics, of at most 256 characters without spaces"},
    ),
]
Label: TypeAlias = Annotated[str, Meta(min_length=1, max_length=317)]


class PolicyName(enum.Enum):
    """The rule by which the autoscaler chooses the number of workers."""

    THROUGHPUT = "throughput"
    CAPACITY = "capacity"
    DEADLINE = "deadline"
    COST = "cost"
    SCHEDULE = "schedule"
    HPA = "hpa"


class Day(enum.Enum):
    """A day of the week, in UTC."""

    MONDAY = "Mon"
    TUESDAY = "Tue"
    WEDNESDAY = "Wed"
    THURSDAY = "Thu"
    FRIDAY = "Fri"
    SATURDAY = "Sat"
    SUNDAY = "Sun"


class _Closed(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """An unknown field is a mistake, not a warning: a policy that is half understood would scale wrongly."""

    IS_CLOSED: ClassVar[bool] = True


class Window(_Closed, frozen=True, kw_only=True):
    """A time window in which the job has a certain number of workers."""

    days: Annotated[tuple[Day, ...], Meta(max_length=7)] = ()
    """Days on which the window begins: Mon, Tue, Wed, Thu, Fri, Sat, Sun. Default: every day."""
    start: TimeOfDay
    """When it begins, as HH:MM in UTC."""
    end: TimeOfDay
    """When it ends, as HH:MM in UTC; on the next day if that is not after the start."""
    replicas: Workers
    """How many workers the job has meanwhile."""


class ScalingPolicy(_Closed, frozen=True, kw_only=True):
    """Lets the autoscaler choose the number of workers."""

    policy: PolicyName = PolicyName.THROUGHPUT
    """throughput: grow while a further worker brings at least minGainPercent. capacity: take the room that is free, and give it back to
    pods of higher priority. deadline: reach totalSamples or totalSteps by finishBy with the fewest workers. cost: the most work for the
    money, by priceLabel. schedule: by windows. hpa: only elasticPolicy.metrics decide. Default: throughput."""
    through: Through | None = None
    """hpa: the autoscaler publishes its wish as a metric and a HorizontalPodAutoscaler acts on it. Default: the autoscaler scales
    by itself."""
    min_gain_percent: Percent = 50
    """With policy throughput: the least that a further worker must add, in percent of what a worker brings at minReplicas. Default: 50."""
    cooldown_seconds: Seconds = 60
    """The least time between two changes; the autoscaler waits longer where a change costs much of it. Default: 60."""
    hold_seconds: Seconds = 3600
    """How long the number of workers stays after someone else has set it, by kubectl scale for instance. Default: 3600."""
    finish_by: Time | None = None
    """Time at which the work should be done, for the policy deadline."""
    total_steps: Amount | None = None
    """With policy deadline: steps of the whole job, where every step trains the same number of samples with any number of workers."""
    total_samples: Amount | None = None
    """With policy deadline: samples of the whole job, as its reports count them (`samples`)."""
    price_label: Label | None = None
    """With policy cost: the label of nodes that holds the price of an hour, as a decimal number."""
    windows: Annotated[tuple[Window, ...], Meta(max_length=64)] = ()
    """Windows of the policy schedule. The first window that holds decides; outside all windows the job has minReplicas."""


class PrometheusProgress(_Closed, frozen=True, kw_only=True):
    """A page of the first worker with metrics in the Prometheus text format, over HTTP."""

    port: Annotated[int, Meta(ge=1, le=65535, extra_json_schema={"format": "int32"})]
    """Port of the pod."""
    path: PagePath = "/metrics"
    """Path of the page. Default: /metrics."""
    step: MetricName
    """Name of the metric that counts steps."""
    samples: MetricName | None = None
    """Name of the metric that counts samples of the whole job. Default: none."""


class ProgressSource(_Closed, frozen=True, kw_only=True):
    """The source of progress of a script that reports none: the log of rank 0, or a page of its pod."""

    log_pattern: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """Text of a line that rank 0 logs, with {step} where the number of the step is, {samples} for the samples so far if they are logged,
    and * for any text, such as `step {step} * loss`."""
    prometheus: PrometheusProgress | None = None


class Decision(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The autoscaler's last decision, in the job's status."""

    workers: Annotated[int, Meta(ge=0, le=10_000, extra_json_schema={"format": "int32"})] = 0
    """How many workers it wants."""
    reason: Annotated[str, Meta(max_length=256)] = ""
    """Why."""
    at: Time | None = None
    """Time of the decision."""
    throughput: Annotated[str, Meta(max_length=32)] = ""
    """Work a second at that time: samples, or steps times workers where no samples are reported."""
    efficiency_percent: Annotated[int, Meta(ge=0, le=1000, extra_json_schema={"format": "int32"})] | None = None
    """Throughput of a worker in percent of that of a worker at minReplicas."""
    marginal_efficiency_percent: Annotated[int, Meta(ge=-1000, le=1000, extra_json_schema={"format": "int32"})] | None = None
    """Addition of the last worker, in percent of the same."""
    goodput_percent: Annotated[int, Meta(ge=0, le=100, extra_json_schema={"format": "int32"})] | None = None
    """Part of its time, as far as it was watched, in which training came forward."""
    target_at: Time | None = None
    """When the work that the policy names would be done at that throughput, to the minute."""


class SizeRecord(Struct, frozen=True, array_like=True):
    """The throughput that was measured with one number of workers: its mean, the relative spread, how often it was measured.

    Later added: when last, in seconds since 1970 (0: not known), and how often the number of workers changed since.
    """

    size: Annotated[int, Meta(ge=1, le=MOST_MEMBERS)]
    rate: Annotated[float, Meta(ge=LEAST_RATE, le=MOST_RATE)]
    spread: Annotated[float, Meta(ge=0, le=MOST_SPREAD)]
    count: Annotated[int, Meta(ge=0, le=64)]
    at: Annotated[int, Meta(ge=0, le=LATEST)] = 0
    changes: Annotated[int, Meta(ge=0, le=MOST_CHANGES)] = 0


class TrialRecord(Struct, frozen=True, array_like=True):
    """A larger number of workers that is tried: from which other one, and since when.

    Later added: it has failed, and the job is to go back.
    """

    origin: Annotated[int, Meta(ge=1, le=10_000)]
    target: Annotated[int, Meta(ge=1, le=10_000)]
    at: Annotated[int, Meta(ge=0, le=LATEST)]
    has_failed: bool = False


class DecisionRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Content of the annotation: the decision, and the facts that a restarted autoscaler needs."""

    decision: Decision
    sizes: Annotated[tuple[SizeRecord, ...], Meta(max_length=8)] = ()
    changed_at: float = 0.0
    """When the number of workers was changed last, in seconds since 1970."""
    grew: bool = False
    reversals: Annotated[int, Meta(ge=0, le=64)] = 0
    was_ours: bool = False
    """The autoscaler has set the number of workers before: from then on, a number that it has not set is someone else's."""
    hand: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    """The number that someone else has set, as long as it is held."""
    hand_until: float = 0.0
    trial: TrialRecord | None = None
    tried_at: float = 0.0
    """End of the last trial."""
    trial_doublings: Annotated[int, Meta(ge=0, le=MOST_DOUBLINGS)] = 0
    rescale_s: Annotated[float, Meta(ge=0, le=MOST_SECONDS)] | None = None
    """Measured cost of a change of the number of workers, in seconds."""


_encode = msgspec.json.encode
_records = msgspec.json.Decoder(DecisionRecord)


def as_text(record: DecisionRecord) -> str:
    """Return the annotation's value. If it does not fit, leave out measured sizes, the smallest counts first."""
    while len(text := _encode(record)) > LONGEST_RECORD and record.sizes:
        least = min(record.sizes, key=lambda known: known.count)
        record = msgspec.structs.replace(record, sizes=tuple(known for known in record.sizes if known is not least))
    if len(text) > LONGEST_RECORD:
        short = msgspec.structs.replace(record.decision, reason=record.decision.reason[:60])
        text = _encode(msgspec.structs.replace(record, decision=short))
    return text.decode()


def from_text(text: str | None) -> DecisionRecord | None:
    """Read the annotation. Return None if it is missing or was written by another program."""
    if not text or len(text) > 4 * LONGEST_RECORD:
        return None
    try:
        return _records.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
