"""The row of a pod as kubectl get shows it."""

from __future__ import annotations

from typing import Any

from elastic.local.apiserver.errors import Json
from elastic.local.apiserver.tables import age


def pod_cells(pod: Json) -> list[Any]:
    spec, status, meta = pod.get("spec") or {}, pod.get("status") or {}, pod["metadata"]
    statuses = status.get("containerStatuses") or []
    total = len(spec.get("containers") or ())
    ready = sum(bool(s.get("ready")) for s in statuses)
    restarts = sum(s.get("restartCount", 0) for s in statuses)
    gates = spec.get("readinessGates") or []
    met = {c["type"] for c in status.get("conditions") or () if c.get("status") == "True"}
    return [
        meta["name"],
        f"{ready}/{total}",
        _word(pod),
        str(restarts),
        age(meta.get("creationTimestamp")),
        status.get("podIP") or "<none>",
        spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>",
        f"{sum(g['conditionType'] in met for g in gates)}/{len(gates)}" if gates else "<none>",
    ]


def _word(pod: Json) -> str:
    status, meta = pod.get("status") or {}, pod["metadata"]
    word = status.get("reason") or status.get("phase") or "Unknown"
    for c in status.get("conditions") or ():
        if c.get("type") == "PodScheduled" and c.get("reason") == "SchedulingGated":
            word = "SchedulingGated"
    initializing = False
    inits = status.get("initContainerStatuses") or []
    for i, s in enumerate(inits):
        state = s.get("state") or {}
        done = state.get("terminated")
        if done and not done.get("exitCode"):
            continue
        if s.get("started") and _restartable(pod, s["name"]):
            continue
        initializing = True
        if done:
            word = f"Init:{done.get('reason') or _exit_word(done)}"
        elif (state.get("waiting") or {}).get("reason") not in (None, "", "PodInitializing"):
            word = f"Init:{state['waiting']['reason']}"
        else:
            word = f"Init:{i}/{len(inits)}"
        break
    if not initializing:
        word = _container_word(status, word)
    if meta.get("deletionTimestamp"):
        word = "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return word


def _restartable(pod: Json, name: str) -> bool:
    containers = (pod.get("spec") or {}).get("initContainers") or []
    return any(c.get("name") == name and c.get("restartPolicy") == "Always" for c in containers)


def _exit_word(done: Json) -> str:
    return f"Signal:{done['signal']}" if done.get("signal") else f"ExitCode:{done.get('exitCode', 0)}"


def _container_word(status: Json, word: str) -> str:
    running = False
    for s in reversed(status.get("containerStatuses") or []):
        state = s.get("state") or {}
        waiting, done = state.get("waiting") or {}, state.get("terminated")
        if waiting.get("reason"):
            word = waiting["reason"]
        elif done:
            word = done.get("reason") or _exit_word(done)
        elif s.get("ready") and state.get("running") is not None:
            running = True
    if word == "Completed" and running:
        ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or ())
        return "Running" if ready else "NotReady"
    return word
