"""Give the pods of a TrainJob's nodes the names and variables that they have at Kubeflow Trainer, and the Service behind these names."""

from elastic.api.job import Job, Object
from elastic.api.names import NODE_NUMBER, job_labels
from elastic_training.controller.deciding.objects.ownership import owned_metadata
from elastic_training.controller.frameworks.environment import Variable, with_missing

NUMBER: Variable = {"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{NODE_NUMBER}']"}}}
"""A Job with indexes gives each of its pods this variable."""


def as_node(job: Job, pod: Object) -> Object:
    """Return the pod of one node, which its peers reach as POD.JOB."""
    pod["spec"] |= {"hostname": pod["metadata"]["name"], "subdomain": job.metadata.name}
    return with_missing(pod, [NUMBER], only=job.kind.container)


def service(job: Job) -> Object:
    """Return the Service that gives all nodes their names, also before they are ready, because they become ready together."""
    spec = {"clusterIP": "None", "selector": job_labels(job.kind, job.metadata.name), "publishNotReadyAddresses": True}
    return {"apiVersion": "v1", "kind": "Service", "metadata": owned_metadata(job, job.metadata.name), "spec": spec}
