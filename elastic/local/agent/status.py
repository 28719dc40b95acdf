"""Describe a pod's state as the kubelet would: phase, conditions and container statuses, from the decision and observations. Pure."""

from datetime import UTC, datetime
from typing import Any

from elastic.local.agent.lifecycle import Decision, init_containers, is_sidecar, main_containers
from elastic.local.agent.runs import Health, Phase, Run, Seen

Object = dict[str, Any]


def timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def status(pod: Object, decision: Decision, seen: Seen, *, now: float) -> Object:
    """Return the whole part of the pod's status that its node writes. Conditions of other writers are not in it."""
    delays = dict(decision.back_off)
    inits = [_container_status(pod, container, decision, seen, delays, init=True) for container in init_containers(pod)]
    mains = [_container_status(pod, container, decision, seen, delays, init=False) for container in main_containers(pod)]
    result: Object = {"phase": decision.phase.value, "hostIP": seen.host_ip, "hostIPs": [{"ip": seen.host_ip}]}
    if seen.ip:
        result |= {"podIP": seen.ip, "podIPs": [{"ip": seen.ip}]}
    if seen.started_at is not None:
        result["startTime"] = timestamp(seen.started_at)
    if seen.ending is not None and seen.ending.reason and decision.phase is Phase.FAILED:
        result |= {"reason": seen.ending.reason, "message": seen.ending.message}
    if inits:
        result["initContainerStatuses"] = inits
    result["containerStatuses"] = mains
    result["conditions"] = _conditions(pod, decision.phase, inits, mains, seen, now=now)
    return result


def _container_status(pod: Object, container: Object, decision: Decision, seen: Seen, delays: dict[str, float], *, init: bool) -> Object:
    name = container["name"]
    runs = seen.of(name)
    last = runs[-1] if runs else None
    health = seen.health.get(name, Health())
    running = last is not None and last.running
    done = last is not None and not last.running and last.exit_code == 0
    ready = (done if init and not is_sidecar(container) else running and health.ready) if last else False
    result: Object = {
        "name": name,
        "image": container.get("image", ""),
        "imageID": "",
        "ready": ready,
        "started": running and health.started,
        "restartCount": last.attempt if last else 0,
        "state": _state(pod, name, last, decision, seen, delays),
        "lastState": {},
    }
    if last:
        result["containerID"] = container_id(last)
    previous = _previous(runs, waits=name in delays)
    if previous is not None:
        result["lastState"] = {"terminated": _terminated(previous)}
    return result


def container_id(run: Run) -> str:
    return f"elastic://{run.id}"


def _previous(runs: tuple[Run, ...], *, waits: bool) -> Run | None:
    if waits:
        return runs[-1]
    return runs[-2] if len(runs) > 1 else None


def _state(pod: Object, name: str, last: Run | None, decision: Decision, seen: Seen, delays: dict[str, float]) -> Object:
    if last is not None and last.running:
        return {"running": {"startedAt": timestamp(last.started_at)}}
    if name in seen.problems:
        return {"waiting": {"reason": "CreateContainerConfigError", "message": seen.problems[name]}}
    if last is not None and name in delays:
        metadata = pod["metadata"]
        who = f"{metadata['name']}_{metadata.get('namespace', '')}({metadata['uid']})"
        message = f"back-off {_duration(delays[name])} restarting failed container={name} pod={who}"
        return {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
    if last is not None:
        return {"terminated": _terminated(last)}
    if seen.problem:
        return {"waiting": {"reason": "CreateContainerConfigError", "message": seen.problem}}
    if decision.phase.final:
        # The container has not begun and never will. These are a kubelet's words for it.
        return {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "The container was never started"}}
    waits_for_init = bool(init_containers(pod)) and not any(seen.of(container["name"]) for container in main_containers(pod))
    return {"waiting": {"reason": "PodInitializing" if waits_for_init else "ContainerCreating"}}


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _terminated(run: Run) -> Object:
    reason = run.reason or ("Completed" if run.exit_code == 0 else "Error")
    result: Object = {
        "exitCode": run.exit_code,
        "reason": reason,
        "startedAt": timestamp(run.started_at),
        "finishedAt": timestamp(run.finished_at or run.started_at),
        "containerID": container_id(run),
    }
    if run.message:
        result["message"] = run.message
    return result


def _conditions(pod: Object, phase: Phase, inits: list[Object], mains: list[Object], seen: Seen, *, now: float) -> list[Object]:
    sidecars = {container["name"] for container in init_containers(pod) if is_sidecar(container)}
    incomplete = [entry["name"] for entry in inits if not entry["started" if entry["name"] in sidecars else "ready"]]
    initialised = not incomplete or any("running" in entry["state"] or entry["lastState"] for entry in mains)
    unready = [entry["name"] for entry in [*inits, *mains] if not entry["ready"] and (entry in mains or entry["name"] in sidecars)]
    if phase is Phase.SUCCEEDED:
        ready: tuple[bool, str, str] = (False, "PodCompleted", "")
    elif phase is Phase.FAILED:
        ready = (False, "PodFailed", "")
    elif unready:
        ready = (False, "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]")
    else:
        ready = (True, "", "")
    gates = _unmet_gates(pod)
    whole = ready if not ready[0] or not gates else (False, "ReadinessGatesNotReady", f"readiness gates are not met: {gates}")
    if phase is Phase.SUCCEEDED:
        begun: tuple[bool, str, str] = (True, "PodCompleted", "")
    elif initialised:
        begun = (True, "", "")
    else:
        begun = (False, "ContainersNotInitialized", f"containers with incomplete status: [{' '.join(incomplete)}]")
    told = {
        "PodReadyToStartContainers": (bool(seen.ip) and not phase.final, "", ""),
        "Initialized": begun,
        "Ready": whole,
        "ContainersReady": ready,
        "PodScheduled": (True, "", ""),
    }
    before = {entry["type"]: entry for entry in (pod.get("status") or {}).get("conditions") or ()}
    return [_condition(kind, *value, before=before.get(kind), now=now) for kind, value in told.items()]


def _unmet_gates(pod: Object) -> list[str]:
    met = {entry["type"] for entry in (pod.get("status") or {}).get("conditions") or () if entry.get("status") == "True"}
    return [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or () if gate["conditionType"] not in met]


def _condition(kind: str, holds: bool, reason: str, message: str, *, before: Object | None, now: float) -> Object:
    word = "True" if holds else "False"
    since = before["lastTransitionTime"] if before and before.get("status") == word and before.get("lastTransitionTime") else timestamp(now)
    result: Object = {"type": kind, "status": word, "lastProbeTime": None, "lastTransitionTime": since}
    # A strategic merge patch keeps fields that it does not name, so an old reason must be removed by name.
    result["reason"] = reason or None
    result["message"] = message or None
    return result
