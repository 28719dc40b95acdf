"""Makes the Helm chart from what kustomize makes of deploy/: `scripts/chart.py FOLDER` writes FOLDER/elastic-training-VERSION.tgz.

A component is a value: an object, a flag or a port that only comes with it stands between `if` and `end`. Needs kubectl, not Helm.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
NAMESPACE, IMAGE = "elastic-system", '"elastic-training:latest"'
BUILDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "": ("", ()),
    "mpi": ("not .Values.mpi", ("without-mpi",)),
    "etcd": (".Values.etcd", ("etcd",)),
    "autoscaler": (".Values.autoscaler", ("autoscaler",)),
    "metricsApi": ("and .Values.autoscaler .Values.metricsApi", ("autoscaler", "autoscaler-metrics-api")),
    "dashboard": (".Values.dashboard", ("dashboard",)),
    "monitoring": (".Values.monitoring", ("monitoring",)),
}
"""By value: its condition in templates, and the components that stand for it. The first has none of them."""
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


@dataclass(frozen=True)
class Maybe:
    """A value that is there under a condition; the empty condition holds always."""

    when: str
    value: Any


@dataclass
class Found:
    """The same place in several builds."""

    values: dict[str, Any] = field(default_factory=dict)

    def when(self, builds: Sequence[str]) -> str:
        """Under which condition something is here."""
        missing = [name for name in builds if name not in self.values]
        if not missing:
            return ""
        if "" not in self.values:
            return BUILDS[next(name for name in builds if name in self.values)][0]
        (only,) = missing
        return OPPOSITE[BUILDS[only][0]]


def built(components: Sequence[str]) -> list[dict[str, Any]]:
    """What kustomize makes of the overlay standalone with these components, without the kinds."""
    with tempfile.TemporaryDirectory(dir=ROOT / ".cache") as folder:
        overlay = Path(folder) / "overlays" / "standalone"
        shutil.copytree(ROOT / "deploy/overlays/standalone", overlay)
        for name in ("base", "components"):
            (Path(folder) / name).symlink_to(ROOT / "deploy" / name)
        kustomization = overlay / "kustomization.yaml"
        kustomization.write_text(kustomization.read_text().replace("- ../../crds\n", ""))
        users = Path(folder) / "users"
        users.mkdir()
        added = json.dumps([f"../components/{name}" for name in components])
        (users / "kustomization.yaml").write_text(f"resources: [../overlays/standalone]\ncomponents: {added}\n")
        command = ["kubectl", "kustomize", "--load-restrictor=LoadRestrictionsNone", str(users)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    if done.returncode:
        raise SystemExit(f"chart: kubectl kustomize failed: {done.stderr.strip()}")
    return [item for item in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if item["kind"] != "Namespace"]


def united(builds: dict[str, Any]) -> Any:
    """One tree of all builds. Lists keep the order of the first; what only others have comes behind."""
    first = next(iter(builds.values()))
    if isinstance(first, dict):
        keys = dict.fromkeys(key for value in builds.values() for key in value)
        places = {key: Found({name: value[key] for name, value in builds.items() if key in value}) for key in keys}
        return {key: Maybe(place.when(list(builds)), united(place.values)) for key, place in places.items()}
    if isinstance(first, list):
        named: dict[str, Found] = {}
        are_alike = len({len(value) for value in builds.values()}) == 1
        for name, value in builds.items():
            for place, item in enumerate(value):
                named.setdefault(str(place) if are_alike else identity(item), Found()).values[name] = item
        return [Maybe(found.when(list(builds)), united(found.values)) for found in named.values()]
    if any(value != first for value in builds.values()):
        raise SystemExit(f"chart: a component changes a value, which a chart cannot follow: {builds}")
    return first


def identity(item: Any) -> str:
    """What makes two entries of a list the same one."""
    if isinstance(item, dict) and {"kind", "metadata"} <= item.keys():
        return f"{item['kind']}/{item['metadata']['name']}"
    if isinstance(item, dict) and "name" in item:
        return str(item["name"])
    return json.dumps(item, sort_keys=True)


def lines(node: Any, indent: int = 0) -> Iterator[str]:
    """The tree as a template, with each scalar in quotes as JSON has them."""
    space = " " * indent
    if isinstance(node, dict):
        for key, entry in node.items():
            yield from conditional(entry.when, [f"{space}{json.dumps(key)}:{inline(entry.value)}", *nested(entry.value, indent + 2)])
    elif isinstance(node, list):
        for entry in node:
            yield from conditional(entry.when, [f"{space}-{inline(entry.value)}", *nested(entry.value, indent + 2)])


def nested(value: Any, indent: int) -> list[str]:
    return list(lines(value, indent)) if isinstance(value, dict | list) and value else []


def inline(value: Any) -> str:
    if isinstance(value, dict | list) and value:
        return ""
    text = json.dumps(value).replace("{{", '{{ "{{" }}')
    if text == IMAGE:
        return ' {{ required "image is missing: set image=REGISTRY/elastic-training:TAG" .Values.image | quote }}'
    return " " + text.replace(NAMESPACE, "{{ .Release.Namespace }}")


def conditional(when: str, inner: list[str]) -> list[str]:
    return inner if not when else [f"{{{{- if {when} }}}}", *inner, "{{- end }}"]


def templates() -> dict[str, str]:
    """By file name; a file for each object."""
    found = united({name: built(components) for name, (_, components) in BUILDS.items()})
    made = {}
    for entry in found:
        kind, name = entry.value["kind"].value, entry.value["metadata"].value["name"].value
        made[f"{kind.lower()}-{name}.yaml"] = "\n".join(conditional(entry.when, list(lines(entry.value)))) + "\n"
    return made


def chart() -> dict[str, str]:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    described = {
        "apiVersion": "v2",
        "name": "elastic-training",
        "description": "The control plane of elastic-training",
        "type": "application",
        "version": version,
        "appVersion": version,
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
