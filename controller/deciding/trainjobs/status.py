"""Write a TrainJob's status from its job: upstream's conditions and reasons, and the state of its nodes.

Clients take a TrainJob without conditions for one that runs or will run soon. So a TrainJob has no conditions as long as nothing is wrong.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace

from elastic.api import status_of as status_of_job
from elastic.api.errors import Problem
from elastic.api.job import JobStatus, Object
from elastic.api.kinds import INITIALIZERS, WORKER
from elastic.api.names import WAITS_FOR
from elastic.api.trainer.train_job import NOT_SUPPORTED, ChildStatus, Condition, TrainJobStatus
from elastic.api.words import ConditionType
from elastic_training.controller.deciding.lifecycle.conditions import holds
from elastic_training.controller.deciding.lifecycle.termination import NO_MORE_TIME
from elastic_training.controller.deciding.trainjobs import nodes
from elastic_training.controller.deciding.trainjobs.bounds import annotations_of
from elastic_training.controller.deciding.trainjobs.mpi import LAUNCHER
from elastic_training.controller.deciding.trainjobs.nodes import NODE

SUSPENDED, COMPLETE, FAILED = "Suspended", "Complete", "Failed"
DEADLINE = "DeadlineExceeded"
ALL_COMPLETED, FAILED_JOBS = "AllJobsCompleted", "FailedJobs"
"""Reasons that a JobSet gives, and Kubeflow Trainer repeats."""
LONGEST_MESSAGE = 4000
NO_NODES = ChildStatus(name=NODE, active=0, failed=0, ready=0, succeeded=0, suspended=0)
"""State of the nodes before their Job exists."""


def status_of(
    known: TrainJobStatus,
    owned: Object | None,
    initializers: Mapping[str, Object],
    *,
    is_suspended: bool,
    problems: Sequence[Problem],
    now: datetime,
) -> TrainJobStatus:
    """Return the status that follows from the former one, and the jobs that exist. `problems` are what prevents the jobs."""
    conditions = {condition.type: condition for condition in known.conditions}
    if (failed := conditions.get(FAILED)) is not None and failed.reason == NOT_SUPPORTED:
        del conditions[FAILED]

    def put(type: str, status: str, reason: str, message: str) -> None:
        old = next((c for c in known.conditions if c.type == type), None)
        since = old.last_transition_time if old is not None and old.status == status else _stamp(now)
        conditions[type] = Condition(type=type, status=status, reason=reason, message=message[:LONGEST_MESSAGE], last_transition_time=since)

    if is_suspended:
        put(SUSPENDED, "True", "Suspended", "TrainJob is suspended")
    elif (suspended := conditions.get(SUSPENDED)) is not None and suspended.status == "True":
        put(SUSPENDED, "False", "Resumed", "TrainJob is resumed")
    if problems:
        put(FAILED, "True", NOT_SUPPORTED, "; ".join(map(str, problems)))
    status = status_of_job(owned) if owned is not None else JobStatus()
    if holds(status, ConditionType.SUCCEEDED):
        put(COMPLETE, "True", ALL_COMPLETED, "jobset completed successfully")
    elif (end := status.condition(ConditionType.FAILED.value)) is not None and end.status == "True":
        if status.elastic is not None and status.elastic.closed == NO_MORE_TIME:
            put(FAILED, "True", DEADLINE, "TrainJob exceeded its active deadline")
        else:
            put(FAILED, "True", FAILED_JOBS, end.message or "failed jobs")
    children = known.jobs_status if owned is None else _children(known, owned, initializers)
    return replace(known, conditions=tuple(conditions.values()), jobs_status=children)


def is_finished(status: TrainJobStatus) -> bool:
    """Return whether the TrainJob has ended for good. A TrainJob that was refused may still start."""
    return any(c.status == "True" and (c.type == COMPLETE or (c.type == FAILED and c.reason != NOT_SUPPORTED)) for c in status.conditions)


def _children(known: TrainJobStatus, owned: Object, initializers: Mapping[str, Object]) -> tuple[ChildStatus, ...]:
    """Return the states of the initializers and the nodes. A completed initializer whose job is gone keeps its state."""
    before = {child.name: child if child.succeeded else replace(NO_NODES, name=child.name) for child in known.jobs_status}
    states = [_state(step, initializers[step]) if step in initializers else before.get(step) for step in INITIALIZERS]
    waits = bool(annotations_of(owned).get(WAITS_FOR))
    of_nodes = [NO_NODES if waits else _state(NODE, owned)]
    if LAUNCHER in nodes.replicas(owned):
        of_nodes.insert(0, replace(NO_NODES, name=nodes.LAUNCHER) if waits else _state(nodes.LAUNCHER, owned, type=LAUNCHER))
    return (*(state for state in states if state is not None), *of_nodes)


def _state(name: str, owned: Object, *, type: str = WORKER) -> ChildStatus:
    """Return the state of the replicas of this type as that of one Job: ready if all of its pods run."""
    status = status_of_job(owned)
    is_suspended = bool(((owned.get("spec") or {}).get("runPolicy") or {}).get("suspend"))
    has_succeeded, has_failed = holds(status, ConditionType.SUCCEEDED), holds(status, ConditionType.FAILED)
    is_active = not (is_suspended or has_succeeded or has_failed)
    wanted = (nodes.replicas(owned).get(type) or {}).get("replicas", 1)
    workers = status.replica_statuses.get(type)
    running = workers.active + workers.succeeded if workers is not None else 0
    return ChildStatus(
        name=name,
        ready=int(is_active and running >= wanted),
        succeeded=int(has_succeeded),
        failed=int(has_failed),
        active=int(is_active),
        suspended=int(is_suspended and not has_succeeded and not has_failed),
    )


def _stamp(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")
