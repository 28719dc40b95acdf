"""Decide whether a job runs and whether it has succeeded: by its leader if it has one, by its workers otherwise."""

from collections.abc import Iterable, Mapping

from elastic.api.job import Job
from elastic.api.kinds import WORKER
from elastic.api.rendezvous_choice import is_chosen_by_command
from elastic.api.words import RestartPolicy
from elastic.membership.phases import WorldPhase
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.controller.deciding.rendezvous.c10d_agents import came_too_late, first_ends, is_down, own_container
from elastic_training.controller.deciding.replicas.tally import Tally
from elastic_training.controller.facts.snapshot import Pod, PodPhase, Snapshot
from elastic_training.controller.frameworks import FRAMEWORKS


def is_running(job: Job, counts: Mapping[str, Tally]) -> bool:
    decides = FRAMEWORKS[job.kind.name].leader_type(job) or WORKER
    return decides in counts and counts[decides].active > 0


def has_succeeded(view: JobView) -> bool:
    job, framework = view.job, FRAMEWORKS[view.job.kind.name]
    own = framework.has_succeeded(job, view.snapshot.pods, view.failed)
    if own is not None:
        return own
    head = framework.leader_type(job)
    decides = head or WORKER
    if decides not in job.replicas:
        return False
    done = view.counts[decides].succeeded
    if head is None and job.elastic is not None and job.kind.native_elastic:
        return not any(_at_work(view)) and (_have_all_gone(job, view.snapshot) or _have_finished(view, done))
    return 0 < job.replicas[decides].replicas <= done


def _have_all_gone(job: Job, snapshot: Snapshot) -> bool:
    """Return whether the world has finished, even if no pod shows that. A worker with the policy Always is never done."""
    return _is_finished(snapshot) and job.replicas[WORKER].restart_policy is not RestartPolicy.ALWAYS


def _is_finished(snapshot: Snapshot) -> bool:
    return snapshot.world is not None and snapshot.world.phase == WorldPhase.FINISHED


def _have_finished(view: JobView, done: int) -> bool:
    """Return whether the workers that ended well complete the job.

    A worker may have ended in the middle of the training while its peers went on. If they are lost, only the rendezvous knows that. If it
    knows nothing any more, the job is complete once as many have ended well as the last world had members.
    """
    known = view.status.elastic
    members = min(view.job.workers, (known.world_size if known is not None else 0) or view.job.workers)
    is_enough = not view.sees_members or members <= done
    return done > 0 and (is_enough or _is_finished(view.snapshot))


def _at_work(view: JobView) -> Iterable[Pod]:
    """Return the pods whose end an elastic job waits for: all that may still do some of its work.

    The job waits neither for a worker that never came or was lost at the end, nor for a worker that comes back when no member is admitted.
    """
    job, snapshot, backend = view.job, view.snapshot, view.backend
    there = [pod for pod in snapshot.pods if pod.type == WORKER.lower() and pod.phase in (PodPhase.RUNNING, PodPhase.UNKNOWN)]
    world = snapshot.world
    if view.sees_members:
        if world is None or world.phase != WorldPhase.FINISHED:
            return there
        return [pod for pod in there if pod.name in world.members and not is_down(own_container(job, pod))]
    assert job.elastic is not None
    if job.elastic.standalone or (backend is RendezvousBackend.NONE and is_chosen_by_command(job)):
        return there  # each for itself, or in a way that only the user knows
    ends = first_ends(job, snapshot.pods)
    return [pod for pod in there if not came_too_late(job, pod, ends.get(pod.group))]
