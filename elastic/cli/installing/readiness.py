"""Says what definitions and workloads still wait for; empty where they are ready. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from elastic.client.summary import pod_state, unscheduled
from elastic.kube.resources import Object

LONGEST_REASON = 300
PULL_FAILED = "ErrImagePull: "
"""The kubelet quotes so in its back-off why it could not pull the image."""


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


def of_workloads(found: Sequence[tuple[Object, Sequence[Object]]]) -> str:
    """Until each is ready, with the pods that it selects. What holds up several is said once."""
    waiting, said = [], set()
    for workload, pods in found:
        title = unready(workload)
        where, why = _reason(workload, pods) if title else ("", "")
        waiting += [f"{title} ({where}{why})" if why and why not in said else title] if title else []
        said.add(why)
    return "; ".join(waiting)


def unready(workload: Object) -> str:
    """Until all its pods are of its newest template and ready."""
    status, wanted = workload.get("status") or {}, int((workload.get("spec") or {}).get("replicas", 1))
    is_seen = int(status.get("observedGeneration", 0)) >= int(workload["metadata"].get("generation", 0))
    ready = int(status.get("availableReplicas") or status.get("readyReplicas") or 0) if is_seen else 0
    new = int(status.get("updatedReplicas") or 0) if is_seen else 0
    if is_seen and min(ready, new) >= wanted >= int(status.get("replicas") or 0):
        return ""
    return f"{workload['kind'].lower()} {workload['metadata']['name']}: {min(ready, new)} of {wanted} ready"


def _reason(workload: Object, pods: Sequence[Object]) -> tuple[str, str]:
    """Of the newest pod that is not ready, for an older one may be of the template before; without a pod, why none could be made."""
    if waiting := [pod for pod in pods if not is_ready(pod)]:
        pod = max(waiting, key=lambda one: (not one["metadata"].get("deletionTimestamp"), one["metadata"].get("creationTimestamp") or ""))
        return f"pod {pod['metadata']['name']}: ", _pod_words(pod)
    for condition in (workload.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return "", _shortened(str(condition.get("message") or ""))
    return "", ""


def is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _pod_words(pod: Object) -> str:
    state = pod_state(pod)
    words = "" if pod["metadata"].get("deletionTimestamp") else unscheduled(pod) or _container_words(pod)
    _, is_pull, cause = words.rpartition(PULL_FAILED)
    state, words = (PULL_FAILED.removesuffix(": "), cause) if is_pull else (state, words)
    return f"{state}: {_shortened(words)}" if words else state


def _container_words(pod: Object) -> str:
    """A container that ended says more than the wait until it is started again."""
    status = pod.get("status") or {}
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        now = container.get("state") or {}
        ended = now.get("terminated") or ((container.get("lastState") or {}).get("terminated") if now.get("waiting") else None) or {}
        if ended.get("exitCode"):
            metadata = pod["metadata"]
            cause = ended.get("message") or f"see `kubectl logs -n {metadata.get('namespace')} {metadata['name']} --previous`"
            return f"exit code {ended['exitCode']}; {cause}"
        if message := (now.get("waiting") or {}).get("message"):
            return str(message)
    return ""


def _shortened(words: str) -> str:
    """Without its middle: a chain of errors ends with the cause."""
    half = LONGEST_REASON // 2
    return words if len(words) <= LONGEST_REASON else f"{words[:half]} ... {words[-half:]}"
