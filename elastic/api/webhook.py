"""The configuration by which an API server asks our webhook about jobs: the same in a cluster, where deploy/ holds it, and on a laptop."""

from __future__ import annotations

from typing import Any

from elastic.api.kinds import GROUP, KINDS, VERSION

NAME = "elastic-webhook"
"""Of the configuration, of the Secret with the certificate, and of the service."""
PATH = "/validate"


def configuration(client: dict[str, Any], *, timeout_s: int = 3) -> dict[str, Any]:
    """`client` says where the webhook is.

    The CRDs hold most rules without it, and a job that came in broken gets a condition and costs nothing. So a webhook that is away must
    do not block jobs, and one that is slow not for long. Labels, finalizers and owners change without asking it; it knows this
    too, for API servers before 1.28 do not read the condition.
    """
    changed = "request.operation == 'CREATE' || object.metadata.generation != oldObject.metadata.generation"
    hook: dict[str, Any] = {
        "name": "jobs.elastic-training.kubeflow.org",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "timeoutSeconds": timeout_s,
        "matchPolicy": "Equivalent",
        "clientConfig": client,
        "rules": [
            {
                "apiGroups": [GROUP],
                "apiVersions": [VERSION],
                "operations": ["CREATE", "UPDATE"],
                "resources": [kind.plural for kind in KINDS.values()],
                "scope": "Namespaced",
            }
        ],
        "matchConditions": [{"name": "the-spec-changed", "expression": changed}],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": NAME},
        "webhooks": [hook],
    }
