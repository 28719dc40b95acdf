"""Makes the Helm chart from what `elastic install` applies: `scripts/chart.py FOLDER` writes FOLDER/elastic-training-VERSION.tgz.

A component is a value: an object, a flag or a port that only comes with it stands between `if` and `end`. Needs neither kubectl nor Helm.
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

from elastic.api.rights import SYSTEM
from elastic.cli.installing import manifests
from elastic.cli.installing.components import STANDALONE, TRAIN_JOBS
from elastic.cli.installing.manifests import VALUE, WITH, WITHOUT
from elastic_worker import __version__

ROOT = Path(__file__).resolve().parents[1]
NEVER = "never"
"""Condition of the parts that the chart does not have: Helm would overwrite objects that have the names of Kubeflow Trainer's."""
CONDITIONS = {
    "without-mpi": "not .Values.mpi",
    "etcd": ".Values.etcd",
    "autoscaler": ".Values.autoscaler",
    "autoscaler-metrics-api": "and .Values.autoscaler .Values.metricsApi",
    "dashboard": ".Values.dashboard",
    TRAIN_JOBS: NEVER,
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
"""
NOTES = """\
The Secret elastic-installation has to be in namespace {{ .Release.Namespace }}: deploy/installation.sh makes it.
Helm leaves the kinds (CRDs) as they are on upgrade and uninstall; deleting them deletes all jobs.
"""


def condition(node: Any) -> str:
    """Return the values under which a part is there; empty: always."""
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
    if value == manifests.IMAGE:
        return ' {{ required "image is missing: set image=REGISTRY/elastic-training:TAG" .Values.image | quote }}'
    return " " + json.dumps(value).replace("{{", '{{ "{{" }}').replace(SYSTEM, "{{ .Release.Namespace }}")


def conditional(when: str, inner: list[str]) -> list[str]:
    if when == NEVER:
        return []
    return inner if not when else [f"{{{{- if {when} }}}}", *inner, "{{- end }}"]


def templates() -> dict[str, str]:
    """Return the files by name, one for each object."""
    made = {}
    for entry in manifests.tree()[STANDALONE]:
        there = bare(entry)
        if there["kind"] != "Namespace" and condition(entry) != NEVER:
            text = "\n".join(conditional(condition(entry), list(lines(there)))) + "\n"
            made[f"{there['kind'].lower()}-{there['metadata']['name']}.yaml"] = text
    return made


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
    types = {key: {"type": "string" if value == "" else "boolean"} for key, value in yaml.safe_load(VALUES).items()}
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
