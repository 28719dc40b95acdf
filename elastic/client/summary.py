"""Read the facts worth a look in a job and its pods, as the API server sends them. Pure; an object written by hand may lack anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from elastic.api.book import Disruption
from elastic.api.kinds import WORKER, Kind
from elastic.api.names import REPLICA_INDEX, REPLICA_TYPE
from elastic.api.words import CHARGED, FAILED_FIRST, FAULT, IN_WORLD, UNFOLLOWED, Cause, RdzvBackend
from elastic.kube.resources import Object
from elastic.membership.hang_status import hang_of, words_at
from elastic_training.rendezvous.engine.messages.doing import HangState

PLAN = "plan"
MOST = 2**53
MOST_DISRUPTIONS = 16
MOST_WORDS = 400
"""Characters of a message that a table shows."""
ENDS = ("Succeeded", "Failed")
MEETING = tuple(backend.value for backend in (RdzvBackend.ELASTIC, RdzvBackend.ETCD))
"""Backends whose worlds the control plane knows."""


@dataclass(frozen=True, slots=True)
class Summary:
    """One job in a few words."""

    kind: Kind
    namespace: str
    name: str
    state: str
    message: str
    """Message of the condition that is the state."""
    running: int
    wanted: int
    least: int | None
    most: int | None
    world: int | None
    restarts: Mapping[str, int]
    """Ends of workers by cause, without requested ones."""
    restart_count: int
    """Restarts of the job that nobody asked for; one may be due to the ends of several workers."""
    rescale: Mapping[str, Any]
    created: str
    waits_for: str
    """Why fewer workers run than are wanted."""
    autoscaler: Mapping[str, Any]
    """The autoscaler's last decision, if the job has a scalingPolicy."""
    disruptions: Sequence[Disruption]
    """Disruptions that the cluster announced, the newest last, without unreadable ones."""
    step: int | None
    """The highest that training had reported at the last restart, or at the end of the job."""
    hang: Mapping[str, Any]
    """Why no step comes; empty if steps come, or nobody knows."""
    stragglers: Sequence[Mapping[str, Any]] = ()
    """Ranks that the others wait for, the slowest first."""
    ended_early: str = ""
    """The first workers that ended with status 0 while others failed."""
    failed_saves: Sequence[Mapping[str, Any]] = ()
    """Ranks whose newest save failed."""

    def awaits(self, now: datetime | None = None) -> str:
        """Return what keeps steps and workers away, or else the slowest ranks, and that saves fail; empty if nothing is known to.

        Without now, no words have times.
        """
        away = "; ".join(filter(None, (self.next_step(now), self.waits_for)))
        return "; ".join(filter(None, (away or self.slow_ranks, self.unsaved)))

    @property
    def unsaved(self) -> str:
        """Return that saves fail, and why, in the words of the first rank; empty while they succeed."""
        words = "" if self.is_over else str(next((one.get("message") for one in self.failed_saves), None) or "")
        return f"a save that succeeds: {words[:MOST_WORDS].rstrip('.')}" if words else ""

    @property
    def slow_ranks(self) -> str:
        """Return the ranks that the others wait for, in a few words; empty without any."""
        if self.is_over:
            return ""
        named = [f"rank {one.get('rank')} ({one.get('pod')}), which is slow: {one.get('kind')}" for one in self.stragglers]
        return "; ".join(named)

    def next_step(self, now: datetime | None = None) -> str:
        """Return that the job waits for its ranks, and why; empty if steps come, or nobody knows. Without now, the words have no times."""
        hang = None if self.is_over else hang_of(self.hang)
        words = words_at(hang, now) if hang is not None else ""
        if hang is None or not words:
            return ""
        awaited = "its next step" if hang.reports_steps else "its ranks to get on"
        return f"{awaited}{', and may hang' if hang.state == HangState.SUSPECTED else ''}: {words}"

    @property
    def is_over(self) -> bool:
        return self.state in ENDS

    @property
    def fault(self) -> str:
        """Return the bug because of which the rendezvous server does not decide about the job; empty without a bug."""
        return self.message.partition(FAULT)[2].partition(". ")[0]

    @property
    def unfollowed(self) -> str:
        """Why the members of the job's world are not known, in the controller's words; empty if they are."""
        return "".join(self.message.partition(UNFOLLOWED)[1:])

    @property
    def failed_first(self) -> str:
        """The pod that the message of a failed job names, or an empty text."""
        return self.message.partition(FAILED_FIRST)[2].partition(" ")[0] if self.state == "Failed" else ""

    @property
    def is_elastic(self) -> bool:
        return self.least is not None


def summary(kind: Kind, job: Object) -> Summary:
    spec, status = _dict(job.get("spec")), _dict(job.get("status"))
    elastic, policy = _dict(status.get("elastic")), spec.get("elasticPolicy")
    types = {str(type): _dict(replica) for type, replica in _dict(spec.get(kind.replica_key)).items()}
    counted = {type: _dict(replica) for type, replica in _dict(status.get("replicaStatuses")).items()}
    names = [type for type in types if type.lower() == WORKER.lower()] or list(types)
    wanted = sum(_count(types[type].get("replicas"), kind.default_replicas.get(type, 1)) for type in names)
    bounds = _bounds(_dict(policy), wanted) if isinstance(policy, dict) else (None, None)
    state, message = _state(_list(status.get("conditions")))
    has_ended = state in ENDS and isinstance(policy, dict)  # the status keeps the counts of the moment in which an elastic job failed
    restarts = {cause: _count(number, 0) for cause, number in _dict(elastic.get("restarts")).items() if cause != PLAN}
    return Summary(
        kind=kind,
        namespace=str(job["metadata"].get("namespace", "")),
        name=str(job["metadata"].get("name", "")),
        state=state,
        message=message,
        running=0 if has_ended else sum(_count(counted.get(type, {}).get("active"), 0) for type in names),
        wanted=wanted,
        least=bounds[0],
        most=bounds[1],
        world=None if has_ended or UNFOLLOWED in message else _world(elastic),
        restarts=restarts,
        restart_count=_count(elastic.get("restartCount"), sum(number for cause, number in restarts.items() if cause != Cause.COLLATERAL)),
        rescale=_dict(elastic.get("lastRescale")),
        created=str(job["metadata"].get("creationTimestamp", "")),
        waits_for=str(elastic.get("waitsFor") or ""),
        autoscaler=_dict(elastic.get("autoscaler")),
        disruptions=tuple(_disruptions(elastic.get("disruptions"))),
        step=_count(elastic["step"], 0) if "step" in elastic else None,
        hang=_dict(elastic.get("hang")),
        stragglers=[_dict(one) for one in _list(elastic.get("stragglers"))],
        ended_early=str(elastic.get("endedEarly") or ""),
        failed_saves=[_dict(one) for one in _list(elastic.get("failedSaves"))],
    )


def _disruptions(raw: object) -> Iterator[Disruption]:
    for found in _list(raw)[-MOST_DISRUPTIONS:]:
        try:
            yield msgspec.convert(found, Disruption, strict=False)
        except msgspec.ValidationError:
            continue


def budget_used(restarts: Mapping[str, int], policy: object) -> tuple[int, int] | None:
    """Return how much of maxRestarts is used up, and maxRestarts itself.

    A cause with its own limit does not count. Return None if there is a window, because then only recent restarts count.
    """
    own = (policy.get("restartBudget") or {}) if isinstance(policy, dict) else {}
    limit = policy.get("maxRestarts") if isinstance(policy, dict) else None
    if not isinstance(limit, int) or not isinstance(own, dict) or own.get("windowSeconds") is not None:
        return None
    charged, most = sum(number for cause, number in restarts.items() if cause in CHARGED and own.get(cause) is None), _count(limit, 0)
    return min(charged, most), most  # the end of a job that failed is one more, and no restart


def _world(elastic: Mapping[str, Any]) -> int | None:
    """Return the size of the world, or None if workers meet elsewhere. Before its first world, a job has no size in its status."""
    if "worldSize" not in elastic:
        return 0 if elastic.get("backend") in MEETING else None
    return _count(elastic["worldSize"], 0)


def ranks(job: Object) -> dict[int, int]:
    """Return the workers' indexes by rank, if they meet at our rendezvous."""
    text = str(_dict(_dict(job.get("status")).get("elastic")).get("ranks") or "")
    return {rank: int(index) for rank, index in enumerate(text.split(",")) if is_number(index)}


def rank_of(pod: Object, job: Object) -> int | None:
    """Return the pod's rank in the world, or the rank that its variables fix; None if the API does not know it."""
    labels = _dict(pod["metadata"].get("labels"))
    index = str(labels.get(REPLICA_INDEX, ""))
    if labels.get(REPLICA_TYPE) == WORKER.lower() and is_number(index):
        for rank, of in ranks(job).items():
            if of == int(index):
                return rank
    for container in _list(_dict(pod.get("spec")).get("containers")):
        for entry in _list(container.get("env")):
            if entry.get("name") == "RANK" and is_number(str(entry.get("value", ""))):
                return int(entry["value"])
    return None


def is_number(text: str) -> bool:
    """Return whether this is the number of an index or rank. `int` would also take other digits, and very many of them."""
    return text.isascii() and text.isdigit() and len(text) < 9


def in_world_reason(pod: Object) -> str:
    """Return why a worker counts as Ready; empty if it does not, or has no such condition."""
    conditions = _list(_dict(pod.get("status")).get("conditions"))
    found = (one for one in conditions if one.get("type") == IN_WORLD and one.get("status") == "True")
    return str(next((one.get("reason") for one in found), "") or "")


def pod_state(pod: Object) -> str:
    """Return the pod's state as kubectl shows it: the reason of a container that waits or has ended, or else the phase."""
    status = _dict(pod.get("status"))
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    for prefix, key in (("Init:", "initContainerStatuses"), ("", "containerStatuses")):
        for container in _list(status.get(key)):
            state = _dict(container.get("state"))
            reason = _dict(state.get("waiting")).get("reason") or _dict(state.get("terminated")).get("reason")
            if reason and not (prefix and reason == "Completed"):
                return f"{prefix}{reason}"
    return str(status.get("reason") or status.get("phase") or "Unknown")


def pod_restarts(pod: Object) -> int:
    return sum(_count(container.get("restartCount"), 0) for container in _list(_dict(pod.get("status")).get("containerStatuses")))


def unscheduled(pod: Object) -> str:
    """Return why no node takes the pod, in the scheduler's words."""
    for condition in _list(_dict(pod.get("status")).get("conditions")):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "no node takes it")
    return ""


def conditions_of(job: Object) -> list[dict[str, Any]]:
    return _list(_dict(job.get("status")).get("conditions"))


def _state(conditions: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the state as in the printer column, except for a job that waits for workers."""
    if not conditions:
        return "Pending", ""
    last = conditions[-1]
    waiting = next((c for c in conditions if c.get("type") == "Running" and str(c.get("reason", "")).endswith("Waiting")), None)
    if waiting is not None and waiting.get("status") == "False" and last.get("type") in ("Created", "Restarting", "Running"):
        return "Waiting", str(waiting.get("message", ""))
    return str(last.get("type", "")), str(last.get("message", ""))


def _bounds(policy: Mapping[str, Any], wanted: int) -> tuple[int, int]:
    most = policy.get("maxReplicas")
    least = _count(policy.get("minReplicas"), _count(most, wanted))
    return least, _count(most, max(least, wanted))


def _count(value: object, default: int) -> int:
    """Return a number that JSON's other readers hold, too."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < MOST else default


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
