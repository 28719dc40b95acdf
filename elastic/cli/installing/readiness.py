"""Says what definitions and workloads still wait for; empty where they are ready. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from elastic.client.summary import pod_state, unscheduled
from elastic.kube.resources import Object

LONGEST_REASON = 200


class Refused(Exception):
    """It will not become ready."""


def of_definitions(definitions: Sequence[Object]) -> str:
    """Until the API server serves the kinds."""
    waiting = []
    for one in definitions:
        conditions = {c.get("type"): c for c in (one.get("status") or {}).get("conditions") or ()}
        named = conditions.get("NamesAccepted") or {}
        if named.get("status") == "False":
            raise Refused(f"definition {one['metadata']['name']} is refused: {named.get('message') or named.get('reason')}")
        if (conditions.get("Established") or {}).get("status") != "True":
            waiting.append(one["metadata"]["name"])
    return f"definitions: {len(definitions) - len(waiting)} of {len(definitions)} are established" if waiting else ""


def of_workload(workload: Object, pods: Sequence[Object]) -> str:
    """Until all its pods are of its newest template and ready; pods: those that it selects."""
    status, wanted = workload.get("status") or {}, int((workload.get("spec") or {}).get("replicas", 1))
    is_seen = int(status.get("observedGeneration", 0)) >= int(workload["metadata"].get("generation", 0))
    ready = int(status.get("availableReplicas") or status.get("readyReplicas") or 0) if is_seen else 0
    new = int(status.get("updatedReplicas") or 0) if is_seen else 0
    if is_seen and min(ready, new) >= wanted >= int(status.get("replicas") or 0):
        return ""
    title = f"{workload['kind'].lower()} {workload['metadata']['name']}: {min(ready, new)} of {wanted} ready"
    return f"{title} ({reason})" if (reason := _reason(workload, pods)) else title


def _reason(workload: Object, pods: Sequence[Object]) -> str:
    """Of the first pod that is not ready; without a pod, why none could be made."""
    for pod in pods:
        if not _is_ready(pod):
            words = unscheduled(pod) or _container_words(pod)
            return f"pod {pod['metadata']['name']}: {pod_state(pod)}{': ' + words[:LONGEST_REASON] if words else ''}"
    for condition in (workload.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return str(condition.get("message") or "")[:LONGEST_REASON]
    return ""


def _is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _container_words(pod: Object) -> str:
    status = pod.get("status") or {}
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("message"):
            return str(waiting["message"])
    return ""
