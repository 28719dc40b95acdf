"""Decide what the rendezvous server must know of a job whose launcher finds its hosts there, and what the status says of it.

The server decides which hosts are on the list (rendezvous.hosts), because launchers tell it on which hosts they can run commands.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from elastic.api.book import Leaving, Rescale
from elastic.api.counting import counted
from elastic.api.job import ElasticStatus
from elastic.api.kinds import WORKER
from elastic.api.words import Cause
from elastic.membership.hosts import MAX_HOSTS, Host, HostFacts, Observed
from elastic_training.controller.deciding.actions import Budget, SetExpectation
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.facts.snapshot import Pod, PodPhase


def expectation(view: JobView, hosts: Sequence[Host]) -> SetExpectation:
    """Return an expectation of hosts and no members."""
    policy, least = view.job.elastic, view.job.least_workers
    assert policy is not None
    wanted = min(MAX_HOSTS, view.job.workers + sum(host.is_local for host in hosts))
    return SetExpectation(
        members=(),
        pending=(),
        leaving=(),
        ended=(),
        least=max(1, least),
        most=max(1, least, view.job.most_workers),
        sizes=(),
        budget=Budget(),
        restarts=(),
        grace_s=float(policy.scale_in_grace_seconds),
        floor=0,
        term=view.snapshot.term,
        hosts=HostFacts(hosts=tuple(hosts), least=max(1, least), wanted=wanted),
    )


def may_have_workers(pod: Pod) -> bool:
    """Return whether the launcher has a worker in the pod or can start one."""
    return pod.phase is PodPhase.RUNNING and all(container.exit_code is None and not container.waiting for container in pod.containers)


def recorded(view: JobView, known: ElasticStatus, *, leaving: Sequence[Leaving]) -> ElasticStatus:
    """Return the status with the leaving workers, the number of working hosts, and the reason of its change."""
    status = replace(known, leaving=tuple(leaving))
    hosts = view.snapshot.world.hosts if view.snapshot.world is not None else None
    if hosts is None:
        return status
    status = replace(status, observed=hosts.observed)
    if hosts.observed != Observed.DRIVER:
        return replace(status, world_size=len(hosts.listed))
    size = len(hosts.working)
    if size == status.world_size:
        return status
    generation = status.generation + 1
    rescale = Rescale(
        id=f"hosts-{generation}",
        cause=_cause(view, leaving, is_less=size < status.world_size).value,
        reason=f"workers run on {counted(size, 'host')}",
        at=view.snapshot.now,
        from_size=status.world_size,
        to_size=size,
    )
    return replace(status, generation=generation, world_size=size, last_rescale=rescale)


def _cause(view: JobView, leaving: Sequence[Leaving], *, is_less: bool) -> Cause:
    """Fewer hosts than the job should have, and nobody whom we asked to leave: something else took one."""
    is_planned = any(entry.cause == Cause.PLAN.value for entry in leaving)
    workers = sum(pod.type == WORKER.lower() and pod.is_active for pod in view.snapshot.pods)
    return Cause.DISRUPTION if is_less and not is_planned and workers < view.job.workers else Cause.PLAN
