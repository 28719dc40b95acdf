"""Tie an object to its job, by the owner reference with which the cluster removes the object after the job."""

from typing import Any

from elastic.api.job import Job, Object
from elastic.api.kinds import API_VERSION


def owner_reference(job: Job) -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": job.kind.name,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def owned_metadata(job: Job, name: str, **more: Any) -> Object:
    """Metadata of an object in the job's namespace that goes when the job goes."""
    return {"name": name, "namespace": job.metadata.namespace, **more, "ownerReferences": [owner_reference(job)]}
