"""Read from a cluster who serves TrainJobs, and which TrainJobs train."""

from __future__ import annotations

import asyncio

from elastic.api import kinds
from elastic.api.trainer import shipped
from elastic.api.trainer.modes import TRAINER_LEASE, is_ours
from elastic.cli.installing import looking, trainer
from elastic.cli.installing.obstacles import is_managed, replicas
from elastic.cli.installing.trainer import TrainerSeen
from elastic.kube import readable
from elastic.kube.client import Kube
from elastic.kube.following import resource_of
from elastic.kube.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    LEASES,
    TRAIN_JOBS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Object,
    Resource,
)

JOB_SETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", kind="JobSet")
MUTATING_WEBHOOK_CONFIGURATIONS = Resource(
    "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", namespaced=False, kind="MutatingWebhookConfiguration"
)
WEBHOOKS = (VALIDATING_WEBHOOK_CONFIGURATIONS, MUTATING_WEBHOOK_CONFIGURATIONS)
OWNED = tuple(resource_of(kind) for kind in kinds.OWNED)
LONGEST_LEASE_S = 30.0
LOOK_EVERY_S = 0.5


async def seen(kube: Kube) -> TrainerSeen:
    """Return the state of TrainJobs and of Kubeflow Trainer. If a stranger's Lease may have ended, this takes as long as it lasts."""
    if await looking.read(kube, CUSTOM_RESOURCE_DEFINITIONS, trainer.DEFINITIONS[0]) is None:
        return TrainerSeen(deployments=await controllers(kube), webhooks=await webhooks(kube))
    found = await controllers(kube)
    train_jobs = await readable.listed(kube, TRAIN_JOBS)
    jobs = [_named(one, resource) for resource in OWNED for one in await readable.listed(kube, resource)]
    theirs, idle_job_sets = trainer.going_and_idle(train_jobs, [_named(one, JOB_SETS) for one in await readable.listed(kube, JOB_SETS)])
    ours, idle_jobs = trainer.going_and_idle(train_jobs, trainer.lowered(jobs))
    return TrainerSeen(
        deployments=found,
        holders=() if any(map(replicas, found)) else await _holders(kube),
        webhooks=await webhooks(kube),
        version=await version(kube),
        is_defined=True,
        theirs=theirs,
        ours=ours,
        idle_job_sets=idle_job_sets,
        idle_jobs=idle_jobs,
    )


async def until_ended(kube: Kube, timeout_s: float) -> str:
    """Wait until nobody renews Kubeflow Trainer's Lease. Return who still does after this time; empty: nobody."""
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout_s
    while holders := await _holders(kube):
        if loop.time() >= until:
            return holders[0]
    return ""


async def controllers(kube: Kube) -> list[Object]:
    """Return the deployments of Kubeflow Trainer's controller."""
    return [one for one in await readable.listed(kube, DEPLOYMENTS) if trainer.is_controller(one)]


async def webhooks(kube: Kube) -> list[Object]:
    """Return Kubeflow Trainer's webhook configurations."""
    found = [_named(one, resource) for resource in WEBHOOKS for one in await readable.listed(kube, resource)]
    return [one for one in found if trainer.is_theirs(one)]


def _named(item: Object, resource: Resource) -> Object:
    """Return an object of a list with its kind, which entries of a list lack."""
    return item | {"kind": resource.kind, "apiVersion": resource.api_version}


async def version(kube: Kube) -> str:
    """Return the release that Kubeflow Trainer itself names for clients."""
    found = await looking.read(kube, CONFIG_MAPS, "kubeflow-trainer-public", namespace=shipped.NAMESPACE)
    return "" if found is None or is_managed(found) else str((found.get("data") or {}).get("kubeflow_trainer_version", ""))


async def leases(kube: Kube) -> dict[str, Object]:
    """Return the Leases of Kubeflow Trainer's name that a process of others holds, by namespace."""
    found = {one["metadata"]["namespace"]: one for one in await readable.listed(kube, LEASES) if one["metadata"]["name"] == TRAINER_LEASE}
    return {namespace: one for namespace, one in found.items() if (holder := holder_of(one)) and not is_ours(holder)}


def holder_of(lease: Object) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


async def _holders(kube: Kube) -> list[str]:
    """Return who renews such a Lease while we look. A process that ended leaves its name there, and clocks of two hosts may differ."""
    first = await leases(kube)
    durations = [float((one.get("spec") or {}).get("leaseDurationSeconds") or 1) for one in first.values()]
    loop = asyncio.get_running_loop()
    until = loop.time() + min(max(durations, default=0.0), LONGEST_LEASE_S)
    while first and loop.time() < until:
        await asyncio.sleep(LOOK_EVERY_S)
        now = await leases(kube)
        if renewed := [
            f"{namespace}: {holder_of(one)}" for namespace, one in now.items() if _renewed(one) != _renewed(first.get(namespace))
        ]:
            return renewed
    return []


def _renewed(lease: Object | None) -> object:
    return ((lease or {}).get("spec") or {}).get("renewTime")
