"""Compare the table of signals with the objects that clusters and clouds write.

No string here comes from the table. Each object is as its writer makes it, by the writer's sources or manual, with effects and reasons.
Next to it stands the signal that the table must find.
"""

from datetime import UTC, datetime
from typing import Any

import pytest

from elastic.signals.seen import Sight, on_job, on_node, on_pod
from elastic.signals.signal import On
from elastic.signals.table import BUILT_IN

Raw = dict[str, Any]
AT = datetime(2026, 3, 2, 19, 1, 45, tzinfo=UTC)
UNIX = "1772478105"


def taint(text: str, **labels: str) -> Raw:
    """Return a node with a taint in the form `KEY[=VALUE]:EFFECT`."""
    said, _, effect = text.rpartition(":")
    key, _, value = said.partition("=")
    return {"metadata": {"labels": labels}, "spec": {"taints": [{"key": key, "value": value, "effect": effect}]}}


def condition(type: str, status: str, reason: str, message: str = "", **labels: str) -> Raw:
    return {
        "metadata": {"labels": labels},
        "status": {"conditions": [{"type": type, "status": status, "reason": reason, "message": message}]},
    }


def azure(message: str) -> Raw:
    return condition("VMEventScheduled", "True", "VMEventScheduled", message)


def annotation(key: str) -> Raw:
    return {"metadata": {"annotations": {key: "2026-03-02T19:01:45Z"}}}


def shuts_down(**labels: str) -> Raw:
    return condition("Ready", "False", "KubeletNotReady", "node is shutting down", **labels)


def nth(name: str) -> Raw:
    """Return a node as AWS Node Termination Handler taints it. The value is the event's id, and a label has the time."""
    return taint(f"aws-node-termination-handler/{name}=spot-itn-0123:NoSchedule", **{"aws-node-termination-handler/action-time": UNIX})


def ended(reason: str) -> Raw:
    return {"metadata": {}, "status": {"phase": "Failed", "reason": reason}}


def disrupted(reason: str) -> Raw:
    return condition("DisruptionTarget", "True", reason)


QUEUED: Raw = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}, "spec": {"runPolicy": {"suspend": True}}}
DELETED: Raw = {"metadata": {"deletionTimestamp": "2026-03-02T19:01:45Z"}}

STATED, MINUTES_LATER = AT, AT.replace(minute=3)
"""Times of the loss: as the object states it, or 120 s after its UNIX time. MINUTE_LATER is 60 s after it."""
MINUTE_LATER = AT.replace(minute=2)
FACTS: list[tuple[str, Raw, str, str, float, datetime | None]] = [
    # name, object, where it is seen, meaning, lead time, stated loss
    ("node-unreachable", taint("node.kubernetes.io/unreachable:NoExecute"), "node taint", "gone", 0, None),
    ("node-out-of-service", taint("node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"), "node taint", "gone", 0, None),
    ("node-shutdown", taint("node.cloudprovider.kubernetes.io/shutdown:NoSchedule"), "node taint", "gone", 0, None),
    ("aws-spot", nth("spot-itn"), "node taint", "leave", 120, MINUTES_LATER),
    ("aws-maintenance", nth("scheduled-maintenance"), "node taint", "leave", 120, MINUTES_LATER),
    ("aws-asg-termination", nth("asg-lifecycle-termination"), "node taint", "leave", 120, MINUTES_LATER),
    ("aws-rebalance", nth("rebalance-recommendation"), "node taint", "prepare", 30, None),
    ("karpenter-termination-time", annotation("karpenter.sh/nodeclaim-termination-timestamp"), "node annotation", "leave", 120, STATED),
    ("karpenter-node-termination-time", annotation("karpenter.sh/node-termination-time"), "node annotation", "leave", 120, STATED),
    ("karpenter-disrupted", taint("karpenter.sh/disrupted:NoSchedule"), "node taint", "leave", 120, None),
    ("karpenter-disruption", taint("karpenter.sh/disruption=disrupting:NoSchedule"), "node taint", "leave", 120, None),
    ("karpenter-unregistered", taint("karpenter.sh/unregistered:NoExecute"), "node taint", "inform", 0, None),
    ("autoscaler-to-be-deleted", taint(f"ToBeDeletedByClusterAutoscaler={UNIX}:NoSchedule"), "node taint", "leave", 60, MINUTE_LATER),
    ("autoscaler-candidate", taint(f"DeletionCandidateOfClusterAutoscaler={UNIX}:PreferNoSchedule"), "node taint", "inform", 0, None),
    ("gke-termination", taint("cloud.google.com/impending-node-termination:NoSchedule"), "node taint", "leave", 15, None),
    ("gke-spot-shutdown", shuts_down(**{"cloud.google.com/gke-spot": "true"}), "node condition", "leave", 15, None),
    ("gke-preemptible-shutdown", shuts_down(**{"cloud.google.com/gke-preemptible": "true"}), "node condition", "leave", 15, None),
    ("aks-remediator", taint("remediator.kubernetes.azure.com/unschedulable:NoSchedule"), "node taint", "leave", 30, None),
    ("aks-preempt", azure("Preempt Scheduled: Mon, 02 Mar 2026 19:01:45 GMT"), "node condition", "leave", 30, STATED),
    ("aks-terminate", azure("Terminate Scheduled: Mon, 02 Mar 2026 19:01:45 GMT"), "node condition", "leave", 30, STATED),
    ("aks-redeploy", azure("Redeploy Scheduled: Mon, 02 Mar 2026 19:01:45 GMT"), "node condition", "leave", 30, STATED),
    ("aks-reboot", azure("Reboot Scheduled: Mon, 02 Mar 2026 19:01:45 GMT"), "node condition", "prepare", 30, None),
    ("aks-freeze", azure("Freeze Scheduled: Mon, 02 Mar 2026 19:01:45 GMT"), "node condition", "inform", 30, None),
    ("aks-spot", taint("kubernetes.azure.com/scalesetpriority=spot:NoSchedule"), "node taint", "inform", 0, None),
    ("kueue-eviction", QUEUED, "job suspension", "leave", 30, None),
    ("node-graceful-shutdown", shuts_down(), "node condition", "leave", 20, None),
    ("node-cordon", taint("node.kubernetes.io/unschedulable:NoSchedule"), "node taint", "inform", 0, None),
    ("node-not-ready", taint("node.kubernetes.io/not-ready:NoExecute"), "node taint", "inform", 0, None),
    ("node-no-execute", taint("example.com/mine=x:NoExecute"), "node taint", "leave", 0, None),
    ("pod-deletion", DELETED, "pod deletion", "leave", 30, STATED),
    ("pod-preemption-by-scheduler", disrupted("PreemptionByScheduler"), "pod condition", "leave", 30, None),
    ("pod-deletion-by-taint-manager", disrupted("DeletionByTaintManager"), "pod condition", "leave", 30, None),
    ("pod-eviction-by-eviction-api", disrupted("EvictionByEvictionAPI"), "pod condition", "leave", 30, None),
    ("pod-deletion-by-pod-gc", disrupted("DeletionByPodGC"), "pod condition", "leave", 30, None),
    ("pod-termination-by-kubelet", disrupted("TerminationByKubelet"), "pod condition", "leave", 30, None),
    ("pod-disruption-target", disrupted("FromTomorrow"), "pod condition", "leave", 30, None),
    ("pod-terminated", ended("Terminated"), "pod status", "gone", 0, None),
    ("pod-shutdown", ended("Shutdown"), "pod status", "gone", 0, None),
    ("pod-node-lost", ended("NodeLost"), "pod status", "gone", 0, None),
    ("pod-preempting", ended("Preempting"), "pod status", "gone", 0, None),
    ("pod-preempted", ended("Preempted"), "pod status", "gone", 0, None),
    ("pod-evicted", ended("Evicted"), "pod status", "gone", 0, None),
    ("pod-node-shutdown", ended("NodeShutdown"), "pod status", "gone", 0, None),
]
NOT_SEEN: list[tuple[On, Raw]] = [
    (On.NODE_TAINT, taint("karpenter.sh/disruption=other:NoSchedule")),
    (On.NODE_TAINT, taint("kubernetes.azure.com/scalesetpriority=regular:NoSchedule")),
    (On.NODE_TAINT, taint("DeletionCandidateOfClusterAutoscaler:NoSchedule")),
    (On.NODE_TAINT, taint("karpenter.sh/unregistered:NoSchedule")),
    (On.NODE_TAINT, taint("mine:PreferNoSchedule")),
    (On.NODE_TAINT, taint("startup-taint.cluster-autoscaler.kubernetes.io/mine:NoSchedule")),
    (On.NODE_CONDITION, condition("Ready", "False", "KubeletNotReady", "container runtime is down")),
    (On.NODE_CONDITION, condition("VMEventScheduled", "False", "NoVMEventScheduled", "VM has no scheduled event")),
    (On.NODE_ANNOTATION, annotation("karpenter.sh/do-not-disrupt")),
    (On.POD_CONDITION, condition("DisruptionTarget", "False", "")),
    (On.POD_STATUS, ended("OutOfcpu")),
    (On.POD_STATUS, ended("DeadlineExceeded")),
    (On.JOB_SUSPENSION, {"metadata": {}, "spec": {"runPolicy": {"suspend": True}}}),
]


def seen(where: On, raw: Raw) -> tuple[Sight, ...]:
    look = on_node if where.is_of_node else on_job if where is On.JOB_SUSPENSION else on_pod
    return look(BUILT_IN, raw)


def test_every_row_of_the_table_has_its_fact() -> None:
    assert [name for name, *_ in FACTS] == [row.name for row in BUILT_IN]


@pytest.mark.parametrize(("name", "raw", "where", "meaning", "lead_s", "lost_at"), FACTS, ids=[name for name, *_ in FACTS])
def test_an_object_is_read_as_the_row_of_its_signal(
    name: str, raw: Raw, where: str, meaning: str, lead_s: float, lost_at: datetime | None
) -> None:
    (sight,) = seen(On(where), raw)
    row = sight.signal
    assert (row.name, row.on.value, row.meaning.value, row.lead_s, sight.by) == (name, where, meaning, lead_s, lost_at)


@pytest.mark.parametrize(("where", "raw"), NOT_SEEN)
def test_an_object_that_looks_nearly_alike_is_no_signal(where: On, raw: Raw) -> None:
    assert seen(where, raw) == ()
