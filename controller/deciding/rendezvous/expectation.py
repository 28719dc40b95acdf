"""Decide what the rendezvous server must know of a job.

The server needs the members, those of them that leave, the ends of containers, and the limits of restarts. It decides about ranks and
rounds itself.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from elastic.api.book import MOST_MEMBERS, Leaving
from elastic.api.job import ElasticStatus, Job
from elastic.api.words import Cause, Stragglers
from elastic_training.controller.deciding.actions import End, SetExpectation
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle import end_reasons, restart_accounting
from elastic_training.controller.deciding.lifecycle.stored_restarts import log_of
from elastic_training.controller.deciding.lifecycle.verdicts import Verdict
from elastic_training.controller.deciding.rendezvous import lost_state
from elastic_training.controller.deciding.rendezvous.deadlines import waits_for_replacement
from elastic_training.controller.facts.snapshot import Pod, PodPhase
from elastic_training.rendezvous.delivery import USAGE, is_undeliverable, unmet


def expectation(view: JobView, *, staying: Sequence[Pod], coming: Collection[str], leaving: Sequence[Leaving]) -> SetExpectation:
    """Return the whole expectation.

    Its members are the pods that stay and the names of the pods to come. `pending` are members that do not run yet; `newcomers` are members
    that have not been Ready in a world yet, whether they stay or leave.
    """
    job, snapshot = view.job, view.snapshot
    assert job.elastic is not None
    policy, known = job.elastic, job.status.elastic or ElasticStatus()
    # A worker that must leave may have to pass on its state first, so it needs room in addition to all others.
    extra = 1 if any(entry.cause == Cause.DISRUPTION.value for entry in leaving) else 0
    least, most = job.least_workers, min(max(job.most_workers, len(staying) + len(coming) + extra), MOST_MEMBERS)
    going = {entry.uid for entry in leaving}
    outgoing = [pod for pod in snapshot.pods if pod.uid in going]
    failed = [pod for pod in snapshot.pods if pod.phase is PodPhase.FAILED and not pod.is_deleting and pod.uid not in going]
    return SetExpectation(
        members=tuple(sorted({pod.name for pod in staying} | set(coming))),
        pending=tuple(sorted({pod.name for pod in staying if pod.phase is not PodPhase.RUNNING} | set(coming))),
        leaving=tuple(leaving),
        ended=tuple(end for pod in (*staying, *failed) if (end := _uncounted_end(view, pod)) is not None),
        finished=tuple(sorted(pod.name for pod in staying if pod.phase is PodPhase.SUCCEEDED)),
        least=least,
        most=most,
        sizes=allowed_sizes(job, most=most),
        budget=replace(restart_accounting.budget_of(policy), pace_s=_window_s(view)),
        restarts=tuple(sorted(known.restarts.items())),
        grace_s=float(policy.scale_in_grace_seconds),
        floor=max(known.generation, snapshot.world.generation if snapshot.world else 0),
        term=snapshot.term,
        unsettled=log_of(known).unsettled,
        settled_to=known.generation,
        closed=known.closed,
        charged=known.charged,
        fruitless=known.fruitless,
        step=known.step,
        newcomers=tuple(sorted(pod.name for pod in (*staying, *outgoing) if pod.in_world is not None and not pod.in_world.is_true)),
        when_replaced=frozenset(entry.member for entry in leaving if waits_for_replacement(view, entry)),
        state_s=float(policy.ready_after_seconds),
        awaited=lost_state.awaited(view),
        await_s=lost_state.await_s(job),
    )


def allowed_sizes(job: Job, *, most: int) -> tuple[int, ...]:
    """Return the only sizes that a world of at most `most` members may have; empty if it may have any."""
    assert job.elastic is not None
    least, step = job.least_workers, job.elastic.size_step
    allowed = job.elastic.allowed_sizes
    if allowed:
        return tuple(n for n in allowed if n <= MOST_MEMBERS) or allowed
    return tuple(n for n in range(least, most + 1) if step and n % step == 0)


def _window_s(view: JobView) -> float:
    """Return over how many seconds ranks measure their steps; 0 if nobody wants to know of stragglers."""
    assert view.job.elastic is not None
    return 0.0 if view.job.elastic.stragglers is Stragglers.IGNORE else view.snapshot.settings.pace_window_s


def _uncounted_end(view: JobView, pod: Pod) -> End | None:
    """Return the newest end of the worker's container with an error, until the server has confirmed that it counted it."""
    end = _end_of(view.job, pod)
    return None if end is None or end.id in view.counted else end


def _end_of(job: Job, pod: Pod) -> End | None:
    container = next((c for c in pod.containers if c.name == job.kind.container), None)
    if container is None or end_reasons.cause_of(pod, container.name, job_uid=job.metadata.uid) is Cause.DISRUPTION:
        return None
    code, reason, message, run = container.exit_code, container.exit_reason, container.message, container.restarts
    if code is None:
        code, reason, message, run = container.last_exit_code, container.last_exit_reason, container.last_message, container.restarts - 1
    if pod.exceeded and pod.phase is PodPhase.FAILED:
        return End(pod.name, pod.uid, max(0, container.restarts), Cause.USER, is_last=True, own_limit=True)
    if not code or is_undeliverable({"exitCode": code, "message": message}, job.metadata.uid):
        return None
    cause = Cause.OUT_OF_MEMORY if end_reasons.of_container(reason) is end_reasons.Meaning.OUT_OF_MEMORY else Cause.USER
    if end_reasons.came_from_outside(code, reason) or end_reasons.was_turned_away(message, job.metadata.uid):
        cause = Cause.DISRUPTION  # confirms what the server saw (a broken connection or a goodbye), and counts nothing by itself
    is_usage = cause is Cause.USER and unmet(message, job.metadata.uid)[0] == USAGE
    return End(pod.name, pod.uid, max(0, run), cause, is_last=pod.phase is PodPhase.FAILED, usage_error=is_usage)


def accounted(view: JobView, verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts on pods whose ends the server has taken into account, if the server counts them."""
    explained = frozenset(view.snapshot.world.explained if view.snapshot.world is not None else ())

    def is_accounted(end: End | None) -> bool:
        return end is None or end.cause is Cause.DISRUPTION or end.id in explained

    return [verdict for verdict in verdicts if is_accounted(_uncounted_end(view, verdict.pod))]
