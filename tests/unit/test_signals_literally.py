"""What clouds and Kubernetes write, letter by letter, is the row that it should be: a slip of the table would not show in tests that take
their objects from its rows.
"""

from typing import Any

import pytest

from elastic.signals.seen import on_job, on_node, on_pod
from elastic.signals.table import BUILT_IN

Object = dict[str, Any]
NTH = "aws-node-termination-handler"
SHUTTING_DOWN = {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "node is shutting down"}


def taint(key: str, effect: str = "NoSchedule", value: str = "") -> Object:
    return {"metadata": {"name": "n"}, "spec": {"taints": [{"key": key, "value": value, "effect": effect}]}}


def condition(found: Object, **labels: str) -> Object:
    return {"metadata": {"name": "n", "labels": labels}, "status": {"conditions": [found]}}


def azure(event: str) -> Object:
    message = f"{event} Scheduled: Thu, 01 Jan 2026 12:00:31 GMT"
    return condition({"type": "VMEventScheduled", "status": "True", "reason": "VMEventScheduled", "message": message})


def annotated(key: str) -> Object:
    return {"metadata": {"name": "n", "annotations": {key: "2026-01-01T12:02:00Z"}}}


NODES: list[tuple[Object, str, str, float]] = [
    (taint("node.kubernetes.io/unreachable", "NoExecute"), "node-unreachable", "gone", 0),
    (taint("node.kubernetes.io/out-of-service", "NoExecute", "nodeshutdown"), "node-out-of-service", "gone", 0),
    (taint("node.cloudprovider.kubernetes.io/shutdown"), "node-shutdown", "gone", 0),
    (taint("node.kubernetes.io/unschedulable"), "node-cordon", "inform", 0),
    (taint("node.kubernetes.io/not-ready"), "node-not-ready", "inform", 0),
    (condition(SHUTTING_DOWN), "node-graceful-shutdown", "leave", 20),
    (taint(f"{NTH}/spot-itn", value="spot-itn-1"), "aws-spot", "leave", 120),
    (taint(f"{NTH}/scheduled-maintenance", value="x"), "aws-maintenance", "leave", 120),
    (taint(f"{NTH}/asg-lifecycle-termination", value="x"), "aws-asg-termination", "leave", 120),
    (taint(f"{NTH}/rebalance-recommendation", value="x"), "aws-rebalance", "prepare", 30),
    (taint("karpenter.sh/disrupted"), "karpenter-disrupted", "leave", 120),
    (taint("karpenter.sh/disruption", value="disrupting"), "karpenter-disruption", "leave", 120),
    (taint("karpenter.sh/unregistered", "NoExecute"), "karpenter-unregistered", "inform", 0),
    (annotated("karpenter.sh/nodeclaim-termination-timestamp"), "karpenter-termination-time", "leave", 120),
    (annotated("karpenter.sh/node-termination-time"), "karpenter-node-termination-time", "leave", 120),
    (taint("ToBeDeletedByClusterAutoscaler", value="1767268800"), "autoscaler-to-be-deleted", "leave", 60),
    (taint("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule", "1767268800"), "autoscaler-candidate", "inform", 0),
    (taint("cloud.google.com/impending-node-termination"), "gke-termination", "leave", 15),
    (condition(SHUTTING_DOWN, **{"cloud.google.com/gke-spot": "true"}), "gke-spot-shutdown", "leave", 15),
    (condition(SHUTTING_DOWN, **{"cloud.google.com/gke-preemptible": "true"}), "gke-preemptible-shutdown", "leave", 15),
    (taint("remediator.kubernetes.azure.com/unschedulable"), "aks-remediator", "leave", 30),
    (taint("kubernetes.azure.com/scalesetpriority", value="spot"), "aks-spot", "inform", 0),
    (azure("Preempt"), "aks-preempt", "leave", 30),
    (azure("Terminate"), "aks-terminate", "leave", 30),
    (azure("Redeploy"), "aks-redeploy", "leave", 30),
    (azure("Reboot"), "aks-reboot", "prepare", 30),
    (azure("Freeze"), "aks-freeze", "inform", 30),
    (taint("mine", "NoExecute"), "node-no-execute", "leave", 0),
]
PODS: list[tuple[Object, str, str, float]] = [
    *(
        ({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}]}, name, "leave", 30)
        for reason, name in [
            ("PreemptionByScheduler", "pod-preemption-by-scheduler"),
            ("DeletionByTaintManager", "pod-deletion-by-taint-manager"),
            ("EvictionByEvictionAPI", "pod-eviction-by-eviction-api"),
            ("DeletionByPodGC", "pod-deletion-by-pod-gc"),
            ("TerminationByKubelet", "pod-termination-by-kubelet"),
            ("SomethingNew", "pod-disruption-target"),
        ]
    ),
    *(
        ({"phase": "Failed", "reason": reason}, name, "gone", 0)
        for reason, name in [
            ("Terminated", "pod-terminated"),
            ("Shutdown", "pod-shutdown"),
            ("NodeShutdown", "pod-node-shutdown"),
            ("NodeLost", "pod-node-lost"),
            ("Preempting", "pod-preempting"),
            ("Preempted", "pod-preempted"),
            ("Evicted", "pod-evicted"),
        ]
    ),
]


def first(sights: Any) -> tuple[str, str, float]:
    signal = sights[0].signal
    return signal.name, signal.meaning.value, signal.lead_s


@pytest.mark.parametrize(("raw", "name", "meaning", "lead_s"), NODES, ids=[name for _, name, _, _ in NODES])
def test_what_a_node_shows_is_its_row(raw: Object, name: str, meaning: str, lead_s: float) -> None:
    assert first(on_node(BUILT_IN, raw)) == (name, meaning, lead_s)


@pytest.mark.parametrize(("status", "name", "meaning", "lead_s"), PODS, ids=[name for _, name, _, _ in PODS])
def test_what_a_pod_shows_is_its_row(status: Object, name: str, meaning: str, lead_s: float) -> None:
    assert first(on_pod(BUILT_IN, {"metadata": {"name": "p"}, "status": status})) == (name, meaning, lead_s)


def test_no_row_is_left_out_here() -> None:
    deleted = {"metadata": {"name": "p", "deletionTimestamp": "2026-01-01T12:00:30Z"}, "status": {"phase": "Running"}}
    assert first(on_pod(BUILT_IN, deleted)) == ("pod-deletion", "leave", 30)
    queued = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "q"}}, "spec": {"runPolicy": {"suspend": True}}}
    assert first(on_job(BUILT_IN, queued)) == ("kueue-eviction", "leave", 30)
    covered = {name for _, name, _, _ in (*NODES, *PODS)} | {"pod-deletion", "kueue-eviction"}
    assert {row.name for row in BUILT_IN} == covered
