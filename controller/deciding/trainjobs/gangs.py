"""Turn a runtime's podGroupPolicy into the schedulingPolicy of our jobs. The controller makes pod groups for the scheduler of its flag."""

from collections.abc import Iterator, Mapping
from typing import Any

from elastic.api.errors import Path, Problem
from elastic.api.job import Object
from elastic.api.trainer.runtime import PodGroupPolicy
from elastic_training.controller.deciding.objects.pod_group import VOLCANO

QUEUE = "scheduling.volcano.sh/queue-name"
"""Annotation of the template of a runtime's JobSet, or of a patch of it: the queue of Volcano."""
FLAG = "--gang-scheduler-name"


def problems(policy: PodGroupPolicy | None, annotations: Mapping[str, str], at: Path, *, scheduler: str | None) -> Iterator[Problem]:
    """Yield why the policy cannot be carried out. `scheduler` is the value of the controller's flag, or None if it is not known."""
    if policy is None:
        return
    if policy.coscheduling is not None and policy.volcano is not None:
        yield Problem(at, "coscheduling and volcano are both set; set one")
    elif policy.volcano is not None:
        if scheduler is not None and scheduler != VOLCANO:
            yield Problem((*at, "volcano"), f"the controller runs without {FLAG} {VOLCANO}; start it with this flag, or remove volcano")
        if policy.volcano.network_topology is not None:
            mode, tier = policy.volcano.network_topology.mode, policy.volcano.network_topology.highest_tier_allowed
            found = f"networkTopology is set (mode {mode}{f', tier {tier}' if tier is not None else ''})"
            message = f"{found}, but pod groups here have none; remove it, or select nodes by nodeSelector or affinity"
            yield Problem((*at, "volcano", "networkTopology"), message)
        if annotations.get(QUEUE) == "":
            yield Problem((*at[:-1], "template", "metadata", "annotations", QUEUE), "Volcano queue name must not be empty")
    elif policy.coscheduling is not None and scheduler in ("", VOLCANO):
        message = f"the controller runs without {FLAG} of a scheduler with the plugin Coscheduling; set it, or remove coscheduling"
        yield Problem((*at, "coscheduling"), message)


def scheduling_policy(policy: PodGroupPolicy | None, annotations: Mapping[str, str], pod: Mapping[str, Any]) -> Object | None:
    """Return the schedulingPolicy of a job with these pods. The size of the group follows from the job."""
    if policy is None:
        return None
    if policy.coscheduling is not None:
        timeout_s = policy.coscheduling.schedule_timeout_seconds
        return {} if timeout_s is None else {"scheduleTimeoutSeconds": timeout_s}
    found = {"queue": annotations.get(QUEUE), "priorityClass": (pod.get("spec") or {}).get("priorityClassName")}
    return {key: value for key, value in found.items() if value} if policy.volcano is not None else None
