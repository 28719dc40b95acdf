"""Decide whether the loss of one pod explains why another pod of the job ended by itself.

A node that restarts or goes takes its pods with it. Their peers notice at once and end with an error of their own, seconds before any
kubelet reports the loss. This end is collateral: the pod is replaced and the job is not charged. At our rendezvous and at c10d's store
other modules decide this.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from msgspec import structs

from elastic.api.book import LastLoss
from elastic.api.job import ElasticStatus, Job
from elastic.api.template import default_container
from elastic.api.words import Cause
from elastic.membership.bounds import printable
from elastic.signals.signal import Meaning
from elastic_training.controller.deciding.actions import Plan, SetExpectation
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle import end_reasons, usage_errors
from elastic_training.controller.deciding.lifecycle.verdicts import Fate, Loss, Verdict
from elastic_training.controller.deciding.moments import after
from elastic_training.controller.deciding.rendezvous import host_list
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.controller.deciding.rendezvous.c10d_agents import SKEW, WINDOW
from elastic_training.controller.deciding.replicas.replica_statuses import replica_statuses
from elastic_training.controller.facts.snapshot import Container, Pod, PodPhase
from elastic_training.controller.frameworks import FRAMEWORKS
from elastic_training.controller.frameworks.protocol import total

REPORTED_WITHIN_S = 60.0
"""The cluster shows a loss at most this many seconds after the end that follows from it.

A node that stays silent is no longer Ready after 40 to 50 s, and a node that is not Ready counts as lost at once. A node that is back
sooner reports its containers when its kubelet starts.
"""
LONGEST_WORDS = 300


def losses(view: JobView, verdicts: Sequence[Verdict]) -> tuple[Loss, ...]:
    """Return the losses that can explain how other pods of the job ended."""
    if not _applies(view):
        return ()
    lost = {verdict.pod.uid: verdict for verdict in verdicts if verdict.cause is Cause.DISRUPTION and not verdict.is_refused}
    seen = tuple(loss for pod in view.answerable if (loss := _loss(view, pod, lost.get(pod.uid))) is not None)
    known = view.job.status.elastic.last_loss if view.job.status.elastic is not None else None
    former = (Loss(known.pod, known.uid, known.message, known.at),) if known is not None else ()
    return (*seen, *former)


def explained(view: JobView, verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts; an end that a loss explains is collateral, and its pod is made again."""
    return [_explained(view, verdict) for verdict in verdicts]


def explanation(view: JobView, pod: Pod, container: Container) -> Loss | None:
    """Return the loss of another pod that explains the newest end of this container."""
    end, now = container.ended_at, view.snapshot.now
    if end is None or pod.exceeded or not _may_follow(container):
        return None
    return next((loss for loss in view.losses if loss.uid != pod.uid and abs((loss.at or now) - end) <= WINDOW), None)


def once_certain(view: JobView, failed: Plan, fatal: Sequence[Verdict]) -> Plan:
    """Return the plan by which the job fails because of these pods, or a plan that waits for the loss that their ends may follow from."""
    ends = [_own_end(view.job, verdict.pod) for verdict in fatal]
    if any(end is None or verdict.cause is not Cause.USER for end, verdict in zip(ends, fatal, strict=True)):
        return failed
    return _waited(view, failed, since=min(filter(None, ends)), ended={verdict.pod.uid for verdict in fatal})


def once_exhausted(view: JobView, failed: Plan) -> Plan:
    """Return the plan by which the job fails because its restarts are used up, or a plan that waits for the cause of the newest one."""
    failures = {verdict.pod.uid for verdict in view.verdicts if verdict.cause is Cause.USER}
    pods = [pod for pod in view.answerable if pod.uid in failures or (pod.phase is PodPhase.RUNNING and pod.restarts)]
    ends = [(end, pod.uid) for pod in pods if (end := _own_end(view.job, pod)) is not None]
    if not ends:
        return failed
    newest, uid = max(ends)
    return _waited(view, failed, since=newest, ended={uid})


def _waited(view: JobView, failed: Plan, *, since: datetime, ended: Collection[str]) -> Plan:
    """Return the plan by which the job fails once this end is old enough, and before that a plan that waits.

    Without another pod that still runs, nothing is left to be reported.
    """
    now, certain_at = view.snapshot.now, after(since, REPORTED_WITHIN_S)
    has_peers = any(not (pod.is_over or pod.uid in ended) for pod in view.snapshot.pods)
    # An end that the clock of its node dates far ahead is not waited for.
    if not _applies(view) or not has_peers or not now < certain_at <= after(now, REPORTED_WITHIN_S) + SKEW:
        return failed
    status = structs.replace(view.status, replica_statuses=replica_statuses(view.job, view.counts))
    return Plan(_hosts_told(view), status=status, news=view.news, look_again_at=certain_at)


def _hosts_told(view: JobView) -> tuple[SetExpectation, ...]:
    """Return the news for a job's launcher. It would start a worker again in a pod that has ended, and all others would wait for that."""
    if view.backend is not RendezvousBackend.HOSTS:
        return ()
    leaving = view.status.elastic.leaving if view.status.elastic is not None else ()
    return (host_list.expectation(view, FRAMEWORKS[view.job.kind.name].hosts(view, leaving)),)


def recorded(view: JobView, status: ElasticStatus) -> ElasticStatus:
    """Return the status with the newest loss of a pod, because its peers may end only when nothing else shows it any more."""
    seen = [loss for loss in view.losses if loss.is_end]
    known = status.last_loss
    if not seen or view.restarts_as_a_whole or (known is not None and any(loss.uid == known.uid for loss in seen)):
        return status
    last = seen[-1]
    entry = LastLoss(pod=last.pod, uid=last.uid, message=last.words[:LONGEST_WORDS], at=view.snapshot.now)
    return structs.replace(status, last_loss=entry)


def _applies(view: JobView) -> bool:
    is_watched = view.backend in (RendezvousBackend.NONE, RendezvousBackend.HOSTS)
    return is_watched and total(view.job) > 1


def _explained(view: JobView, verdict: Verdict) -> Verdict:
    if verdict.cause is Cause.DISRUPTION:
        return replace(verdict, why="" if verdict.is_refused else _lost_in_words(verdict))
    if verdict.pod.exceeded:
        return replace(verdict, why=f"{verdict.pod.name} was evicted: {printable(verdict.pod.exceeded).rstrip('. ')}")
    if verdict.cause is not Cause.USER or not _applies(view):
        return verdict
    container = _own(view.job, verdict.pod)
    loss = explanation(view, verdict.pod, container) if container is not None else None
    # A decision stays when nothing shows the loss any more: only pods that are made again are counted.
    is_decided = verdict.fate is not Fate.AGAIN and verdict.pod.uid in view.counted
    if loss is None and not is_decided:
        return verdict
    code = f"exit code {verdict.exit_code}" if verdict.exit_code is not None else "an error"
    why = f"{verdict.pod.name} ended with {code} because {loss.words}" if loss is not None else ""
    return replace(verdict, cause=Cause.COLLATERAL, fate=Fate.AGAIN, why=why)


def _loss(view: JobView, pod: Pod, verdict: Verdict | None) -> Loss | None:
    """Return why this pod counts as lost, if it does."""
    if verdict is not None:
        return Loss(pod.name, pod.uid, _lost_in_words(verdict), _own_end(view.job, pod), is_end=True)
    if pod.is_deleting:
        # Pods that failed by themselves are deleted too, once they are counted.
        is_own_failure = pod.phase is PodPhase.FAILED and pod.uid in view.counted and not _was_disrupted(view.job, pod)
        return None if is_own_failure else Loss(pod.name, pod.uid, f"{pod.name}{_on(pod)} was deleted", is_end=True)
    if pod.is_over:
        return None
    if (notice := view.notices.get(pod.name)) is not None and notice.meaning in (Meaning.GONE, Meaning.LEAVE):
        return Loss(pod.name, pod.uid, f"{pod.name} must leave node {pod.node} ({notice.signal})")
    return _restarted(view.job, pod) or _of_node(view, pod)


def _restarted(job: Job, pod: Pod) -> Loss | None:
    """Return the loss of a container that its node ended and its kubelet has started again."""
    own = _own(job, pod)
    if own is None or own.ended_at is None or end_reasons.of_container(own.last_exit_reason) is not end_reasons.Meaning.DISRUPTION:
        return None
    how = f"(exit code {own.last_exit_code}, {own.last_exit_reason})"
    return Loss(pod.name, pod.uid, f"the container of {pod.name}{_on(pod)} was lost {how}", own.ended_at)


def _of_node(view: JobView, pod: Pod) -> Loss | None:
    """Return the loss of a pod whose node is away, or has just come back."""
    if not pod.node:
        return None
    if not view.snapshot.sees_nodes:
        return Loss(pod.name, pod.uid, f"node {pod.node} of {pod.name} has stopped reporting") if pod.is_unheard else None
    node = view.snapshot.nodes.get(pod.node)
    if node is None or not node.is_ready:
        return Loss(pod.name, pod.uid, f"node {pod.node} of {pod.name} {'is gone' if node is None else 'is not ready'}")
    if node.ready_since is None or pod.created_at is None or pod.created_at >= node.ready_since:
        return None
    return Loss(pod.name, pod.uid, f"node {pod.node} of {pod.name} was not ready", node.ready_since)


def _lost_in_words(verdict: Verdict) -> str:
    pod = verdict.pod
    ended = next((c for c in (*pod.containers, *pod.inits) if c.exit_code), None)
    said = f"exit code {ended.exit_code}, {ended.exit_reason or 'Error'}" if ended is not None else ""
    return f"{pod.name}{_on(pod)} was lost ({pod.disruption or pod.reason or said or 'no reason is given'})"


def _on(pod: Pod) -> str:
    return f" on node {pod.node}" if pod.node else ""


def _was_disrupted(job: Job, pod: Pod) -> bool:
    own = _own(job, pod)
    name = own.name if own is not None else ""
    return end_reasons.cause_of(pod, name, job_uid=job.metadata.uid) is Cause.DISRUPTION


def _may_follow(container: Container) -> bool:
    """Return whether a lost peer can have caused this end. It never causes the end of a wrong command, or one at the memory limit."""
    code, reason = container.exit_code, container.exit_reason
    if code is None:
        code, reason = container.last_exit_code, container.last_exit_reason
    is_own = end_reasons.of_container(reason) in (None, end_reasons.Meaning.USER)
    return bool(code) and is_own and reason in ("", "Error") and not usage_errors.newest_by_log(container)


def _own(job: Job, pod: Pod) -> Container | None:
    """Return the container of this pod that trains."""
    template = next((spec.template for type, spec in job.replicas.items() if type.lower() == pod.type), None)
    name = default_container(template, job.kind).get("name", "") if template is not None else ""
    return next((container for container in pod.containers if container.name == name), None)


def _own_end(job: Job, pod: Pod) -> datetime | None:
    own = _own(job, pod)
    return own.ended_at if own is not None and _may_follow(own) and not pod.exceeded else None
