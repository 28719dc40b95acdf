"""Make the Helm chart from what `elastic install` applies: `scripts/chart.py FOLDER` writes FOLDER/elastic-training-VERSION.tgz.

scripts/chart_templates.py writes the manifests as templates. deploy/chart has the other files. Needs neither kubectl nor Helm.
"""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent))
from chart_templates import DASHBOARD, templates

from elastic.cli.installing import manifests
from elastic.cli.installing.components import STANDALONE
from elastic_worker import __version__

ROOT = Path(__file__).resolve().parents[1]
OLDEST_KUBERNETES = ">=1.27.0-0"


def chart() -> dict[str, str]:
    """Return the files of the chart by name."""
    described = {
        "apiVersion": "v2",
        "name": "elastic-training",
        "description": "The control plane of elastic-training: elastic jobs that survive the loss of workers",
        "type": "application",
        "version": __version__,
        "appVersion": __version__,
        "kubeVersion": OLDEST_KUBERNETES,
    }
    written = {str(file.relative_to(ROOT / "deploy/chart")): file.read_text() for file in (ROOT / "deploy/chart").rglob("*.*")}
    kinds = {f"crds/{file.name}": file.read_text() for file in (ROOT / "deploy/crds").glob("*.kubeflow.org.yaml")}
    made = {f"templates/{name}": text for name, text in templates().items()}
    return {"Chart.yaml": yaml.safe_dump(described, sort_keys=False), DASHBOARD: grafana(), **written, **kinds, **made}


def grafana() -> str:
    """Return Grafana's dashboard, as the config map has it."""
    maps: list[Any] = [item["$value"] for item in manifests.tree()[STANDALONE] if item.get("$value", item)["kind"] == "ConfigMap"]
    (text,) = maps[0]["data"].values()
    return str(text)


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
