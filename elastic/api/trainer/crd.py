"""Make the definitions of trainer.kubeflow.org from its types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from elastic.api.crd import schema_of
from elastic.api.trainer.runtime import Runtime
from elastic.api.trainer.shapes import Schema, Wire, rule
from elastic.api.trainer.train_job import CLUSTER_RUNTIME, GROUP, RUNTIME, TRAIN_JOB, VERSION, TrainJob

NAME_RULES = [
    rule("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')", "metadata.name must match RFC 1035 DNS label format"),
    rule("size(self.metadata.name) <= 63", "metadata.name must be no more than 63 characters"),
]
_COLUMNS = [
    {"name": "State", "type": "string", "jsonPath": ".status.conditions[-1:].type"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
]


def definitions() -> Iterator[Schema]:
    """Yield the CustomResourceDefinition of each kind."""
    more: Schema = {"additionalPrinterColumns": _COLUMNS, "subresources": {"status": {}}}
    yield _definition(TRAIN_JOB, TrainJob, rules=NAME_RULES, more=more)
    yield _definition(RUNTIME, Runtime)
    yield _definition(CLUSTER_RUNTIME, Runtime, scope="Cluster")


def _definition(
    kind: str, cls: type[Wire], *, scope: str = "Namespaced", rules: Sequence[Mapping[str, str]] = (), more: Schema | None = None
) -> Schema:
    plural = f"{kind.lower()}s"
    schema = schema_of(cls)
    schema.pop("required", None)
    schema["properties"]["metadata"] = {"type": "object"}
    if rules:
        schema["x-kubernetes-validations"] = list(rules)
    version = {"name": VERSION, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}} | (more or {})
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
            "scope": scope,
            "versions": [version],
        },
    }
