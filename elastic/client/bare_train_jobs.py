"""Show TrainJobs without a job of ours: refused ones, those that no controller has taken yet, and those that Kubeflow Trainer runs.

Commands read jobs, so such a TrainJob gets the outline of a job. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from elastic.api.kinds import TORCH_NODES, WORKER
from elastic.api.owners import owners_of
from elastic.api.trainer.train_job import NOT_SUPPORTED
from elastic.kube.resources import Object

REFUSED = "Refused"
"""State of a TrainJob that our controller cannot carry out as it is."""
UNSERVED = "a controller; `elastic doctor` says which one serves TrainJobs"


def without_job(train_jobs: Iterable[Object], jobs: Iterable[Object]) -> Iterator[Object]:
    """Yield the TrainJobs to which none of these jobs belongs."""
    owners = {owner.uid for job in jobs for owner in owners_of(job["metadata"])}
    yield from (one for one in train_jobs if one["metadata"].get("uid") not in owners)


def outline(train_job: Object) -> Object:
    """Return a TrainJob in the form of a job that has no pods."""
    spec = _dict(train_job.get("spec"))
    state, words = state_of(train_job)
    waits_for = words if state == REFUSED else UNSERVED if state == "Pending" else ""
    return {
        "metadata": train_job["metadata"],
        "spec": {
            "runPolicy": {"suspend": spec.get("suspend") is True},
            TORCH_NODES.replica_key: {WORKER: {"replicas": _dict(spec.get("trainer")).get("numNodes", 1)}},
        },
        "status": {
            "conditions": [{"type": state, "status": "True", "message": words}],
            "elastic": {"waitsFor": waits_for},
        },
    }


def state_of(train_job: Object) -> tuple[str, str]:
    """Return the state of a TrainJob in the words of a job, and the message of its condition."""
    status = _dict(train_job.get("status"))
    found = {str(one.get("type")): one for one in status.get("conditions") or () if isinstance(one, dict) and one.get("status") == "True"}
    for type, state in (("Complete", "Succeeded"), ("Failed", "Failed"), ("Suspended", "Suspended")):
        if (condition := found.get(type)) is not None:
            is_refused = type == "Failed" and condition.get("reason") == NOT_SUPPORTED
            return REFUSED if is_refused else state, str(condition.get("message", ""))
    runs = any(_dict(one).get("active") for one in status.get("jobsStatus") or ())
    return "Running" if runs else "Pending", ""


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
