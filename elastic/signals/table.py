"""The table of signals, as data. The first row that matches one taint, condition or annotation decides what it means.

docs/spot.md shows it (`python -m elastic.signals.page`), the controller reads nodes and pods by it, and `elastic node reclaim --like NAME`
plays its rows. A signal takes rights on nodes or on the pod itself. Events are not signals, because anybody who may write Events in some
namespace could move the workers of others.
"""

from __future__ import annotations

import re

from elastic.signals.signal import Deadline, DisruptionSignal, Meaning, On

KUBERNETES, AWS, KARPENTER = "Kubernetes", "AWS Node Termination Handler", "Karpenter"
AUTOSCALER, GKE, AKS, KUEUE = "cluster-autoscaler", "GKE", "AKS", "Kueue"
GONE, LEAVE, PREPARE, INFORM = Meaning.GONE, Meaning.LEAVE, Meaning.PREPARE, Meaning.INFORM

QUEUE = "kueue.x-k8s.io/queue-name"
"""Label of a job whose quota is Kueue's to give. It is suspended by nobody else: Kueue resumes a job that it has admitted."""
_TAINT_GOES = "the taint is removed"
NEVER = "nothing"
_AWS_TIME = "aws-node-termination-handler/action-time"


def _taint(name: str, source: str, key: str, meaning: Meaning, lead_s: float = 0.0, **more: object) -> DisruptionSignal:
    rest = {"taken_back": _TAINT_GOES, **more}
    return DisruptionSignal(name=name, source=source, on=On.NODE_TAINT, key=key, meaning=meaning, lead_s=lead_s, **rest)  # type: ignore[arg-type]


def _state(name: str, source: str, key: str, note: str, **more: object) -> DisruptionSignal:
    """Return a taint that takes no worker away and is no news: it lasts, or other signals tell of it."""
    return _taint(name, source, key, INFORM, note=note, is_news=False, **more)  # type: ignore[arg-type]


def _aws(name: str, key: str, meaning: Meaning, **more: object) -> DisruptionSignal:
    time = {"deadline": Deadline.LABEL, "deadline_key": _AWS_TIME} if meaning is LEAVE else {}
    return _taint(f"aws-{name}", AWS, f"aws-node-termination-handler/{key}", meaning, 120.0 if meaning is LEAVE else 30.0, **time, **more)


def _ended(reason: str, note: str) -> DisruptionSignal:
    """Return the reason in the status of a failed pod. A program's own end, and a node's refusal of a pod, are no signals."""
    return DisruptionSignal(name=_named(reason), source=KUBERNETES, on=On.POD_STATUS, key=reason, meaning=GONE, taken_back=NEVER, note=note)


def _named(reason: str) -> str:
    return "pod-" + re.sub("(?<=[a-z])(?=[A-Z])", "-", reason).lower()


def _disruption(reason: str, note: str) -> DisruptionSignal:
    return DisruptionSignal(
        name=_named(reason),
        source=KUBERNETES,
        on=On.POD_CONDITION,
        key="DisruptionTarget",
        value="True",
        reason=reason,
        meaning=LEAVE,
        lead_s=30.0,
        taken_back="the condition is False, unless the pod is being deleted",
        note=note,
    )


def _shutdown(name: str, source: str, lead_s: float, *, note: str, node_label: str = "") -> DisruptionSignal:
    """Return the words of a kubelet about its node while it ends the pods in order."""
    return DisruptionSignal(
        name=name,
        source=source,
        on=On.NODE_CONDITION,
        key="Ready",
        value="False",
        message="node is shutting down",
        node_label=node_label,
        meaning=LEAVE,
        lead_s=lead_s,
        taken_back="the condition is True",
        note=note,
    )


def _azure(name: str, event: str, meaning: Meaning, note: str) -> DisruptionSignal:
    return DisruptionSignal(
        name=f"aks-{name}",
        source=AKS,
        on=On.NODE_CONDITION,
        key="VMEventScheduled",
        value="True",
        message=event,
        meaning=meaning,
        lead_s=30.0,
        deadline=Deadline.MESSAGE if meaning is LEAVE else Deadline.LEAD,
        taken_back="the condition is False",
        note=note,
    )


BUILT_IN: tuple[DisruptionSignal, ...] = (
    # Kubernetes itself: a lost node
    _taint("node-unreachable", KUBERNETES, "node.kubernetes.io/unreachable", GONE, note="its pods go after their toleration, 300 s"),
    _taint("node-out-of-service", KUBERNETES, "node.kubernetes.io/out-of-service", GONE, note="set by an administrator"),
    _taint("node-shutdown", KUBERNETES, "node.cloudprovider.kubernetes.io/shutdown", GONE, note="the machine is off"),
    # AWS
    _aws("spot", "spot-itn", LEAVE, note="spot interruption notice"),
    _aws("maintenance", "scheduled-maintenance", LEAVE, note="set when the event is near and the node is to be drained"),
    _aws("asg-termination", "asg-lifecycle-termination", LEAVE, note="the Auto Scaling group ends the machine"),
    _aws("rebalance", "rebalance-recommendation", PREPARE, note="an interruption is likely; it may never come"),
    # Karpenter
    DisruptionSignal(
        name="karpenter-termination-time",
        source=KARPENTER,
        on=On.NODE_ANNOTATION,
        key="karpenter.sh/nodeclaim-termination-timestamp",
        meaning=LEAVE,
        lead_s=120.0,
        deadline=Deadline.MOMENT,
        taken_back="the annotation is removed",
        note="the end of terminationGracePeriod",
    ),
    DisruptionSignal(
        name="karpenter-node-termination-time",
        source=KARPENTER,
        on=On.NODE_ANNOTATION,
        key="karpenter.sh/node-termination-time",
        meaning=LEAVE,
        lead_s=120.0,
        deadline=Deadline.MOMENT,
        taken_back="the annotation is removed",
        note="the name in earlier releases",
    ),
    _taint("karpenter-disrupted", KARPENTER, "karpenter.sh/disrupted", LEAVE, 120.0, note="interruption, consolidation, drift, expiry"),
    _taint("karpenter-disruption", KARPENTER, "karpenter.sh/disruption", LEAVE, 120.0, value="disrupting", note="v1beta1"),
    _state("karpenter-unregistered", KARPENTER, "karpenter.sh/unregistered", "a new node that is not ready yet", effect="NoExecute"),
    # cluster-autoscaler
    _taint(
        "autoscaler-to-be-deleted",
        AUTOSCALER,
        "ToBeDeletedByClusterAutoscaler",
        LEAVE,
        60.0,
        deadline=Deadline.VALUE,
        note="the value is the time at which it was set",
    ),
    _taint(
        "autoscaler-candidate",
        AUTOSCALER,
        "DeletionCandidateOfClusterAutoscaler",
        INFORM,
        effect="PreferNoSchedule",
        note="the node counts as unneeded; often taken back",
    ),
    # GKE
    _taint(
        "gke-termination",
        GKE,
        "cloud.google.com/impending-node-termination",
        LEAVE,
        15.0,
        note="spot and preemptible; the machine has 30 s, and pods the first 15; if your cluster gives more, add a row",
    ),
    *(
        _shutdown(
            f"gke-{kind}-shutdown", GKE, 15.0, node_label=f"cloud.google.com/gke-{kind}=true", note=f"graceful shutdown of a {kind} node"
        )
        for kind in ("spot", "preemptible")
    ),
    # AKS
    _taint(
        "aks-remediator",
        AKS,
        "remediator.kubernetes.azure.com/unschedulable",
        LEAVE,
        30.0,
        note="node auto-drain: Preempt, Redeploy, Terminate",
    ),
    _azure("preempt", "Preempt", LEAVE, "spot; at least 30 s"),
    _azure("terminate", "Terminate", LEAVE, "the scale set ends the machine"),
    _azure("redeploy", "Redeploy", LEAVE, "the machine moves and loses its disk"),
    _azure("reboot", "Reboot", PREPARE, "the machine restarts"),
    _azure("freeze", "Freeze", INFORM, "it stands still for some seconds"),
    _state("aks-spot", AKS, "kubernetes.azure.com/scalesetpriority", "says what the node is, not that it will leave", value="spot"),
    # Kueue
    DisruptionSignal(
        name="kueue-eviction",
        source=KUEUE,
        on=On.JOB_SUSPENSION,
        key=QUEUE,
        meaning=LEAVE,
        lead_s=30.0,
        deadline=Deadline.DELETION,
        taken_back="Kueue admits the job again",
        note="its Workload says why, by the reasons of its conditions Evicted and Preempted",
    ),
    # Kubernetes itself: orderly ends
    _shutdown("node-graceful-shutdown", KUBERNETES, 20.0, note="graceful node shutdown; ordinary pods have 20 of the 30 s"),
    _state(
        "node-cordon",
        KUBERNETES,
        "node.kubernetes.io/unschedulable",
        "a cordon; replacements come first if a drain could not end without them",
    ),
    _state("node-not-ready", KUBERNETES, "node.kubernetes.io/not-ready", "the kubelet may come back; unreachable is the loss"),
    _taint(
        "node-no-execute",
        KUBERNETES,
        "",
        LEAVE,
        effect="NoExecute",
        deadline=Deadline.TOLERATION,
        note="any other NoExecute taint that the pod does not tolerate for ever",
    ),
    DisruptionSignal(
        name="pod-deletion",
        source=KUBERNETES,
        on=On.POD_DELETION,
        key="deletionTimestamp",
        meaning=LEAVE,
        lead_s=30.0,
        deadline=Deadline.DELETION,
        taken_back=NEVER,
        note="any deletion: drain, preemption, Volcano",
    ),
    _disruption("PreemptionByScheduler", "scheduler: a pod of higher priority needs the room"),
    _disruption("DeletionByTaintManager", "taint eviction controller: a NoExecute taint of the node"),
    _disruption("EvictionByEvictionAPI", "eviction API: kubectl drain, autoscalers"),
    _disruption("DeletionByPodGC", "pod garbage collector: the node is gone"),
    _disruption("TerminationByKubelet", "kubelet: pressure, shutdown, or a critical pod"),
    DisruptionSignal(
        name="pod-disruption-target",
        source=KUBERNETES,
        on=On.POD_CONDITION,
        key="DisruptionTarget",
        value="True",
        meaning=LEAVE,
        lead_s=30.0,
        taken_back="the condition is False, unless the pod is being deleted",
        note="any other reason",
    ),
    _ended("Terminated", "kubelet: graceful shutdown of the node"),
    _ended("Shutdown", "kubelet before 1.22: graceful shutdown of the node"),
    _ended("NodeLost", "node controller: the node is silent"),
    _ended("Preempting", "kubelet: a critical pod needs the room"),
    _ended("Preempted", "schedulers other than the default one"),
    _ended("Evicted", "kubelet: the node is short of memory, disk or process ids"),
    _ended("NodeShutdown", "kubelet: the node is shutting down; of a pod that had begun"),
)
