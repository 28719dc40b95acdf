"""Decide on the pod group of a job for a gang scheduler: how many pods must fit at once, and how many resources they need.

An elastic job needs room only for its minimum number of workers. The others come when there is room.
"""

from collections.abc import Iterator

from elastic.api.job import Job, Object, SchedulingPolicy
from elastic.api.kinds import WORKER
from elastic.membership.bounds import printable
from elastic_training.controller.deciding.actions import JobEvent, Plan, warning
from elastic_training.controller.deciding.events import template_reason
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle.conditions import WAITS, with_words_at_end
from elastic_training.controller.deciding.lifecycle.initializing import waits
from elastic_training.controller.deciding.objects import quantities
from elastic_training.controller.deciding.objects.differences import reconciled
from elastic_training.controller.deciding.objects.ownership import owned_metadata
from elastic_training.controller.facts.settings import Settings
from elastic_training.controller.facts.snapshot import Snapshot

VOLCANO = "volcano"
GROUP_ANNOTATION, TASK_ANNOTATION = "scheduling.k8s.io/group-name", "volcano.sh/task-spec"
GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
BEFORE_ADMISSION = ("", "Pending")
LONGEST_REASON = 300


def pod_group(job: Job, snapshot: Snapshot) -> Iterator[Object]:
    settings = snapshot.settings
    if not settings.gang_scheduler:
        return
    policy = job.run_policy.scheduling_policy or SchedulingPolicy()
    spec: Object = {"minMember": _least_pods(job, policy)}
    resources = policy.min_resources if policy.min_resources is not None else _resources(job, spec["minMember"])
    metadata = owned_metadata(job, job.metadata.name)
    if job.metadata.annotations:
        metadata["annotations"] = dict(job.metadata.annotations)
    if settings.gang_scheduler == VOLCANO:
        spec |= {"minResources": resources, "queue": _queue(job, snapshot) or policy.queue or "default"}
        if policy.priority_class:
            spec["priorityClassName"] = policy.priority_class
        yield {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": metadata, "spec": spec}
        return
    if resources:
        spec["minResources"] = resources
    if policy.schedule_timeout_seconds is not None:
        spec["scheduleTimeoutSeconds"] = policy.schedule_timeout_seconds
    yield {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": metadata, "spec": spec}


def _queue(job: Job, snapshot: Snapshot) -> str:
    """Return the queue that the group is in already, because changing it back would lose the group's turn."""
    group = snapshot.find("PodGroup", job.metadata.name)
    return str((group.raw.get("spec") or {}).get("queue") or "") if group is not None else ""


def wait_for_gang(view: JobView) -> Plan | None:
    """Return a plan that makes only the pod group, until the gang scheduler has admitted the group."""
    if not _is_waiting(view.job, view.snapshot):
        return None
    status = with_words_at_end(view.status, _wait_in_words(view), now=view.snapshot.now)
    return Plan(tuple(reconciled(view.snapshot, list(pod_group(view.job, view.snapshot)), managed=())), status)


def _wait_in_words(view: JobView) -> str:
    """Return the words to add to the message of a condition, with the reason from Volcano's condition of the group."""
    group = view.snapshot.find("PodGroup", view.job.metadata.name)
    if group is None:
        return ""
    conditions = (group.raw.get("status") or {}).get("conditions") or ()
    reasons = (
        c.get("message") or c.get("reason") or ""
        for c in reversed(conditions)
        if c.get("type") == "Unschedulable" and c.get("status") == "True"
    )
    reason = printable(str(next(reasons, "")))[:LONGEST_REASON].rstrip(".")
    queue = (group.raw.get("spec") or {}).get("queue") or "default"
    return f"{WAITS}for Volcano to admit its PodGroup {group.name} to queue {queue}{': ' if reason else ''}{reason}."


def _is_waiting(job: Job, snapshot: Snapshot) -> bool:
    """Return whether Volcano has yet to admit the group, before its pods are made."""
    if snapshot.settings.gang_scheduler != VOLCANO or snapshot.pods or waits(job):
        return False
    group = snapshot.find("PodGroup", job.metadata.name)
    return group is None or (group.raw.get("status") or {}).get("phase", "") in BEFORE_ADMISSION


def with_group(job: Job, pod: Object, type: str, settings: Settings) -> Object:
    """Tie a pod to its group, and keep a scheduler that the user chose."""
    if not settings.gang_scheduler:
        return pod
    if not pod["spec"].get("schedulerName"):
        pod["spec"]["schedulerName"] = settings.gang_scheduler
    metadata = pod["metadata"]
    if settings.gang_scheduler == VOLCANO:
        ties = {GROUP_ANNOTATION: job.metadata.name, TASK_ANNOTATION: type.lower()}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **ties}
    else:
        metadata["labels"] = {**metadata["labels"], GROUP_LABEL: job.metadata.name}
    return pod


def of_schedulers(job: Job, settings: Settings) -> Iterator[JobEvent]:
    names = {spec.template["spec"].get("schedulerName") for spec in job.replicas.values()}
    if settings.gang_scheduler and names - {None, "", settings.gang_scheduler}:
        message = "Another scheduler is specified when gang-scheduling is enabled and it will not be overwritten"
        yield warning(template_reason(job, "SchedulerName"), message)


def _least_pods(job: Job, policy: SchedulingPolicy) -> int:
    if policy.min_available is not None:
        return policy.min_available
    others = sum(spec.replicas for type, spec in job.replicas.items() if type != WORKER)
    workers = job.workers
    if job.elastic is not None and job.elastic.min_replicas is not None:
        workers = min(workers, job.elastic.min_replicas)
    return others + workers


def _resources(job: Job, pods: int) -> dict[str, str]:
    """Return what the first `pods` pods request, or their limits if they have no requests. Init containers do not count."""
    wanted: list[dict[str, int | str]] = []
    for spec in job.replicas.values():
        for _ in range(min(spec.replicas, pods - len(wanted))):
            wanted.append(quantities.added(_asked(c) for c in spec.template["spec"]["containers"]))
    return {name: str(value) for name, value in quantities.added(wanted).items()}


def _asked(container: Object) -> dict[str, int | str]:
    resources = container.get("resources") or {}
    return {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
