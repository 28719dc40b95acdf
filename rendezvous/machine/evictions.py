"""Peers of an evicted worker fail because their connections break, and the controller may speak of the eviction before its agent does.
Finds such departures, so that they and not the failures count as the cause.
"""

from dataclasses import replace

from rendezvous.machine.event_handlers import pod_of
from rendezvous.machine.restart_budget import with_loss
from rendezvous.machine.state import Cause, Job, Loss


def taken_away(job: Job) -> Job:
    """The job whose world has failed and which, as the controller has said by now, loses a member to the cluster: it must leave, or its pod
    is gone. A failure that this member reported is part of its end. Bound: a crash that an eviction follows before the next world is formed
    is not charged.
    """
    world = job.world
    if not job.failures or world is None or job.expectation is None:
        return job
    must_leave = {name: notice.cause for name, notice in job.notices.items() if notice.cause != Cause.PLAN and name in world.ranks}
    without_pod = [name for name in world.ranks if name not in job.expected and name not in job.notices]
    for name, cause in (must_leave | dict.fromkeys(without_pod, Cause.DISRUPTION.value)).items():
        member = job.members.get(name)
        pod = pod_of(member) if member is not None else next((failure.pod for failure in job.failures if failure.member == name), "")
        if pod and not any(loss.member == name for loss in job.losses):
            job = replace(job, failures=tuple(failure for failure in job.failures if failure.member != name))
            job = with_loss(job, Loss(name, pod, cause, f"{name} had to leave ({cause})"))
    return job
