"""Make the configurations by which an API server asks our webhook: the same in a cluster, where deploy/ holds them, and on a laptop."""

from __future__ import annotations

from typing import Any

from elastic.api.kinds import GROUP, KINDS, TRAIN_JOBS, VERSION

NAME = "elastic-webhook"
"""Name of the configuration for jobs, of the Secret with the certificate, and of the service."""
FOR_TRAIN_JOBS = "-trainjobs"
"""End of the name of the configuration for TrainJobs and runtimes."""
PATH = "/validate"
CHANGED = "request.operation == 'CREATE' || object.metadata.generation != oldObject.metadata.generation"


def configuration(client: dict[str, Any], *, timeout_s: int = 3) -> dict[str, Any]:
    """Return the configuration for jobs. `client` says where the webhook is.

    The CRDs check most rules without the webhook, and an invalid job that was stored gets a condition and costs nothing. So jobs are stored
    while the webhook is away, and wait for a slow one only a short time. Changes of labels, finalizers and owners do not ask the webhook.
    The webhook has the same rule, because API servers before 1.28 ignore the match condition.
    """
    rule = {"apiGroups": [GROUP], "apiVersions": [VERSION], "resources": [kind.plural for kind in KINDS.values()], "scope": "Namespaced"}
    return _configuration(NAME, _hook("jobs", client, rule, timeout_s))


def train_job_configuration(client: dict[str, Any], *, timeout_s: int = 3, selector: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the configuration for TrainJobs and runtimes. With a selector, the webhook is asked only about TrainJobs with these labels."""
    plurals = ["trainjobs"] if selector else ["trainjobs", "trainingruntimes", "clustertrainingruntimes"]
    rule = {"apiGroups": [TRAIN_JOBS], "apiVersions": ["v1alpha1"], "resources": plurals, "scope": "*"}
    hook = _hook("trainjobs", client, rule, timeout_s) | ({"objectSelector": {"matchLabels": selector}} if selector else {})
    return _configuration(f"{NAME}{FOR_TRAIN_JOBS}", hook)


def _hook(name: str, client: dict[str, Any], rule: dict[str, Any], timeout_s: int) -> dict[str, Any]:
    return {
        "name": f"{name}.elastic-training.kubeflow.org",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "timeoutSeconds": timeout_s,
        "matchPolicy": "Equivalent",
        "clientConfig": client,
        "rules": [{"operations": ["CREATE", "UPDATE"], **rule}],
        "matchConditions": [{"name": "the-spec-changed", "expression": CHANGED}],
    }


def _configuration(name: str, hook: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [hook],
    }
