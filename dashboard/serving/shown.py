"""Define the JSON of the dashboard's API about a job, a node and their history. Pages show its texts as text."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from elastic_training.dashboard.history.series import Row
from elastic_training.dashboard.watching.seen import Notice

COLUMNS = Row._fields


class Shown(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A value that is sent."""


class JobRow(Shown, frozen=True):
    uid: str
    kind: str
    title: str
    """The kind that the user knows: TrainJob, if the job belongs to one."""
    namespace: str
    name: str
    state: str
    message: str
    waits_for: str
    """The words have no times, because a page stays open."""
    still_since: str
    """When the last step came, or since when the ranks stand still; empty if steps come."""
    is_over: bool
    is_suspended: bool
    running: int
    wanted: int
    least: int | None
    most: int | None
    world: int | None
    generation: int | None
    step: int | None
    stepped_at: str
    """The time of that step; empty if nobody knows it."""
    step_due_s: float | None
    """Seconds after which the next step is late, and the speed is no longer true."""
    rate: float | None
    unit: str
    loss: float | None
    percent: int | None
    remaining_s: float | None
    restarts: Mapping[str, int]
    """Ends of workers by cause."""
    restart_count: int
    created: str
    rescaled_at: str
    notices: int
    """Workers that were given notice."""
    gpus: int
    """GPUs that the job's pods reserve now."""


class RescaleShown(Shown, frozen=True):
    at: str
    cause: str
    reason: str
    from_size: int
    to_size: int
    phases: Mapping[str, int]
    steps: str
    began_unseen: bool
    rung: str


class ConditionShown(Shown, frozen=True):
    type: str
    status: str
    message: str
    since: str


class WorkerShown(Shown, frozen=True):
    pod: str
    type: str
    index: int
    rank: int | None
    node: str
    state: str
    restarts: int
    created: str
    leaving: str
    notices: tuple[Notice, ...]
    ended: str
    """How its container ended, if it failed."""
    cpus: float
    memory: int
    """Bytes."""
    gpus: int
    """CPUs, memory and GPUs that the worker reserves."""


class EventShown(Shown, frozen=True):
    at: str
    type: str
    reason: str
    about: str
    message: str
    count: int


class DisruptionShown(Shown, frozen=True):
    """A disruption that the cluster announced, and what it cost the job."""

    namespace: str
    job: str
    kind: str
    node: str
    signal: str
    workers: int
    noticed_at: str
    by: str
    outcome: str
    pause_ms: int
    steps_lost: int


class JobPage(Shown, frozen=True):
    job: JobRow
    conditions: tuple[ConditionShown, ...]
    rescales: tuple[RescaleShown, ...]
    lost_ms: Mapping[str, int]
    spent_s: Mapping[str, float]
    disruptions: tuple[DisruptionShown, ...]
    autoscaler: str
    restarts_charged: tuple[int, int] | None
    """How many count against maxRestarts, and how many it allows."""
    failed: str
    """The pod that a failed job's message names, else one that ended with an error; empty if no such pod exists."""
    workers: tuple[WorkerShown, ...]
    """At most 1,000."""
    worker_count: int
    events: tuple[EventShown, ...]
    hidden: tuple[str, ...]
    """Resources that the caller may not read in this namespace."""


class RoleShown(Shown, frozen=True):
    """The first container of one replica type, as the job defines it."""

    type: str
    replicas: int | None
    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    working_dir: str
    resources: Mapping[str, str]
    """Limits, or requests if there is no limit."""


class DefinitionPage(Shown, frozen=True):
    roles: tuple[RoleShown, ...]
    yaml: str
    is_cut: bool


class UsageShown(Shown, frozen=True):
    cpus: float
    memory: float
    """Bytes."""


class UsagePage(Shown, frozen=True):
    is_measured: bool
    pods: Mapping[str, UsageShown]


class Occupant(Shown, frozen=True):
    namespace: str
    job: str
    kind: str
    pod: str
    state: str


class NodeShown(Shown, frozen=True):
    name: str
    is_ready: bool
    is_cordoned: bool
    is_spot: bool
    group: str
    capacity: Mapping[str, str]
    created: str
    notices: tuple[Notice, ...]
    occupants: tuple[Occupant, ...]
    """Pods of jobs on this node that have not ended, and that the caller may read."""
    gpus_used: int
    """GPUs that these pods reserve."""


class NodesPage(Shown, frozen=True):
    nodes: tuple[NodeShown, ...]
    disruptions: tuple[DisruptionShown, ...]
    """Disruptions of the jobs that the caller may read, the newest first; their nodes may be gone."""


def encode(value: object) -> bytes:
    """NaN becomes null."""
    return msgspec.json.encode(value)
