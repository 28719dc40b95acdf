"""Say what definitions and workloads still wait for; the text is empty if they are ready. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from elastic.client.summary import pod_state, unscheduled
from elastic.kube.resources import Object

LONGEST_REASON = 300
PULL_FAILED = "ErrImagePull: "
"""The kubelet puts this before the reason why it could not pull the image, while it backs off."""


class Refused(Exception):
    """An object will never become ready."""


def of_definitions(definitions: Sequence[Object]) -> str:
    """Return how many definitions the API server has established; empty once it serves all of them."""
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
    """Return the workloads that are not ready, and why. A reason that several workloads share is given once.

    `found` has each workload with the pods that it selects.
    """
    waiting, said = [], set()
    for workload, pods in found:
        title = unready(workload)
        where, why = _reason(workload, pods) if title else ("", "")
        waiting += [f"{title} ({where}{why})" if why and why not in said else title] if title else []
        said.add(why)
    return "; ".join(waiting)


def unready(workload: Object) -> str:
    """Return how many pods are ready; empty once all pods are ready and made from the newest template."""
    status, wanted = workload.get("status") or {}, int((workload.get("spec") or {}).get("replicas", 1))
    is_seen = int(status.get("observedGeneration", 0)) >= int(workload["metadata"].get("generation", 0))
    ready = int(status.get("availableReplicas") or status.get("readyReplicas") or 0) if is_seen else 0
    new = int(status.get("updatedReplicas") or 0) if is_seen else 0
    if is_seen and min(ready, new) >= wanted >= int(status.get("replicas") or 0):
        return ""
    return f"{workload['kind'].lower()} {workload['metadata']['name']}: {min(ready, new)} of {wanted} ready"


def _reason(workload: Object, pods: Sequence[Object]) -> tuple[str, str]:
    """Return the newest pod that is not ready, and why it is not. Without a pod, return why no pod could be created.

    An older pod does not count, because it may be from the former template.
    """
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
    """Return why a container is not ready. The end of its last run tells more than the wait until it is started again."""
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
    """Cut out the middle of a long text, because a chain of errors ends with the cause."""
    half = LONGEST_REASON // 2
    return words if len(words) <= LONGEST_REASON else f"{words[:half]} ... {words[-half:]}"
