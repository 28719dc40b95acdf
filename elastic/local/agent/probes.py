"""Count the results of probes, as the kubelet does: a number of equal results in a row decides. Pure; handlers.py runs the probes."""

from dataclasses import dataclass, replace
from typing import Any

from elastic.local.agent.runs import Health

Object = dict[str, Any]
KINDS = ("startupProbe", "readinessProbe", "livenessProbe")


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe of a container, with the defaults of the API for unset fields."""

    kind: str
    handler: Object
    initial_delay_s: float
    period_s: float
    timeout_s: float
    successes: int
    failures: int


def probes(container: Object) -> list[Probe]:
    return [_probe(kind, container[kind]) for kind in KINDS if container.get(kind)]


def _probe(kind: str, written: Object) -> Probe:
    return Probe(
        kind=kind,
        handler={name: written[name] for name in ("exec", "httpGet", "tcpSocket", "grpc") if name in written},
        initial_delay_s=float(written.get("initialDelaySeconds") or 0),
        period_s=float(written.get("periodSeconds") or 10),
        timeout_s=float(written.get("timeoutSeconds") or 1),
        successes=int(written.get("successThreshold") or 1),
        failures=int(written.get("failureThreshold") or 3),
    )


@dataclass(frozen=True, slots=True)
class Tally:
    """Numbers of consecutive successes and failures of a probe."""

    good: int = 0
    bad: int = 0

    def counting(self, found_good: bool) -> "Tally":
        return Tally(good=self.good + 1) if found_good else Tally(bad=self.bad + 1)


def at_start(container: Object) -> Health:
    """Return the health of a new container: with a startup probe it has not started, and with a readiness probe it is not ready."""
    kinds = {probe.kind for probe in probes(container)}
    return Health(started="startupProbe" not in kinds, ready=not kinds & {"startupProbe", "readinessProbe"})


def judge(health: Health, probe: Probe, tally: Tally, container: Object, words: str) -> Health:
    """Return the container's health after another result. `words` is the text of the last failure."""
    if tally.good >= probe.successes:
        return _good(health, probe.kind, container)
    if tally.bad >= probe.failures:
        if probe.kind == "readinessProbe":
            return replace(health, ready=False)
        name = "liveness" if probe.kind == "livenessProbe" else "startup"
        return replace(health, ready=False, unhealthy=f"Container {container['name']} failed {name} probe, will be restarted: {words}")
    return health


def _good(health: Health, kind: str, container: Object) -> Health:
    if kind == "readinessProbe":
        return replace(health, ready=True)
    if kind == "startupProbe":
        return replace(health, started=True, ready="readinessProbe" not in container)
    return health


def port_of(container: Object, port: int | str) -> int | None:
    """Return a port by its number, or by the name that the container gives it."""
    if isinstance(port, int) or str(port).isdigit():
        return int(port)
    return next((int(entry["containerPort"]) for entry in container.get("ports") or () if entry.get("name") == port), None)
