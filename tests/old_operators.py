"""Build the objects that old operators leave in a cluster, and run a shell that talks to a real API server with them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from elastic.api.kinds import KINDS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "migration.md"
OLD = "validator.training-operator.kubeflow.org"
Object = dict[str, Any]


def commands(section: str) -> list[str]:
    """Return the commands that the page shows under a heading, up to the next heading of its level or above."""
    _, _, rest = PAGE.read_text().partition(f"\n{section}\n")
    level = len(section.partition(" ")[0])
    text = re.split(rf"^#{{1,{level}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    return [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]


@dataclass(frozen=True)
class Typed:
    """A shell whose kubectl talks to this API server."""

    kubeconfig: Path

    def run(self, command: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        env = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": path}
        return subprocess.run(["bash", "-o", "pipefail", "-c", command], input=given, env=env, text=True, capture_output=True, timeout=120)

    def done(self, command: str, given: str | None = None) -> str:
        ended = self.run(command, given)
        assert ended.returncode == 0, f"$ {command}\n{ended.stdout}{ended.stderr}"
        return ended.stdout

    def apply(self, *objects: Object) -> None:
        self.done("kubectl apply --server-side --force-conflicts --field-manager=old -f -", yaml.safe_dump_all(objects))

    def get(self, words: str) -> Object:
        found: Object = json.loads(self.done(f"kubectl get {words} -o json"))
        return found


def definition(plural: str, kind: str, version: str) -> Object:
    """Return the part of an operator's definition that the tests need. It does not know our fields."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": anything, "status": anything}}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}}}
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    spec = {"group": "kubeflow.org", "scope": "Namespaced", "names": names, "versions": [served]}
    described = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    return described | {"metadata": {"name": f"{plural}.kubeflow.org"}, "spec": spec}


def deployment(name: str, namespace: str, **labels: str) -> Object:
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "manager", "image": "example.com/old:1"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": spec,
    }


def webhook(name: str) -> Object:
    """Return a webhook like the operator's. It fails closed, and nobody serves it."""
    service = {"namespace": "kubeflow", "name": "training-operator", "path": "/validate-kubeflow-org-v1-pytorchjob"}
    rule = {"apiGroups": ["kubeflow.org"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["pytorchjobs"]}
    one = {"name": "validator.pytorchjob.training-operator.kubeflow.org", "clientConfig": {"service": service}, "failurePolicy": "Fail"}
    one |= {"rules": [rule], "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 2}
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    return kind | {"metadata": {"name": name}, "webhooks": [one]}


def job(name: str) -> Object:
    container = {"name": "pytorch", "image": "example.com/train:1"}
    worker = {"replicas": 2, "template": {"spec": {"containers": [container]}}}
    spec = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 4}, "pytorchReplicaSpecs": {"Worker": worker}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def operator() -> list[Object]:
    """Return the objects of the Training Operator's manifests, without its webhooks."""
    theirs = [definition(KINDS[kind].plural, kind, "v1") for kind in KINDS if kind != "MXJob"]
    metadata = {"name": "training-operator", "namespace": "kubeflow"}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 443}]}}
    return [*theirs, service, deployment("training-operator", "kubeflow", **{"control-plane": "kubeflow-training-operator"})]
