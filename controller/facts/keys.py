"""Define the key of a reconcile (a job's kind, namespace and name), and find the job to which a pod or service says it belongs."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from elastic.api.kinds import API_VERSION, GROUP, KINDS, VERSION
from elastic.api.names import JOB_NAME, OPERATOR_NAME
from elastic.api.owners import controller_of
from elastic.kube.resources import Resource


class Key(NamedTuple):
    kind: str
    namespace: str
    name: str

    def fields(self, uid: str) -> dict[str, str]:
        """Return the job as every log line names it; the rendezvous server knows it by its uid alone."""
        return {"kind": self.kind, "namespace": self.namespace, "job": self.name, "uid": uid}


JOBS: Mapping[str, Resource] = MappingProxyType({k.name: Resource(GROUP, VERSION, k.plural, kind=k.name) for k in KINDS.values()})
_KIND_OF_OPERATOR = MappingProxyType({k.operator_name: k.name for k in KINDS.values()})


def key_of_labels(metadata: Mapping[str, Any]) -> Key | None:
    """Return the job that an object's labels name, or None if they name none of ours."""
    labels = metadata.get("labels") or {}
    kind, job = _KIND_OF_OPERATOR.get(labels.get(OPERATOR_NAME, "")), labels.get(JOB_NAME)
    return Key(kind, metadata.get("namespace", ""), job) if kind and job else None


def key_of_owner(metadata: Mapping[str, Any]) -> Key | None:
    """Return the job that controls an object, by its owner reference; an MPIJob of the MPI Operator has another apiVersion."""
    owner = controller_of(metadata)
    return (
        Key(owner.kind, owner.namespace, owner.name)
        if owner is not None and owner.api_version == API_VERSION and owner.kind in KINDS
        else None
    )
