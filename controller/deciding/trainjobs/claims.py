"""Carry out a runtime's volumeClaimPolicies as a JobSet does: claims of its TrainJob, which all pods share that mount them."""

from collections.abc import Iterator, Sequence
from typing import Any

from elastic.api.errors import Path, Problem, shown
from elastic.api.job import Object
from elastic.api.names import DNS_1123_SUBDOMAIN, LONGEST
from elastic.api.trainer.runtime import ReplicatedJob, VolumeClaim, VolumeClaimPolicy
from elastic_training.controller.deciding.trainjobs.nodes import JOB_SET

CLAIM = "PersistentVolumeClaim"
FIELDS = ("labels", "annotations")


def problems(train_job: str, policies: Sequence[VolumeClaimPolicy], jobs: Sequence[ReplicatedJob], at: Path) -> Iterator[Problem]:
    """Yield what a JobSet refuses. `at` is the place of the policies."""
    seen: set[str] = set()
    pods = [job.template.spec.template for job in jobs if job.template.spec is not None]
    for number, place, claim in _templates(policies):
        here, name = (*at, number, "templates", place, "metadata", "name"), _name(claim)
        if name in seen:
            yield Problem(here, f"name is {shown(name)}, as that of another template; names must be unique")
        elif DNS_1123_SUBDOMAIN.match(name) is None or len(_full(name, train_job)) > LONGEST:
            yield Problem(
                here, f"name is {shown(name)}; the claim {_full(name, train_job)} needs a DNS name of at most {LONGEST} characters"
            )
        if any(volume.get("name") == name for pod in pods for volume in (pod.get("spec") or {}).get("volumes") or ()):
            yield Problem(here, f"name is {shown(name)}, as that of a volume of a pod; rename one")
        if not any(_is_mounted(pod, name) for pod in pods):
            yield Problem(here, f"name is {shown(name)}, and no container has a volumeMount of this name; add one")
        seen.add(name)


def objects(placed: Object, policies: Sequence[VolumeClaimPolicy]) -> Iterator[Object]:
    """Yield the claims of a TrainJob. A claim that is retained has no owner. `placed` is metadata with the TrainJob's name and owner."""
    train_job, namespace = placed["name"], placed["namespace"]
    for number, _, claim in _templates(policies):
        retention = policies[number].retention_policy
        written = claim.metadata or {}
        metadata: Object = {"name": _full(_name(claim), train_job), "namespace": namespace}
        metadata |= {field: written[field] for field in FIELDS if written.get(field)}
        metadata["labels"] = {**(metadata.get("labels") or {}), f"{JOB_SET}/jobset-name": train_job}
        if retention is None or retention.when_deleted == "Delete":
            metadata["ownerReferences"] = placed["ownerReferences"]
        yield {"apiVersion": "v1", "kind": CLAIM, "metadata": metadata, "spec": claim.spec or {}}


def with_volumes(template: Object, train_job: str, policies: Sequence[VolumeClaimPolicy]) -> Object:
    """Return a pod template with the claims that its containers mount. The template changes."""
    for _, _, claim in _templates(policies):
        name = _name(claim)
        if _is_mounted(template, name):
            volume = {"name": name, "persistentVolumeClaim": {"claimName": _full(name, train_job)}}
            template["spec"]["volumes"] = [*(template["spec"].get("volumes") or ()), volume]
    return template


def _templates(policies: Sequence[VolumeClaimPolicy]) -> Iterator[tuple[int, int, VolumeClaim]]:
    for number, policy in enumerate(policies):
        yield from ((number, place, claim) for place, claim in enumerate(policy.templates))


def _name(claim: VolumeClaim) -> str:
    return str((claim.metadata or {}).get("name") or "")


def _full(name: str, train_job: str) -> str:
    return f"{name}-{train_job}"


def _is_mounted(template: Object, name: str) -> bool:
    spec: dict[str, Any] = template.get("spec") or {}
    containers = (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
    return any(mount.get("name") == name for container in containers for mount in container.get("volumeMounts") or ())
