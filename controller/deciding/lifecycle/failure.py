"""Decide what a failed pod means: who caused it, whether it counts against the job, and whether the job goes on.

A disruption counts against `restartBudget.disruption` and `maxRestartsWithoutProgress`, never against maxRestarts. The controller creates
the pod again under any restart policy.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from elastic.api.book import MOST_TIMES
from elastic.api.job import ElasticStatus, Job
from elastic.api.kinds import WORKER
from elastic.api.template import default_container
from elastic.api.words import CHARGED, Cause, RdzvBackend, RestartPolicy
from elastic_training.controller.deciding.actions import JobEvent, warning
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle import collateral, counted_runs, end_reasons, restart_accounting, usage_errors
from elastic_training.controller.deciding.lifecycle.conditions import reason_of
from elastic_training.controller.deciding.lifecycle.counted_runs import Runs
from elastic_training.controller.deciding.lifecycle.restart_accounting import uid_of
from elastic_training.controller.deciding.lifecycle.verdicts import FIRST_RETRYABLE_CODE, Fate, Verdict
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.controller.deciding.rendezvous.c10d_agents import own_container
from elastic_training.controller.deciding.rendezvous.expectation import accounted
from elastic_training.controller.deciding.status_room import with_counted
from elastic_training.controller.facts.snapshot import Container, Pod, PodPhase
from elastic_training.controller.frameworks import FRAMEWORKS

REMEMBERED = 32
"""Number of ended pods to remember after they are deleted, because a controller with an outdated view may see such a pod again."""


def judge(job: Job, pods: Sequence[Pod]) -> list[Verdict]:
    """Return a verdict on each failed pod, except pods that are being deleted and workers that were leaving."""
    types = {type.lower(): type for type in job.replicas}
    leaving = {entry.uid for entry in job.status.elastic.leaving} if job.status.elastic is not None else set()
    failed = [p for p in pods if p.phase is PodPhase.FAILED and not p.is_deleting and p.type in types and p.uid not in leaving]
    verdicts = [_verdict(job, types[pod.type], pod) for pod in failed]
    return [_intolerable(v) for v in verdicts] if _are_all_over(job, pods, verdicts) else verdicts


def _verdict(job: Job, type: str, pod: Pod) -> Verdict:
    spec = job.replicas[type]
    container = default_container(spec.template, job.kind).get("name", "")
    code = pod.exit_code(container)
    cause = end_reasons.cause_of(pod, container, job_uid=job.metadata.uid)
    fate = Fate.AGAIN
    is_for_good = spec.restart_policy is RestartPolicy.NEVER or (spec.restart_policy is RestartPolicy.EXIT_CODE and _is_permanent(code))
    if is_for_good and cause is not Cause.DISRUPTION:
        fate = Fate.STAYS if FRAMEWORKS[job.kind.name].tolerates(job, type) else Fate.FATAL
    return Verdict(pod, type, cause, fate, code, end_reasons.is_refused(pod))


def _are_all_over(job: Job, pods: Sequence[Pod], verdicts: Sequence[Verdict]) -> bool:
    """Return whether the job ends with its workers, and every worker has succeeded or has failed without a further try."""
    done = sum(p.phase is PodPhase.SUCCEEDED and not p.is_deleting and p.type == WORKER.lower() for p in pods)
    failed = sum(v.fate is Fate.STAYS and v.type == WORKER for v in verdicts)
    return FRAMEWORKS[job.kind.name].leader_type(job) is None and job.workers <= done + failed


def _intolerable(verdict: Verdict) -> Verdict:
    return dataclasses.replace(verdict, fate=Fate.FATAL) if verdict.fate is Fate.STAYS else verdict


def _is_permanent(code: int | None) -> bool:
    """Return whether the program itself chose to fail, which an exit code below 128 shows. Without a code, the pod is tried again."""
    return code is not None and code < FIRST_RETRYABLE_CODE


def with_ends_counted(view: JobView) -> ElasticStatus:
    """Return the status with the failures that are new in this snapshot, and with their dates."""
    verdicts = accounted(view, view.verdicts) if view.sees_members else view.verdicts
    status = _with_ends(view, verdicts)
    return restart_accounting.dated(view.job, known=view.status.elastic or ElasticStatus(), new=status, now=view.snapshot.now)


def _with_ends(view: JobView, verdicts: Sequence[Verdict]) -> ElasticStatus:
    """Count the failures by cause, and remember the uids of the counted pods so that no failure is counted twice.

    With the backend elastic, the rendezvous server counts instead. It also sees failures that cost no pod, and knows which failures follow
    from another failure.
    """
    job, pods = view.job, view.snapshot.pods
    known, there = view.status.elastic or ElasticStatus(), {pod.uid for pod in pods}
    already = set(known.counted)
    gone = [entry for entry in known.counted if uid_of(entry) not in there]
    forgotten = set(gone[: max(0, len(gone) - REMEMBERED)])
    before = [entry for entry in known.counted if entry not in forgotten]
    ended = {v.pod.uid: v.cause for v in verdicts if v.fate is Fate.AGAIN and v.pod.uid not in already}
    # If the status has no room for a failure, count it in a later reconcile. The pod stays until then, because only counted pods are
    # deleted.
    with_pods = with_counted(before, ended)
    if view.sees_members:
        return replace(known, counted=with_pods)
    disrupted = counted_runs.uncounted(_disrupted_runs(job, pods), with_pods)
    misused = counted_runs.uncounted(_misused_runs(view), with_pods)
    followed = counted_runs.uncounted(_collateral_runs(view), with_pods)
    counted = counted_runs.with_runs(with_pods, (*disrupted, *misused, *followed))
    left = {run.pod for run in counted_runs.uncounted((*disrupted, *misused, *followed), counted)}
    causes = [ended[uid] for uid in with_pods[len(before) :]] + [Cause.DISRUPTION] * len({run.pod for run in disrupted} - left)
    causes += [Cause.USER] * len({run.pod for run in misused} - left)
    causes += [Cause.COLLATERAL] * len({run.pod for run in followed} - left)
    restarts = Counter(known.restarts) + Counter(cause.value for cause in causes)
    own = sum(cause not in (Cause.PLAN, Cause.COLLATERAL) for cause in causes)
    known = restart_accounting.with_more_restarts(known, min(own, 1) if view.restarts_as_a_whole else own)
    return replace(known, restarts={cause: min(count, MOST_TIMES) for cause, count in restarts.items()}, counted=counted)


def restart_event(job: Job, verdict: Verdict) -> JobEvent:
    """Return the Event about a failed pod that is created again. If the verdict has a reason, such as a lost node, the Event names it."""
    message = f"job {job.metadata.name} is restarting because {verdict.type} replica(s) failed{': ' if verdict.why else ''}{verdict.why}."
    return warning(reason_of(job, "Restarting"), message, about=verdict.pod.uid)


def by_exit_code(job: Job, verdict: Verdict) -> bool:
    return job.replicas[verdict.type].restart_policy is RestartPolicy.EXIT_CODE


def _disrupted_runs(job: Job, pods: Sequence[Pod]) -> Iterator[Runs]:
    """Yield the newest finished run of each restarted container if the node, and not the program, ended that run."""
    names = {type.lower(): default_container(spec.template, job.kind).get("name", "") for type, spec in job.replicas.items()}
    for pod in pods:
        for container in (*pod.inits, *(c for c in pod.containers if c.name == names.get(pod.type, ""))):
            if container.restarts and end_reasons.of_container(container.last_exit_reason) is end_reasons.Meaning.DISRUPTION:
                yield Runs(pod.uid, container.name, container.restarts - 1, 1)


def _collateral_runs(view: JobView) -> Iterator[Runs]:
    """Yield the newest finished run of each restarted container if the loss of another pod ended that run."""
    for pod in view.answerable if view.losses else ():
        type = next((type for type in view.job.replicas if type.lower() == pod.type), None)
        name = default_container(view.job.replicas[type].template, view.job.kind).get("name", "") if type is not None else ""
        for container in (c for c in pod.containers if c.name == name and c.restarts and pod.phase is PodPhase.RUNNING):
            if collateral.explanation(view, pod, container) is not None:
                yield Runs(pod.uid, container.name, container.restarts - 1, 1)


def _misused_runs(view: JobView) -> Iterator[Runs]:
    """Yield the newest finished run of each restarted container whose command is wrong, for jobs with the backend c10d.

    torchrun's agent never counts such a failure.
    """
    if view.backend is not RendezvousBackend.STORE:
        return
    for pod in view.answerable:
        container = own_container(view.job, pod)
        if container is not None and container.restarts and usage_errors.by_log(container.last_exit_code, container.last_message):
            yield Runs(pod.uid, container.name, container.restarts - 1, 1)


def spent(job: Job, pods: Sequence[Pod], counted: ElasticStatus) -> int:
    """Return how many restarts count against backoffLimit.

    These are failures that cost a pod and, in running pods, restarts of the training container and of init containers. Restarts of other
    containers do not count.
    """
    ended = sum(number for cause, number in counted.restarts.items() if cause in CHARGED)
    restarting = {type.lower(): spec for type, spec in job.replicas.items() if spec.restart_policy is not RestartPolicy.NEVER}
    names = {type: default_container(spec.template, job.kind).get("name", "") for type, spec in restarting.items()}
    running = [pod for pod in pods if pod.phase is PodPhase.RUNNING and pod.type in names]
    if job.status.elastic is not None and job.status.elastic.backend == RdzvBackend.ELASTIC.value:
        # The rendezvous server has counted these restarts, too, except the failures of workers that never joined.
        own = [pod for pod in running if not any(_is_free(c, job.metadata.uid) for c in pod.containers)]
        return max(ended, sum(pod.restarts_of(names[pod.type]) for pod in own))
    excused = counted_runs.number_by_pod(counted.counted)
    # For these pods the status had no room for the newest run, and perhaps for earlier runs.
    unknown = {run.pod for run in counted_runs.uncounted(_disrupted_runs(job, running), counted.counted)}
    return ended + sum(max(0, pod.restarts_of(names[pod.type]) - excused[pod.uid]) for pod in running if pod.uid not in unknown)


def _is_free(container: Container, job_uid: str) -> bool:
    code, reason = container.last_exit_code or 0, container.last_exit_reason
    return end_reasons.came_from_outside(code, reason) or end_reasons.was_turned_away(container.last_message, job_uid)


def is_exhausted(limit: int | None, used: int) -> bool:
    """Return whether the limit is reached. As in upstream, a limit of n ends the job at the n-th restart, and 0 at the first restart."""
    return limit is not None and used >= max(limit, 1)
