"""Define the meaning of each reason with which a kubelet, a node or a container runtime ends or refuses a pod or a container.

There is one table, and the rules that read it. docs/faults.md shows the table. Ends by the cluster are signals (`elastic.signals.table`),
to which an installation may add; all other reasons are here. This module knows neither restart policies nor budgets.
"""

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from elastic.api.words import Cause
from elastic.signals.signal import DisruptionSignal, On
from elastic.signals.table import BUILT_IN
from elastic_training.controller.facts.snapshot import Container, Pod, PodPhase
from elastic_training.rendezvous import delivery

KILLED = frozenset({128 + signal.SIGKILL, 128 + signal.SIGTERM})
"""Exit codes of a container whose first process got these signals: nothing within the container can send them to it to such effect."""


class Meaning(Enum):
    DISRUPTION = "disruption"
    """The cluster took the pod or its container: never charged, the pod is replaced."""
    REFUSED = "refused"
    """A node did not take the pod in: never charged, the next try waits longer each time. If the pod had run before, it is a disruption."""
    OUT_OF_MEMORY = "out of memory"
    USER = "user"
    """The program, its image or its template is at fault: charged."""
    DONE = "done"


class ReasonField(Enum):
    """Field in which the word stands."""

    CONDITION = "condition DisruptionTarget"
    POD = "pod status"
    CONTAINER = "container"


@dataclass(frozen=True, slots=True)
class EndReason:
    place: ReasonField
    word: str
    meaning: Meaning
    writer: str
    """Program that writes it, and the occasion."""


UNBEGUN = frozenset({"Evicted", "NodeShutdown"})
"""Signals that mean a refusal if the pod had not begun."""
INSUFFICIENT = "OutOf"
"""The kubelet's prefix before the resource that its node lacks."""

OWN = (
    EndReason(ReasonField.POD, "Evicted", Meaning.REFUSED, "kubelet: the node is short of memory, disk or process ids"),
    EndReason(ReasonField.POD, "NodeShutdown", Meaning.REFUSED, "kubelet: the node is shutting down"),
    EndReason(ReasonField.POD, INSUFFICIENT, Meaning.REFUSED, "kubelet: the node lacks the resource, such as cpu, pods or nvidia.com/gpu"),
    EndReason(ReasonField.POD, "UnexpectedAdmissionError", Meaning.REFUSED, "kubelet: a device plugin could not allocate"),
    EndReason(ReasonField.POD, "TopologyAffinityError", Meaning.REFUSED, "kubelet: no NUMA node has all that the pod needs"),
    EndReason(ReasonField.POD, "SMTAlignmentError", Meaning.REFUSED, "kubelet: the CPUs are not whole cores"),
    EndReason(ReasonField.POD, "NodeAffinity", Meaning.REFUSED, "kubelet: the node's labels do not fit"),
    EndReason(ReasonField.POD, "NodeName", Meaning.REFUSED, "kubelet: the pod names another node"),
    EndReason(ReasonField.POD, "NodePorts", Meaning.REFUSED, "kubelet: a host port is taken"),
    EndReason(ReasonField.POD, "TaintToleration", Meaning.REFUSED, "kubelet: a NoExecute taint that the pod does not tolerate"),
    EndReason(ReasonField.POD, "VolumeAttachmentLimitExceeded", Meaning.REFUSED, "kubelet: the node can attach no more volumes"),
    EndReason(ReasonField.POD, "InvalidNodeInfo", Meaning.REFUSED, "kubelet: it does not know its own node yet"),
    EndReason(ReasonField.POD, "AppArmor", Meaning.REFUSED, "kubelet: the node cannot apply the profile"),
    EndReason(ReasonField.POD, "SysctlForbidden", Meaning.REFUSED, "kubelet: a sysctl that the node does not allow"),
    EndReason(ReasonField.POD, "PodOSNotSupported", Meaning.REFUSED, "kubelet: the node has another operating system"),
    EndReason(ReasonField.POD, "PodOSSelectorNodeLabelDoesNotMatch", Meaning.REFUSED, "kubelet: the node has another operating system"),
    EndReason(ReasonField.POD, "SupplementalGroupsPolicyNotSupported", Meaning.REFUSED, "kubelet: the runtime lacks it"),
    EndReason(ReasonField.POD, "InitContainerRestartPolicyForbidden", Meaning.REFUSED, "kubelet: it is too old for sidecar containers"),
    EndReason(ReasonField.POD, "PodLevelResourcesNotSupported", Meaning.REFUSED, "kubelet: it lacks resources of whole pods"),
    EndReason(ReasonField.POD, "PodFeatureUnsupported", Meaning.REFUSED, "kubelet: it is too old for a field of the pod"),
    EndReason(ReasonField.POD, "UnexpectedPredicateFailureType", Meaning.REFUSED, "kubelet: a check failed in a way that it does not know"),
    EndReason(ReasonField.POD, "UnknownReason", Meaning.REFUSED, "kubelet: a check failed in a way that it does not know"),
    EndReason(ReasonField.POD, "DeadlineExceeded", Meaning.USER, "kubelet: activeDeadlineSeconds of the template"),
    EndReason(ReasonField.CONTAINER, "Unknown", Meaning.DISRUPTION, "runtime: the node was restarted, exit code 255"),
    EndReason(
        ReasonField.CONTAINER, "ContainerStatusUnknown", Meaning.DISRUPTION, "kubelet: the container is not there any more, exit code 137"
    ),
    EndReason(ReasonField.CONTAINER, "OOMKilled", Meaning.OUT_OF_MEMORY, "runtime: the kernel killed it at its memory limit"),
    EndReason(ReasonField.CONTAINER, "Error", Meaning.USER, "runtime: any exit code but 0"),
    EndReason(ReasonField.CONTAINER, "StartError", Meaning.USER, "runtime: the command could not be started"),
    EndReason(ReasonField.CONTAINER, "ContainerCannotRun", Meaning.USER, "runtime: the command could not be started"),
    EndReason(ReasonField.CONTAINER, "Completed", Meaning.DONE, "runtime: exit code 0"),
)
_MEANINGS = {(row.place, row.word): row.meaning for row in OWN}


def _signals() -> Iterator[EndReason]:
    for row in BUILT_IN:
        if row.ends_pods and (row.reason or row.on is On.POD_STATUS) and row.key not in UNBEGUN:
            place, word = (ReasonField.POD, row.key) if row.on is On.POD_STATUS else (ReasonField.CONDITION, row.reason)
            yield EndReason(place, word, Meaning.DISRUPTION, row.note)


TABLE = (*_signals(), *OWN)


def of_pod(pod: Pod, container: str) -> Meaning:
    """Return what the end of a failed pod means. `container` is the one that trains: its word counts before that of its neighbours."""
    if pod.exceeded:
        return Meaning.USER  # the reason is Evicted, but the pod exceeded its own limit
    if pod.disruption:
        return Meaning.DISRUPTION  # with any reason: the condition says that the cluster ended the pod
    if is_refused(pod):
        return Meaning.REFUSED
    if ended_by(pod) is not None:
        return Meaning.DISRUPTION
    stated = _of_pod_reason(pod.reason)
    if stated is not None:
        return Meaning.DISRUPTION if stated is Meaning.REFUSED else stated
    ends = list(_failures(pod, container))
    return next((end for end in ends if end is not Meaning.DISRUPTION), Meaning.DISRUPTION if ends else Meaning.USER)


def cause_of(pod: Pod, container: str, *, job_uid: str) -> Cause:
    """Return the cause under which the end of a failed pod is counted."""
    ended = next((c for c in pod.containers if c.name == container and c.exit_code), None)
    match of_pod(pod, container):
        case Meaning.USER if ended is not None and not pod.exceeded and was_turned_away(ended.message, job_uid):
            return Cause.DISRUPTION
        case Meaning.DISRUPTION | Meaning.REFUSED:
            return Cause.DISRUPTION
        case Meaning.OUT_OF_MEMORY:
            return Cause.OUT_OF_MEMORY
        case Meaning.USER | Meaning.DONE:
            return Cause.USER


def came_from_outside(code: int, reason: str) -> bool:
    """Return whether its node or a signal ended a container's run, and not its program or its memory limit."""
    meaning = of_container(reason)
    return meaning is Meaning.DISRUPTION or (code in KILLED and meaning is not Meaning.OUT_OF_MEMORY)


def was_turned_away(message: str, job_uid: str) -> bool:
    """Return whether the message says that the agent could not meet the others, although none of its workers had failed."""
    why, _ = delivery.unmet(message, job_uid)
    return why in (delivery.REFUSED, delivery.UNREACHABLE) and not delivery.has_failed(message, job_uid)


def is_refused(pod: Pod) -> bool:
    """Return whether a node refused the pod: it failed, the kubelet says why, and none of its containers ever began."""
    if (
        pod.phase is not PodPhase.FAILED
        or not pod.reason
        or pod.disruption
        or pod.exceeded
        or any(map(_has_begun, (*pod.containers, *pod.inits)))
    ):
        return False
    stated = _of_pod_reason(pod.reason)
    return stated is Meaning.REFUSED or (stated is None and ended_by(pod) is None)


def ended_by(pod: Pod) -> DisruptionSignal | None:
    """Return the signal by which the pod itself says that the cluster ended it."""
    return next((sight.signal for sight in pod.sights if sight.signal.ends_pods), None)


def of_container(reason: str) -> Meaning | None:
    """Return what the reason for the end of one run means; None if the reason is unknown."""
    return _MEANINGS.get((ReasonField.CONTAINER, reason))


def _of_pod_reason(reason: str) -> Meaning | None:
    word = INSUFFICIENT if reason.startswith(INSUFFICIENT) else reason
    return _MEANINGS.get((ReasonField.POD, word))


def _failures(pod: Pod, container: str) -> Iterator[Meaning]:
    """Yield what the ends of the failed containers mean. If the container that trains failed, only its own end counts."""
    failed = [c for c in (*pod.containers, *pod.inits) if c.exit_code]
    own = [c for c in failed if c.name == container]
    for each in own or failed:
        meaning = of_container(each.exit_reason)
        yield Meaning.USER if meaning in (None, Meaning.DONE) else meaning


def _has_begun(container: Container) -> bool:
    return container.exit_code is not None or container.last_exit_code is not None or container.restarts > 0 or not container.waiting
