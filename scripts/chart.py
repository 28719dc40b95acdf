"""Make the Helm chart from what `elastic install` applies: `scripts/chart.py FOLDER` writes FOLDER/elastic-training-VERSION.tgz.

Each component is a value of the chart. Objects, flags and ports that come only with a component are between `if` and `end`. Needs neither
kubectl nor Helm.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from elastic.api import webhook
from elastic.api.rights import SYSTEM
from elastic.api.trainer.modes import LABEL, Mode
from elastic.api.trainer.modes import VALUE as ASKS
from elastic.cli.installing import manifests, trainer
from elastic.cli.installing.components import STANDALONE, TRAIN_JOBS
from elastic.cli.installing.manifests import VALUE, WITH, WITHOUT
from elastic_worker import __version__

ROOT = Path(__file__).resolve().parents[1]
INSTEAD, BESIDE = (f"trainjobs-{mode}" for mode in (Mode.INSTEAD, Mode.BESIDE))
"""Parts of the component for TrainJobs that only one mode has."""
CONDITIONS = {
    "without-mpi": "not .Values.mpi",
    "etcd": ".Values.etcd",
    "autoscaler": ".Values.autoscaler",
    "autoscaler-metrics-api": "and .Values.autoscaler .Values.metricsApi",
    "dashboard": ".Values.dashboard",
    TRAIN_JOBS: 'ne .Values.trainjobs "off"',
    INSTEAD: 'eq .Values.trainjobs "instead"',
    BESIDE: 'eq .Values.trainjobs "beside"',
    "monitoring": ".Values.monitoring",
}
"""Conditions by component."""
OPPOSITE = {"not .Values.mpi": ".Values.mpi"}
VALUES = """\
# REGISTRY/elastic-training:TAG, built with deploy/Dockerfile.
image: ""
# MPIJobs, and the right to pods/exec that they need.
mpi: true
# An etcd with three members, for jobs with rdzvBackend: etcd.
etcd: false
# elastic-autoscaler, and what it serves to HorizontalPodAutoscalers.
autoscaler: false
metricsApi: false
# elastic-dashboard, reached through kubectl port-forward.
dashboard: false
# Monitors and alerts for the Prometheus operator, and a dashboard for Grafana.
monitoring: false
# The TrainJobs that the controller serves: "off", "instead" (all, in place of Kubeflow Trainer's controller), or
# "beside" (those that ask for it).
# Helm would overwrite definitions and runtimes of Kubeflow Trainer's names, so the chart has none: see docs/deploy.md.
trainjobs: "off"
"""
NOTES = """\
The Secret elastic-installation has to be in namespace {{ .Release.Namespace }}: deploy/installation.sh makes it.
Helm leaves the kinds (CRDs) as they are on upgrade and uninstall; deleting them deletes all jobs.
{{- if eq .Values.trainjobs "instead" }}
TrainJobs need their definitions, runtimes and the namespace kubeflow-system. Create those that do not exist yet:
  kubectl create -f deploy/components/trainjobs/definitions.yaml
  kubectl create -f deploy/components/trainjobs/objects.yaml
{{- end }}
"""


def condition(node: Any) -> str:
    """Return the condition on the chart's values under which a part is included; "" if it always is."""
    if not isinstance(node, dict) or VALUE not in node:
        return ""
    return CONDITIONS[node[WITH]] if WITH in node else OPPOSITE[CONDITIONS[node[WITHOUT]]]


def bare(node: Any) -> Any:
    return node[VALUE] if isinstance(node, dict) and VALUE in node else node


def lines(node: Any, indent: int = 0) -> Iterator[str]:
    """Yield the tree as a template, with each scalar in quotes as JSON has them."""
    space = " " * indent
    if isinstance(node, dict):
        for key, entry in node.items():
            there = bare(entry)
            yield from conditional(condition(entry), [f"{space}{json.dumps(key)}:{inline(there)}", *nested(there, indent + 2)])
    elif isinstance(node, list):
        for entry in node:
            there = bare(entry)
            yield from conditional(condition(entry), [f"{space}-{inline(there)}", *nested(there, indent + 2)])


def nested(value: Any, indent: int) -> list[str]:
    return list(lines(value, indent)) if isinstance(value, dict | list) and value else []


def inline(value: Any) -> str:
    if isinstance(value, dict | list) and value:
        return ""
    if value == f"{trainer.FLAG}{Mode.INSTEAD}":
        return f' "{trainer.FLAG}{{{{ .Values.trainjobs }}}}"'
    if value == manifests.IMAGE:
        return ' {{ required "image is missing: set image=REGISTRY/elastic-training:TAG" .Values.image | quote }}'
    return " " + json.dumps(value).replace("{{", '{{ "{{" }}').replace(SYSTEM, "{{ .Release.Namespace }}")


def conditional(when: str, inner: list[str]) -> list[str]:
    return inner if not when else [f"{{{{- if {when} }}}}", *inner, "{{- end }}"]


def templates() -> dict[str, str]:
    """Return the files by name, one for each object."""
    made = {}
    right_to_lease = [{WITH: INSTEAD, VALUE: item} for item in trainer.lease_objects(SYSTEM)]
    for entry in [*manifests.tree()[STANDALONE], *right_to_lease]:
        there = bare(entry)
        if there["kind"] != "Namespace":
            if there["metadata"]["name"] == f"{webhook.NAME}{webhook.FOR_TRAIN_JOBS}":
                there = with_selector(there)
            text = "\n".join(conditional(condition(entry), list(lines(there)))) + "\n"
            made[f"{there['kind'].lower()}-{there['metadata']['name']}.yaml"] = text
    return made


def with_selector(configuration: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of the webhook for TrainJobs. Next to Kubeflow Trainer, it gets only the TrainJobs with our label."""
    (hook,) = configuration["webhooks"]
    narrow = webhook.train_job_configuration(hook["clientConfig"], selector={LABEL: ASKS})["webhooks"][0]
    rules = [{WITH: INSTEAD, VALUE: hook["rules"][0]}, {WITH: BESIDE, VALUE: narrow["rules"][0]}]
    selector = {WITH: BESIDE, VALUE: narrow["objectSelector"]}
    return configuration | {"webhooks": [hook | {"rules": rules, "objectSelector": selector}]}


def chart() -> dict[str, str]:
    described = {
        "apiVersion": "v2",
        "name": "elastic-training",
        "description": "The control plane of elastic-training",
        "type": "application",
        "version": __version__,
        "appVersion": __version__,
        "kubeVersion": ">=1.27.0-0",
    }
    types: dict[str, Any] = {
        key: {"type": "boolean" if value in (True, False) else "string"} for key, value in yaml.safe_load(VALUES).items()
    }
    types["trainjobs"] = {"enum": [mode.value for mode in Mode]}
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": types, "additionalProperties": False}
    kinds = {f"crds/{file.name}": file.read_text() for file in (ROOT / "deploy/crds").glob("*.kubeflow.org.yaml")}
    return {
        "Chart.yaml": yaml.safe_dump(described, sort_keys=False),
        "values.yaml": VALUES,
        "values.schema.json": json.dumps(schema, indent=2),
        **kinds,
        "templates/NOTES.txt": NOTES,
        **{f"templates/{name}": text for name, text in templates().items()},
    }


def main() -> None:
    files = chart()
    version = yaml.safe_load(files["Chart.yaml"])["version"]
    target = Path(sys.argv[1]) / f"elastic-training-{version}.tgz"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w:gz") as packed:
        for name, text in sorted(files.items()):
            entry = tarfile.TarInfo(f"elastic-training/{name}")
            entry.size = len(text.encode())
            packed.addfile(entry, io.BytesIO(text.encode()))
    print(target)


if __name__ == "__main__":
    main()
