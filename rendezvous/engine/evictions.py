"""Find evictions that made peers fail, so that the eviction and not the failures count as the cause.

Peers of an evicted worker fail because their connections break. The controller may report the eviction before the worker's agent does.
"""

from __future__ import annotations

from .handlers.leaving_world import with_loss
from .state.accounting import Loss
from .state.job import JobState
from .values import replace
from .words import Cause


def taken_away(job: JobState) -> JobState:
    """Return the job whose failed world, as the controller has said by now, loses a member to the cluster.

    It must leave, or its pod is gone. A failure that this member reported is part of its end. Bound: a crash that an eviction follows
    before the next world is formed is not charged.
    """
    group = job.membership
    world = group.world
    if not job.accounting.failures or world is None or group.expectation is None:
        return job
    leaving = {name: notice.cause for name, notice in group.notices.items() if notice.cause != Cause.PLAN and name in world.ranks}
    without_pod = [name for name in world.ranks if name not in group.expected and name not in group.notices]
    for name, cause in (leaving | dict.fromkeys(without_pod, Cause.DISRUPTION.value)).items():
        known, member = job.accounting, group.members.get(name)
        pod = member.pod if member is not None else next((failure.pod for failure in known.failures if failure.member == name), "")
        if pod and not any(loss.member == name for loss in known.losses):
            others = tuple(failure for failure in known.failures if failure.member != name)
            job = replace(job, accounting=replace(known, failures=others))
            job = with_loss(job, Loss(name, pod, cause, f"{name} had to leave ({cause})"))
    return job
