"""The Helm chart holds the objects that `elastic install` applies. Helm itself is not needed: the templates use a few words, read here."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
import yaml

from elastic.api.trainer.crd import definitions
from elastic.api.trainer.modes import Mode
from elastic.api.trainer.shipped import objects
from elastic.cli.installing import manifests, trainer
from elastic_worker import __version__

ROOT = Path(__file__).resolve().parents[3]
COMPONENTS = {"etcd": "etcd", "autoscaler": "autoscaler", "metricsApi": "autoscaler-metrics-api", "dashboard": "dashboard"}
COMPONENTS |= {"monitoring": "monitoring"}
IMAGE = "registry.example.com/elastic-training:1"


@pytest.fixture(scope="module")
def chart() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chart", ROOT / "scripts" / "chart.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def files(chart: ModuleType) -> dict[str, str]:
    found: dict[str, str] = chart.chart()
    return found


class Rendering:
    """Render templates as Helm does, as far as they use `if`, `end`, `required`, values and the release's namespace."""

    def __init__(self, values: dict[str, Any], namespace: str) -> None:
        self._values = values
        self._namespace = namespace

    def of(self, text: str) -> str:
        open: list[bool] = []
        out = []
        for line in text.splitlines():
            if found := re.fullmatch(r"\{\{- if (.*) \}\}", line):
                open.append(self._holds(found[1]))
            elif line == "{{- end }}":
                open.pop()
            elif all(open):
                out.append(re.sub(r"\{\{ (.*?) \}\}", self._value, line))
        assert not open
        return "\n".join(out)

    def _holds(self, condition: str) -> bool:
        words = condition.split()
        if words[0] in ("eq", "ne"):
            is_equal = self._values[words[1].removeprefix(".Values.")] == json.loads(words[2])
            return is_equal == (words[0] == "eq")
        values = [bool(self._values[word.removeprefix(".Values.")]) for word in words if word.startswith(".Values.")]
        return {"not": lambda: not values[0], "and": lambda: all(values)}.get(words[0], lambda: values[0])()

    def _value(self, found: re.Match[str]) -> str:
        if found[1] == '"{{"':
            return "{{"
        if found[1] == ".Release.Namespace":
            return self._namespace
        if found[1] == ".Values.trainjobs":
            return str(self._values["trainjobs"])
        assert re.fullmatch(r'required "[^"]+" \.Values\.image \| quote', found[1]), found[0]
        assert self._values["image"]
        return json.dumps(self._values["image"])


def rendered(files: dict[str, str], values: dict[str, Any], namespace: str) -> list[dict[str, Any]]:
    given = yaml.safe_load(files["values.yaml"]) | values
    jsonschema.validate(given, json.loads(files["values.schema.json"]))
    rendering = Rendering(given, namespace)
    found = [yaml.safe_load(rendering.of(text)) for name, text in files.items() if name.startswith("templates/") and name.endswith(".yaml")]
    return [item for item in found if item is not None]


def by_name(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {f"{item['kind']}/{item['metadata']['name']}": item for item in objects}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"mpi": False},
        {"etcd": True},
        {"autoscaler": True},
        {"dashboard": True},
        {"mpi": False, "etcd": True, "autoscaler": True, "metricsApi": True, "dashboard": True, "monitoring": True},
    ],
    ids=lambda values: "+".join(values) or "nothing",
)
def test_a_chart_with_these_values_is_what_is_installed_with_these_components(files: dict[str, str], values: dict[str, bool]) -> None:
    components = [*(["without-mpi"] if not values.get("mpi", True) else []), *(COMPONENTS[name] for name in values if name in COMPONENTS)]
    installed = manifests.objects("standalone", components, namespace="here", image=IMAGE)
    assert by_name(rendered(files, {**values, "image": IMAGE}, "here")) == by_name(
        [item for item in installed if item["kind"] != "Namespace"]
    )


@pytest.mark.parametrize("mode", list(Mode))
def test_a_chart_with_a_mode_of_train_jobs_is_what_is_installed_in_this_mode(files: dict[str, str], mode: Mode) -> None:
    installed = manifests.objects("standalone", trainer.with_mode((), mode), namespace="here", image=IMAGE)
    wanted = [item for item in trainer.adapted(installed, mode) if item["kind"] != "Namespace"]
    wanted += trainer.lease_objects("here") if mode is Mode.INSTEAD else []
    assert by_name(rendered(files, {"trainjobs": mode.value, "image": IMAGE}, "here")) == by_name(wanted)


def test_the_chart_overwrites_no_object_that_kubeflow_trainer_brings(files: dict[str, str]) -> None:
    """Helm takes objects over or fails at them. Notes say how to create those that do not exist."""
    there = by_name(rendered(files, {"trainjobs": "instead", "image": IMAGE}, "here"))
    brought = [*definitions(), *(item for item in objects() if item["kind"] != "Namespace")]
    assert [name for name in by_name(brought) if name in there] == []
    assert not any(name.startswith("crds/") and "trainer" in name for name in files)
    shown = Rendering({"trainjobs": "instead"}, "here").of(files["templates/NOTES.txt"])
    assert "kubectl create -f deploy/components/trainjobs/definitions.yaml" in shown
    assert "TrainJobs" not in Rendering({"trainjobs": "off"}, "here").of(files["templates/NOTES.txt"])


def test_the_chart_has_every_kind_its_version_and_what_is_to_be_done_first(files: dict[str, str]) -> None:
    for file in (ROOT / "deploy" / "crds").glob("*.kubeflow.org.yaml"):
        assert files[f"crds/{file.name}"] == file.read_text()
    described = yaml.safe_load(files["Chart.yaml"])
    assert described["version"] == described["appVersion"] == __version__
    assert "deploy/installation.sh" in files["templates/NOTES.txt"]


@pytest.mark.parametrize("values", [{"autoscale": True}, {"mpi": "no"}, {"image": 1}, {"trainjobs": "all"}, {"trainjobs": False}])
def test_a_wrong_value_is_refused(files: dict[str, str], values: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        rendered(files, values, "here")
