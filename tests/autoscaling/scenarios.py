"""List the scenarios to record. Each is one autoscaler over one target, in its own namespace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]
GROUP = "example.com"
AT_ONCE = {"stabilizationWindowSeconds": 0, "policies": [{"type": "Percent", "value": 100, "periodSeconds": 1}], "selectPolicy": "Max"}
DOUBLING = {"stabilizationWindowSeconds": 0, "policies": [{"type": "Percent", "value": 900, "periodSeconds": 1}], "selectPolicy": "Max"}


@dataclass(frozen=True)
class Step:
    """The answers of the metrics APIs for a number of looks."""

    metrics: Object
    looks: int = 2
    replicas: int | None = None
    """The number of replicas that a user sets when the step begins, or None."""


@dataclass(frozen=True)
class Scenario:
    name: str
    spec: Object
    steps: tuple[Step, ...]
    pods: tuple[Object, ...] = ()
    replicas: int = 2
    selector: str = "app=x"
    target: Object = field(default_factory=lambda: {"apiVersion": f"{GROUP}/v1", "kind": "Trainer", "name": "t"})
    rivals: tuple[str, ...] = ()
    """Names of other autoscalers of the same target. The controller looked at them before this one was created."""
    refused: bool = False
    """An admission policy lets nobody change the target's scale."""
    silent: int = 0
    """Number of looks at the beginning that ask no metrics API."""


def pod(
    name: str, *, cpu: str = "1", ready: bool = True, age_s: int = 1000, turned_s: int = 900, phase: str = "Running", **more: Any
) -> Object:
    requests = {"cpu": cpu, "memory": "100Mi"} if cpu else {}
    return {"name": name, "requests": requests, "ready": ready, "age_s": age_s, "turned_s": turned_s, "phase": phase, **more}


def pods(count: int, **fields: Any) -> tuple[Object, ...]:
    return tuple(pod(f"p{n}", **fields) for n in range(count))


def used(amount: str, names: int | tuple[str, ...] = 2, *, container: str = "main", memory: str = "50Mi", **fields: Any) -> Object:
    chosen = tuple(f"p{n}" for n in range(names)) if isinstance(names, int) else names
    return {"usage": {name: {container: {"cpu": amount, "memory": memory}} for name in chosen}, **fields}


def cpu(percent: int = 50) -> Object:
    return {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}}}


def average(name: str, value: str) -> Object:
    return {"type": "Resource", "resource": {"name": name, "target": {"type": "AverageValue", "averageValue": value}}}


def of_pods(name: str, value: str, **selector: str) -> Object:
    metric: Object = {"name": name} | ({"selector": {"matchLabels": selector}} if selector else {})
    return {"type": "Pods", "pods": {"metric": metric, "target": {"type": "AverageValue", "averageValue": value}}}


def of_object(name: str, *, kind: str = "Service", api: str = "v1", **target: str) -> Object:
    described = {"apiVersion": api, "kind": kind, "name": "thing"}
    wanted = {"type": "Value", **target} if "value" in target else {"type": "AverageValue", **target}
    return {"type": "Object", "object": {"describedObject": described, "metric": {"name": name}, "target": wanted}}


def external(name: str, labels: Object | None = None, **target: str) -> Object:
    metric: Object = {"name": name} | ({"selector": labels} if labels else {})
    wanted = {"type": "Value", **target} if "value" in target else {"type": "AverageValue", **target}
    return {"type": "External", "external": {"metric": metric, "target": wanted}}


def spec(*metrics: Object, least: int = 1, most: int = 40, up: Object | None = None, down: Object | None = None) -> Object:
    behavior = {"behavior": {k: v for k, v in (("scaleUp", up), ("scaleDown", down)) if v}} if up or down else {}
    return {"minReplicas": least, "maxReplicas": most, "metrics": list(metrics), **behavior}


def policy(kind: str, value: int, seconds: int) -> Object:
    return {"type": kind, "value": value, "periodSeconds": seconds}


def rules(*policies: Object, window_s: int = 0, select: str = "Max", **more: Any) -> Object:
    return {"stabilizationWindowSeconds": window_s, "policies": list(policies), "selectPolicy": select, **more}


LABELS = {"matchLabels": {"team": "a", "b": "c"}, "matchExpressions": [{"key": "k", "operator": "In", "values": ["x", "y"]}]}
WANTED = "desired_workers"
SCENARIOS = (
    Scenario("cpu-above", spec(cpu()), (Step(used("900m")),), pods(2)),
    Scenario("cpu-far-above", spec(cpu(10)), (Step(used("900m")),), pods(2)),
    Scenario("cpu-within", spec(cpu()), (Step(used("540m")), Step(used("460m"))), pods(2)),
    Scenario("cpu-below-unlimited", spec(cpu(), down=AT_ONCE), (Step(used("100m", 4)),), pods(4), replicas=4),
    Scenario("cpu-below-stabilized", spec(cpu()), (Step(used("100m", 4)),), pods(4), replicas=4),
    Scenario("cpu-missing-below", spec(cpu(), down=AT_ONCE), (Step(used("100m", 2)),), pods(4), replicas=4),
    Scenario("cpu-missing-far-below", spec(cpu(90), down=AT_ONCE), (Step(used("0", 3)),), pods(4), replicas=4),
    Scenario("cpu-missing-above", spec(cpu()), (Step(used("900m", 3)),), pods(4), replicas=4),
    Scenario("cpu-missing-turns", spec(cpu()), (Step(used("600m", 1)),), pods(4), replicas=4),
    Scenario(
        "cpu-unready-above", spec(cpu()), (Step(used("950m", 3)),), (*pods(2), pod("p2", ready=False, age_s=60, turned_s=50)), replicas=3
    ),
    Scenario("cpu-young-ready", spec(cpu()), (Step(used("950m", 3, at_s=-40)),), (*pods(2), pod("p2", age_s=60, turned_s=5)), replicas=3),
    Scenario(
        "cpu-never-ready", spec(cpu()), (Step(used("950m", 3)),), (*pods(2), pod("p2", ready=False, age_s=900, turned_s=880)), replicas=3
    ),
    Scenario(
        "cpu-once-ready", spec(cpu()), (Step(used("950m", 3)),), (*pods(2), pod("p2", ready=False, age_s=900, turned_s=100)), replicas=3
    ),
    Scenario("cpu-pending", spec(cpu()), (Step(used("950m")),), (*pods(2), pod("p2", phase="Pending", ready=False)), replicas=3),
    Scenario(
        "cpu-failed-and-deleted",
        spec(cpu()),
        (Step(used("900m", 4)),),
        (*pods(2), pod("p2", phase="Failed"), pod("p3", deleted=True)),
        replicas=4,
    ),
    Scenario("cpu-all-unready", spec(cpu()), (Step(used("900m")),), pods(2, ready=False, age_s=60, turned_s=50)),
    Scenario("cpu-without-request", spec(cpu()), (Step(used("900m")),), (pod("p0"), pod("p1", cpu=""))),
    Scenario("cpu-without-metrics", spec(cpu()), (Step({}),), pods(2)),
    Scenario("cpu-api-fails", spec(cpu()), (Step({"status": 500}), Step(used("900m"))), pods(2)),
    Scenario("cpu-without-pods", spec(cpu()), (Step(used("900m")),)),
    Scenario("cpu-average", spec(average("cpu", "300m")), (Step(used("450m")),), pods(2)),
    Scenario("cpu-average-odd", spec(average("cpu", "1")), (Step(used("2000m", 1)), Step(used("333333333n"))), pods(2)),
    Scenario(
        "memory-average",
        spec(average("memory", "64Mi"), down=AT_ONCE),
        (Step(used("1", memory="200Mi")), Step(used("1", memory="123456789"))),
        pods(2),
    ),
    Scenario(
        "memory-utilization",
        spec({"type": "Resource", "resource": {"name": "memory", "target": {"type": "Utilization", "averageUtilization": 40}}}),
        (Step(used("1", memory="90Mi")),),
        pods(2),
    ),
    Scenario("memory-average-missing", spec(average("memory", "64Mi"), down=AT_ONCE), (Step(used("1", 1, memory="10Mi")),), pods(2)),
    Scenario(
        "container-cpu",
        spec(
            {
                "type": "ContainerResource",
                "containerResource": {"name": "cpu", "container": "main", "target": {"type": "Utilization", "averageUtilization": 50}},
            }
        ),
        (Step(used("900m")),),
        pods(2),
    ),
    Scenario(
        "container-average",
        spec(
            {
                "type": "ContainerResource",
                "containerResource": {"name": "cpu", "container": "main", "target": {"type": "AverageValue", "averageValue": "500m"}},
            }
        ),
        (Step(used("900m")),),
        pods(2),
    ),
    Scenario(
        "container-unknown",
        spec(
            {
                "type": "ContainerResource",
                "containerResource": {"name": "cpu", "container": "other", "target": {"type": "Utilization", "averageUtilization": 50}},
            }
        ),
        (Step(used("900m")),),
        pods(2),
    ),
    Scenario("pods-above", spec(of_pods("rate", "100m", kind="a")), (Step({"pods": {"rate": {"p0": "250m", "p1": "150m"}}}),), pods(2)),
    Scenario(
        "pods-below-missing",
        spec(of_pods("rate", "100m"), down=AT_ONCE),
        (Step({"pods": {"rate": {"p0": "10m", "p1": "10m"}}}),),
        pods(4),
        replicas=4,
    ),
    Scenario(
        "pods-above-unready",
        spec(of_pods("rate", "100m")),
        (Step({"pods": {"rate": {"p0": "250m", "p1": "250m"}}}),),
        (*pods(2), pod("p2", phase="Pending", ready=False)),
        replicas=3,
    ),
    Scenario("pods-without-metric", spec(of_pods("rate", "100m")), (Step({}), Step({"pods": {"rate": {}}})), pods(2)),
    Scenario(
        "object-value",
        spec(of_object("depth", value="10")),
        (Step({"object": {"depth": "25"}}), Step({"object": {"depth": "10500m"}})),
        pods(2),
    ),
    Scenario(
        "object-average",
        spec(of_object("depth", averageValue="10"), down=AT_ONCE),
        (Step({"object": {"depth": "45"}}), Step({"object": {"depth": "7"}})),
        pods(2),
    ),
    Scenario("object-namespace", spec(of_object("depth", kind="Namespace", value="10")), (Step({"object": {"depth": "25"}}),), pods(2)),
    Scenario(
        "object-custom-kind",
        spec(of_object("depth", kind="Trainer", api=f"{GROUP}/v1", value="10")),
        (Step({"object": {"depth": "25"}}),),
        pods(2),
    ),
    Scenario("object-unknown", spec(of_object("depth", value="10"), of_object("deep", averageValue="10")), (Step({}),), pods(2)),
    Scenario(
        "external-value",
        spec(external("queue", LABELS, value="10")),
        (Step({"external": {"queue": ["15", "10"]}}),),
        (*pods(2), pod("p2", ready=False)),
        replicas=3,
    ),
    Scenario(
        "external-average",
        spec(external("queue", averageValue="10"), down=AT_ONCE),
        (Step({"external": {"queue": ["35", "10"]}}), Step({"external": {"queue": ["500m"]}})),
        pods(2),
    ),
    Scenario(
        "external-none",
        spec(external("queue", averageValue="10"), external("line", value="1")),
        (Step({}), Step({"external": {"queue": [], "line": []}})),
        pods(2),
    ),
    Scenario("external-zero", spec(external("queue", averageValue="10"), down=AT_ONCE), (Step({"external": {"queue": ["0"]}}),), pods(2)),
    Scenario(
        "wanted-10-to-11-tolerated",
        spec(external(WANTED, averageValue="1")),
        (Step({"external": {WANTED: ["11"]}}), Step({"external": {WANTED: ["12"]}})),
        pods(10),
        replicas=10,
    ),
    Scenario(
        "wanted-10-to-11-exactly",
        spec(external(WANTED, averageValue="1"), up=DOUBLING | {"tolerance": "0"}),
        (Step({"external": {WANTED: ["11"]}}),),
        pods(10),
        replicas=10,
    ),
    Scenario(
        "wanted-20-to-19-tolerated",
        spec(external(WANTED, averageValue="1"), down=AT_ONCE),
        (Step({"external": {WANTED: ["19"]}}), Step({"external": {WANTED: ["18"]}}), Step({"external": {WANTED: ["17"]}})),
        pods(3),
        replicas=20,
    ),
    Scenario(
        "wanted-20-to-19-exactly",
        spec(external(WANTED, averageValue="1"), down=AT_ONCE | {"tolerance": "0"}),
        (Step({"external": {WANTED: ["19"]}}),),
        pods(3),
        replicas=20,
    ),
    Scenario(
        "tolerance-wide",
        spec(cpu(), up=DOUBLING | {"tolerance": "500m"}, down=AT_ONCE | {"tolerance": "20m"}),
        (Step(used("700m")), Step(used("480m"))),
        pods(2),
    ),
    Scenario("at-most", spec(cpu(), most=3), (Step(used("900m")),), pods(2)),
    Scenario("at-least", spec(cpu(), least=2, down=AT_ONCE), (Step(used("100m", 4)),), pods(4), replicas=4),
    Scenario("at-least-plain", spec(cpu(), least=2), (Step(used("100m")),), pods(2), replicas=2),
    Scenario("above-max", spec(cpu(), most=3), (Step(used("500m", 5)),), pods(5), replicas=5, silent=1),
    Scenario("below-min", spec(cpu(), least=3), (Step(used("500m")),), pods(2), silent=1),
    Scenario("zero", spec(cpu()), (Step(used("500m"), looks=0),), pods(2), replicas=0, silent=2),
    Scenario("policy-pods", spec(cpu(), up=rules(policy("Pods", 1, 7))), (Step(used("990m"), looks=6),), pods(2)),
    Scenario(
        "policy-percent",
        spec(external("queue", averageValue="1"), up=rules(policy("Percent", 50, 9))),
        (Step({"external": {"queue": ["30"]}}, looks=6),),
        pods(4),
        replicas=4,
    ),
    Scenario(
        "policy-min",
        spec(external("queue", averageValue="1"), up=rules(policy("Percent", 100, 3), policy("Pods", 2, 3), select="Min")),
        (Step({"external": {"queue": ["30"]}}, looks=4),),
        pods(4),
        replicas=4,
    ),
    Scenario(
        "policy-down",
        spec(external("queue", averageValue="1"), down=rules(policy("Pods", 2, 5), policy("Percent", 10, 5))),
        (Step({"external": {"queue": ["2"]}}, looks=6),),
        pods(3),
        replicas=20,
    ),
    Scenario(
        "policy-down-min",
        spec(external("queue", averageValue="1"), down=rules(policy("Pods", 2, 5), policy("Percent", 25, 5), select="Min")),
        (Step({"external": {"queue": ["2"]}}, looks=4),),
        pods(3),
        replicas=20,
    ),
    Scenario(
        "policy-disabled",
        spec(
            external("queue", averageValue="1"),
            up=rules(policy("Pods", 2, 5), select="Disabled"),
            down=rules(policy("Pods", 2, 5), select="Disabled"),
        ),
        (Step({"external": {"queue": ["9"]}}), Step({"external": {"queue": ["1"]}})),
        pods(4),
        replicas=4,
    ),
    Scenario(
        "window-up",
        spec(external("queue", averageValue="1"), up=rules(policy("Percent", 900, 1), window_s=7)),
        (Step({"external": {"queue": ["4"]}}), Step({"external": {"queue": ["9"]}}, looks=6)),
        pods(4),
        replicas=4,
    ),
    Scenario(
        "window-down",
        spec(external("queue", averageValue="1"), down=rules(policy("Percent", 100, 1), window_s=7)),
        (Step({"external": {"queue": ["8"]}}), Step({"external": {"queue": ["3"]}}, looks=6)),
        pods(4),
        replicas=8,
    ),
    Scenario(
        "window-down-steps",
        spec(external("queue", averageValue="1"), down=rules(policy("Percent", 100, 1), window_s=7)),
        (
            Step({"external": {"queue": ["9"]}}),
            Step({"external": {"queue": ["5"]}}, looks=3),
            Step({"external": {"queue": ["7"]}}, looks=3),
            Step({"external": {"queue": ["2"]}}, looks=6),
        ),
        pods(4),
        replicas=8,
    ),
    Scenario(
        "two-metrics",
        spec(cpu(), external("queue", averageValue="1")),
        (Step(used("600m", external={"queue": ["9"]})), Step(used("900m", external={"queue": ["2"]}))),
        pods(2),
    ),
    Scenario("one-invalid-up", spec(cpu(), external("queue", averageValue="1")), (Step(used("900m")),), pods(2)),
    Scenario("one-invalid-down", spec(cpu(), external("queue", averageValue="1"), down=AT_ONCE), (Step(used("100m")),), pods(2)),
    Scenario(
        "by-hand",
        spec(external("queue", averageValue="1")),
        (Step({"external": {"queue": ["4"]}}), Step({"external": {"queue": ["4"]}}, replicas=9, looks=3)),
        pods(4),
        replicas=4,
    ),
    Scenario(
        "target-kind-unknown",
        spec(cpu()),
        (Step({}, looks=0),),
        pods(2),
        target={"apiVersion": f"{GROUP}/v1", "kind": "Nobody", "name": "t"},
        silent=2,
    ),
    Scenario(
        "target-unknown",
        spec(cpu()),
        (Step({}, looks=0),),
        pods(2),
        target={"apiVersion": f"{GROUP}/v1", "kind": "Trainer", "name": "none"},
        silent=2,
    ),
    Scenario(
        "target-without-scale",
        spec(cpu()),
        (Step({}, looks=0),),
        pods(2),
        target={"apiVersion": "apps/v1", "kind": "ControllerRevision", "name": "thing"},
        silent=2,
    ),
    Scenario("metrics-unset", {"maxReplicas": 40}, (Step(used("900m")), Step(used("300m"))), pods(2)),
    Scenario("least-unset", {"maxReplicas": 9, "metrics": [cpu()], "behavior": {"scaleDown": AT_ONCE}}, (Step(used("10m")),), pods(2)),
    Scenario(
        "behavior-up-only",
        spec(external("queue", averageValue="1"), up=DOUBLING),
        (Step({"external": {"queue": ["2"]}}),),
        pods(4),
        replicas=4,
    ),
    Scenario(
        "behavior-down-only",
        spec(external("queue", averageValue="1"), down=AT_ONCE),
        (Step({"external": {"queue": ["40"]}}, looks=4),),
        pods(4),
        replicas=4,
    ),
    Scenario(
        "behavior-window-only",
        spec(external("queue", averageValue="1"), up={"stabilizationWindowSeconds": 4}, down={"selectPolicy": "Min"}),
        (Step({"external": {"queue": ["40"]}}, looks=5), Step({"external": {"queue": ["2"]}})),
        pods(4),
        replicas=4,
    ),
    Scenario("refused", spec(cpu()), (Step(used("900m")), Step(used("500m"))), pods(2), refused=True),
    Scenario("rival", spec(cpu()), (Step(used("500m"), looks=0),), pods(2), rivals=("a",), silent=2),
    Scenario("rivals", spec(cpu()), (Step(used("500m"), looks=0),), pods(2), rivals=("z", "a"), silent=2),
    Scenario("selector-missing", spec(cpu()), (Step({}, looks=0),), pods(2), selector="", silent=2),
    Scenario("selector-bad", spec(cpu()), (Step({}, looks=0),), pods(2), selector="a in b", silent=2),
)
