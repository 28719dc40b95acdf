"""Decide the next step for a pod on this node: which containers to start, to ask to end or to kill, and when to look again.

The decision is a pure function of the pod's object, its observed runs and the time. status.py reports a pod's state to others.
"""

from dataclasses import dataclass
from typing import Any

from elastic.local.agent.runs import BackOff, Health, Phase, Run, Seen

Object = dict[str, Any]
KILL_AGAIN_S = 2.0
"""Seconds until a container is killed again. A killed process is gone at once; if that ever fails, nothing else would wake the runner."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A container to end: politely, with a time at which it is killed, or at once."""

    container: str
    kill_at: float | None
    """Time of the kill; None means at once."""
    why: str = ""
    """Reason, if the container itself is the cause."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The next step. `over` means that nothing of the pod runs any more or will run."""

    phase: Phase
    start: tuple[str, ...] = ()
    stop: tuple[Stop, ...] = ()
    over: bool = False
    look_again_at: float | None = None
    back_off: tuple[tuple[str, float], ...] = ()
    """Containers that wait for their next run, each with its delay in seconds."""


def init_containers(pod: Object) -> list[Object]:
    return list(pod["spec"].get("initContainers") or ())


def main_containers(pod: Object) -> list[Object]:
    return list(pod["spec"]["containers"])


def is_sidecar(container: Object) -> bool:
    """Return whether an init container keeps running next to the main containers."""
    return bool(container.get("restartPolicy") == "Always")


def restarts(pod: Object, run: Run, *, sidecar: bool = False, init: bool = False) -> bool:
    """Return whether a container that ended like this is to run again."""
    policy = "Always" if sidecar else pod["spec"].get("restartPolicy", "Always")
    if init and policy == "Always" and not sidecar:
        policy = "OnFailure"
    return bool(policy == "Always" or (policy == "OnFailure" and run.exit_code != 0))


def decide(pod: Object, seen: Seen, *, now: float, back_off: BackOff) -> Decision:
    """Decide about the pod once."""
    if seen.ending is not None or phase_in_object(pod).final:
        return _end(pod, seen, now=now)
    if seen.problem:
        return Decision(Phase.PENDING)
    work = _Work(pod, seen, now=now, back_off=back_off)
    if work.initialise():
        work.run_main()
    return work.decision()


def phase_in_object(pod: Object) -> Phase:
    return Phase((pod.get("status") or {}).get("phase") or "Pending")


def phase_of(pod: Object, seen: Seen) -> Phase:
    """Return the phase that follows from the runs, once no container will start any more."""
    if seen.ending is not None and seen.ending.reason:
        return Phase.FAILED
    for container in init_containers(pod):
        last = seen.last(container["name"])
        if not is_sidecar(container) and (last is None or last.running or last.exit_code):
            return Phase.FAILED
    last_runs = [seen.last(container["name"]) for container in main_containers(pod)]
    return Phase.SUCCEEDED if all(run is not None and run.exit_code == 0 for run in last_runs) else Phase.FAILED


class _Work:
    """Collects a decision from all containers of the pod. It lives for a single call of `decide`."""

    def __init__(self, pod: Object, seen: Seen, *, now: float, back_off: BackOff) -> None:
        self._pod, self._seen, self._now, self._back_off = pod, seen, now, back_off
        self._start: list[str] = []
        self._stop: list[Stop] = []
        self._times: list[float] = []
        self._waiting: list[tuple[str, float]] = []
        self._phase = Phase.PENDING

    def initialise(self) -> bool:
        """Run the init containers in order. Return true once the last has done its part."""
        for container in init_containers(self._pod):
            name, last = container["name"], self._seen.last(container["name"])
            if is_sidecar(container):
                if not self._keep_running(container, sidecar=True):
                    return self._main_has_begun()
                continue
            if self._main_has_begun() or (last is not None and not last.running and last.exit_code == 0):
                continue
            if last is None:
                self._start.append(name)
            elif last.running:
                self._watch(container)
            elif restarts(self._pod, last, init=True):
                self._again(name)
            else:
                self._phase = Phase.FAILED
            return False
        return True

    def run_main(self) -> None:
        self._phase = Phase.RUNNING if self._main_has_begun() else Phase.PENDING
        for container in main_containers(self._pod):
            self._keep_running(container, sidecar=False)
        finished = [self._seen.last(container["name"]) for container in main_containers(self._pod)]
        if all(run is not None and not run.running and not restarts(self._pod, run) for run in finished):
            self._phase = Phase.SUCCEEDED if all(run and run.exit_code == 0 for run in finished) else Phase.FAILED

    def decision(self) -> Decision:
        if self._phase.final:
            return _end(self._pod, self._seen, now=self._now, phase=self._phase)
        look = min(self._times) if self._times else None
        return Decision(self._phase, tuple(self._start), tuple(self._stop), look_again_at=look, back_off=tuple(self._waiting))

    def _main_has_begun(self) -> bool:
        return any(self._seen.of(container["name"]) for container in main_containers(self._pod))

    def _keep_running(self, container: Object, *, sidecar: bool) -> bool:
        """Start, restart or watch a container. Return whether it has started."""
        name, last = container["name"], self._seen.last(container["name"])
        if last is None:
            self._start.append(name)
            return False
        if last.running:
            self._watch(container)
            return self._seen.health.get(name, Health()).started
        if restarts(self._pod, last, sidecar=sidecar):
            self._again(name)
        return False

    def _again(self, name: str) -> None:
        runs = self._seen.of(name)
        delay = self._back_off.delay_s(runs)
        due = (runs[-1].finished_at or self._now) + delay
        if due <= self._now:
            self._start.append(name)
            return
        self._times.append(due)
        self._waiting.append((name, delay))

    def _watch(self, container: Object) -> None:
        """Stop a running container if its probes have failed too often; there is no other reason here."""
        name = container["name"]
        unhealthy = self._seen.health.get(name, Health()).unhealthy
        kill_at = self._seen.terminating.get(name)
        if unhealthy and kill_at is None:
            kill_at = self._now + grace_s(self._pod)
            self._stop.append(Stop(name, kill_at, unhealthy))
            self._times.append(kill_at)
        elif kill_at is not None:
            self._push(name, kill_at)

    def _push(self, name: str, kill_at: float) -> None:
        if kill_at <= self._now:
            self._stop.append(Stop(name, None))
            self._times.append(self._now + KILL_AGAIN_S)
        else:
            self._times.append(kill_at)


def grace_s(pod: Object) -> float:
    written = pod["spec"].get("terminationGracePeriodSeconds")
    return 30.0 if written is None else float(written)


def _end(pod: Object, seen: Seen, *, now: float, phase: Phase | None = None) -> Decision:
    """End main containers first, then sidecars in reverse order. Kill containers whose grace period has ended."""
    phase = phase or (phase_in_object(pod) if phase_in_object(pod).final else None)
    kill_at = seen.ending.kill_at if seen.ending else now + grace_s(pod)
    sidecars = [container for container in init_containers(pod) if is_sidecar(container)]
    plain = [container for container in init_containers(pod) if not is_sidecar(container)]
    waves = [[*plain, *main_containers(pod)], *[[container] for container in reversed(sidecars)]]
    for wave in waves:
        running = [container["name"] for container in wave if (run := seen.last(container["name"])) is not None and run.running]
        if running:
            return _end_wave(running, seen, now=now, kill_at=kill_at, phase=_while_ending(pod, seen, phase))
    return Decision(phase or phase_of(pod, seen), over=True)


def _while_ending(pod: Object, seen: Seen, phase: Phase | None) -> Phase:
    if phase is not None and phase_in_object(pod).final:
        return phase
    begun = any(seen.of(container["name"]) for container in main_containers(pod))
    return Phase.RUNNING if begun else Phase.PENDING


def _end_wave(running: list[str], seen: Seen, *, now: float, kill_at: float, phase: Phase) -> Decision:
    stop: list[Stop] = []
    times: list[float] = []
    for name in running:
        # A deletion may shorten a grace period that began for another reason, but never lengthens it.
        until = min(seen.terminating.get(name, kill_at), kill_at)
        if until <= now:
            stop.append(Stop(name, None))
            times.append(now + KILL_AGAIN_S)
        elif name not in seen.terminating:
            stop.append(Stop(name, until))
            times.append(until)
        else:
            times.append(until)
    return Decision(phase, stop=tuple(stop), look_again_at=min(times) if times else None)
