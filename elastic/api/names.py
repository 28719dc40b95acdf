"""Give names, labels and selectors to a job's objects. They are the Training Operator's, on which clients and dashboards rely."""

from __future__ import annotations

import re

from elastic.api.job import Job
from elastic.api.kinds import WORKER, Kind

LABEL_PREFIX = "training.kubeflow.org/"
OWN_PREFIX = "elastic-training/"
"""Prefix of the labels by which the controller knows its objects."""
JOB_NAME = LABEL_PREFIX + "job-name"
OPERATOR_NAME = LABEL_PREFIX + "operator-name"
REPLICA_TYPE = LABEL_PREFIX + "replica-type"
REPLICA_INDEX = LABEL_PREFIX + "replica-index"
JOB_ROLE = LABEL_PREFIX + "job-role"
MASTER_ROLE = "master"
NODE_NUMBER = "batch.kubernetes.io/job-completion-index"
"""Label with the number of a TrainJob's node."""

RDZV_SECRET = OWN_PREFIX + "rdzv-secret"
"""An annotation of a job: rdzvSecret, for clients whose classes lack the field."""

NODES = OWN_PREFIX + "nodes"
"""Annotation of a TrainJob: the number of nodes wanted now."""

REPORT = OWN_PREFIX + "report"
"""Annotation of a job: whether the programs in its new pods may report their progress in the form of Kubeflow Trainer."""
REPORT_ON, REPORT_OFF = "on", "off"

WAITS_FOR = OWN_PREFIX + "waits-for"
"""Annotation of the job of a TrainJob's nodes: the initializers that have not completed yet, separated by commas."""
INITIALIZER_FAILED = OWN_PREFIX + "initializer-failed"
"""Annotation of this job: which initializer has failed, and why."""

STOPPED = OWN_PREFIX + "stopped-with-cluster"
"""Annotation of a suspended job that ran when the laptop cluster ended: when the next cluster noticed that."""

COMPAT = OWN_PREFIX + "compat"
"""Annotation of 0.4, without effect: strict asked for the exact objects of the Training Operator."""

LONGEST, LONGEST_OBJECT = 63, 253

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?\Z")
DNS_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
DNS_1123_SUBDOMAIN = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?\Z")
LABEL = re.compile(r"([a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z")
"""The name of a label."""


def is_reserved(label: str) -> bool:
    """Return whether the controller would misread a pod whose template sets this label."""
    return label.startswith(OWN_PREFIX) or label == REPLICA_INDEX


def pod_name(kind: Kind, job: str, type: str, index: int) -> str:
    """Return the name of a replica's pod, and of its service if it has one. An MPIJob's launcher has no index."""
    if kind.role:
        return f"{job}-{kind.role if type == WORKER else type.lower()}-0-{index}"
    stem = f"{job}-{type.lower()}"
    return stem if kind.name == "MPIJob" and type == "Launcher" else f"{stem}-{index}"


def host_name(kind: Kind, job: str, type: str, index: int) -> str:
    """Return the name by which a replica's peers reach it."""
    name = pod_name(kind, job, type, index)
    return f"{name}.{job}" if kind.role else name


def job_labels(kind: Kind, job: str) -> dict[str, str]:
    """Return the labels of every pod of the job."""
    return {JOB_NAME: job, OPERATOR_NAME: kind.operator_name}


def replica_labels(kind: Kind, job: str, type: str, index: int) -> dict[str, str]:
    """Return the labels that a replica's service carries and selects by. The pod carries them and its role."""
    labels = job_labels(kind, job) | {REPLICA_TYPE: type.lower()}
    return labels if kind.name == "MPIJob" and type == "Launcher" else labels | {REPLICA_INDEX: str(index)}


def pod_labels(job: Job, type: str, index: int) -> dict[str, str]:
    labels = replica_labels(job.kind, job.metadata.name, type, index)
    return labels | {JOB_ROLE: MASTER_ROLE} if is_master(job, type, index) else labels


def is_master(job: Job, type: str, index: int) -> bool:
    """Return whether this pod carries the label job-role=master, by which `kubectl logs` and the client library find it."""
    if type in job.kind.leaders:
        return True
    has_leader = any(name in job.replicas for name in job.kind.leaders)
    return job.kind.worker_zero_leads and not has_leader and type == WORKER and index == 0


def selector(kind: Kind, job: str, type: str) -> str:
    """Return the selector of one type's pods for status.replicaStatuses and the scale subresource."""
    labels = job_labels(kind, job) | {REPLICA_TYPE: type.lower()}
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
