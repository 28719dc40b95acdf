"""Yield the Events of a job about its pods and templates."""

from collections.abc import Iterator, Mapping, Sequence

from elastic.api.counting import continued, counted, ended_early, killed_late
from elastic.api.errors import shown
from elastic.api.job import ElasticStatus, Job
from elastic.api.kinds import WORKER
from elastic.api.names import REPLICA_INDEX
from elastic.api.template import default_container
from elastic.api.words import FAULT, UNFOLLOWED
from elastic.membership.bounds import printable
from elastic.membership.phases import WorldPhase
from elastic.signals.signal import Meaning
from elastic_training.controller.deciding.actions import JobEvent, normal, warning
from elastic_training.controller.deciding.objects import hpa_trouble
from elastic_training.controller.deciding.rendezvous import etcd
from elastic_training.controller.deciding.replicas.tally import Tally
from elastic_training.controller.facts.settings import Settings
from elastic_training.controller.facts.snapshot import ORDINARY_WAITS, Container, Pod, Snapshot
from elastic_training.controller.frameworks import FRAMEWORKS
from elastic_training.rendezvous.engine.messages.in_place import Rung
from elastic_training.rendezvous.engine.words import tells_of_broken_communication

MOST_REMARKS = 3


def of_pods(job: Job, pods: Sequence[Pod]) -> Iterator[JobEvent]:
    containers = {type.lower(): default_container(spec.template, job.kind).get("name", "") for type, spec in job.replicas.items()}
    # The exit code of a worker that was asked to leave is no news.
    leaving = {entry.uid for entry in job.status.elastic.leaving} if job.status.elastic is not None else set()
    for pod in pods:
        yield from _of_label(pod)
        code = pod.exit_code(containers.get(pod.type, ""))
        if code is not None and pod.uid not in leaving:
            message = f"Pod: {job.metadata.namespace}.{pod.name} exited with code {code}"
            yield normal("ExitedWithCode", message, about=f"{pod.uid}/{pod.restarts}")
        for container in (*pod.stuck_inits, *pod.containers):
            yield from _of_trouble(pod, container, is_told=pod.uid in leaving)
        if pod.unscheduled:
            yield warning("Unschedulable", f"Error pod {pod.name} condition message: {pod.unscheduled}", about=pod.uid)


def of_limits(snapshot: Snapshot) -> Iterator[JobEvent]:
    """Yield the Events about pods that the kubelet evicted because they exceeded a storage limit of their own."""
    for pod in (pod for pod in snapshot.pods if pod.exceeded):
        words = f"pod {pod.name} was evicted because of its own storage limit, which counts as a failure of the job"
        yield warning("StorageLimitExceeded", f"{words}: {printable(pod.exceeded)}", about=pod.uid)


def _of_label(pod: Pod) -> Iterator[JobEvent]:
    """Warn about a changed index label: the pod keeps its index, but its service and users' tools go by the label."""
    if pod.index_label is not None:
        says = f"says {shown(pod.index_label)}" if pod.index_label else "is missing"
        words = f"the label {REPLICA_INDEX} of pod {pod.name} {says}, but the pod has index {pod.index}; set the label to {pod.index}"
        yield warning("PodLabelChanged", words, about=f"{pod.uid}/{pod.index_label}")


def of_strays(pods: Sequence[Pod]) -> Iterator[JobEvent]:
    """Yield Events about pods with this job's labels and names but without an owner. Nothing deletes them, and they block the names."""
    for pod in pods:
        if pod.is_unowned:
            words = f"pod {pod.name} has this job's labels but no owner, so the job does not use it and cannot create a pod of that name"
            yield warning("PodWithoutOwner", f"{words}; delete the pod, or set its ownerReference to the job", about=pod.uid)


def _of_trouble(pod: Pod, container: Container, *, is_told: bool) -> Iterator[JobEvent]:
    """Yield what keeps a pod from working: a wait that may last, or a container that ended with an error.

    The exit code of a finished pod is enough, unless an init container ended it: then the pod has no code.
    """
    if container.waiting and container.waiting not in ORDINARY_WAITS:
        message = f"Error pod {pod.name} container {container.name} waiting message: {container.message}"
        yield warning(container.waiting, message, about=pod.uid)
    elif container.exit_code and not ((pod.is_over and container not in pod.inits) or pod.is_deleting or is_told):
        ended = f"exitCode: {container.exit_code} terminated message: {container.message}"
        yield warning(container.exit_reason or "Error", f"Error pod {pod.name} container {container.name} {ended}", about=pod.uid)


def of_rescale(job: Job, *, known: ElasticStatus, new: ElasticStatus) -> Iterator[JobEvent]:
    """Yield an Event about a group of new members: why it formed, and its id, which logs and status also name.

    The first step of the group is reported later. If training fell back, a second Event says so.
    """
    rescale, former = new.last_rescale, known.last_rescale
    if rescale is None:
        return
    is_new = former is None or former.id != rescale.id
    name, steps = f"{job.kind.title} {job.metadata.name}", continued(rescale.step_before, rescale.step_after, state_lost=rescale.state_lost)
    if rescale.steps_lost and (is_new or former is None or not former.steps_lost):
        yield warning("StepsLost", f"{name} {steps} (rescale {rescale.id})", about=rescale.id)
    if not is_new:
        return
    workers = counted(rescale.to_size, "worker")
    before = f" after {rescale.from_size}" if rescale.from_size else ""
    if rescale.killed:
        words = f"{name}: {killed_late(rescale.killed)}; raise scaleInGraceSeconds (rescale {rescale.id})"
        yield warning("WorkersKilled", words, about=rescale.id)
    if tells_of_broken_communication(rescale.reason) and rescale.rung != Rung.IN_PROCESS:
        words = f"{name}: its workers could not reach each other, though nobody was lost: {rescale.reason} (rescale {rescale.id})"
        yield warning("BrokenCommunication", words, about=rescale.id)
    reached = "" if rescale.step_before is None else f"; it {steps}" if steps else f"; it had reached step {rescale.step_before:,}"
    words = f"{name} trains with {workers}{before}: {rescale.reason} (cause {rescale.cause}, rescale {rescale.id}){reached}"
    yield normal("Rescaled", words, about=rescale.id)


def of_early_end(job: Job, *, known: ElasticStatus, new: ElasticStatus) -> Iterator[JobEvent]:
    """Warn that workers ended with status 0 while others failed: the job may count as complete though its training is not."""
    if new.ended_early and not known.ended_early:
        yield warning("EndedEarly", f"{job.kind.title} {job.metadata.name}: {ended_early(new.ended_early)}", about=job.metadata.uid)


def of_templates(job: Job, settings: Settings) -> Iterator[JobEvent]:
    """Yield warnings about settings of a template that have no effect, because the job decides them."""
    for spec in job.replicas.values():
        if spec.template["spec"].get("restartPolicy"):
            message = "Restart policy in pod template will be overwritten by restart policy in replica spec"
            yield warning(template_reason(job, "RestartPolicy"), message)
    if remark := etcd.remark(job, settings):
        yield warning("EtcdRendezvous", remark)


def of_missing_etcd(words: str) -> Iterator[JobEvent]:
    """Warn that the job waits for an etcd that does not exist."""
    if words:
        yield warning("EtcdRendezvous", words)


def template_reason(job: Job, field: str) -> str:
    """Return the reason of an Event about a field of the template."""
    return f"{FRAMEWORKS[job.kind.name].template_reason}{field}"


def of_shortage(job: Job, counts: Mapping[str, Tally]) -> Iterator[JobEvent]:
    """Warn that a group had formed and cannot go on: too few of its workers are left, and others may take long to come."""
    known = job.status.elastic
    if known is not None and known.world_size >= job.least_workers and shortage(job, counts):
        words = f"{job.kind.title} {job.metadata.name} waits until {counted(job.least_workers, 'worker', 'runs', 'run')}"
        last = known.last_rescale.id if known.last_rescale is not None else ""
        yield warning("BelowMinimum", words, about=f"{known.generation}/{last}")


def shortage(job: Job, counts: Mapping[str, Tally]) -> str:
    """Return how many workers are missing, in words; empty if enough run or some have finished already."""
    workers = counts.get(WORKER, Tally())
    if job.elastic is None or workers.succeeded or workers.active >= job.least_workers:
        return ""
    return f"Waiting for workers: {workers.active} of at least {job.least_workers} running."


def of_signals(job: Job, snapshot: Snapshot) -> Iterator[JobEvent]:
    """Yield the signals of the job's pods and their nodes that ask nothing of anybody."""
    for pod in (pod for pod in snapshot.pods if not pod.is_over):
        node = snapshot.nodes.get(pod.node)
        for sight in (*pod.sights, *(node.sights if node is not None else ())):
            signal, where = sight.signal, f"node {pod.node}" if sight.signal.on.is_of_node else f"pod {pod.name}"
            if signal.meaning is Meaning.INFORM and signal.is_news:
                note = f" ({signal.note})" if signal.note else ""
                words = f"{job.kind.title} {job.metadata.name}: signal {signal.name} on {where}{note}; nothing is done about it."
                yield normal("SignalSeen", words, about=f"{signal.name}/{where}/{sight.since}")


def of_remarks(snapshot: Snapshot) -> Iterator[JobEvent]:
    """Yield the remarks of parse about the spec: fields without effect, counts that were clamped."""
    for remark in snapshot.remarks:
        yield warning("SpecRemark", remark)


def of_membership(snapshot: Snapshot) -> Iterator[JobEvent]:
    """Warn that the members of the job's world are unknown: the job goes on with the last world that was reported."""
    if words := _unknown_members(snapshot):
        yield warning("WorldUnreadable", words)
    if snapshot.world is not None and snapshot.world.fault:
        yield warning("RendezvousFault", snapshot.world.fault)


def _fault(snapshot: Snapshot) -> str:
    fault = snapshot.world.fault if snapshot.world is not None else ""
    return f"{FAULT}{fault}" if fault else ""


def _unknown_members(snapshot: Snapshot) -> str:
    world = snapshot.world
    if world is not None and world.phase == WorldPhase.UNREACHED:
        return f"{UNFOLLOWED}: {world.trouble}"
    trouble = world.trouble if world is not None else ""
    return f"The members of the job's world are unknown: {trouble}" if trouble else ""


def in_words(job: Job, snapshot: Snapshot) -> str:
    """Return the same remarks as the end of a condition's message."""
    found = (etcd.remark(job, snapshot.settings), _unknown_members(snapshot), _fault(snapshot), hpa_trouble.in_words(job, snapshot))
    remarks = [*found, *snapshot.remarks[:MOST_REMARKS]]
    return "".join(f" {remark.rstrip('.')}." for remark in remarks if remark)
