"""The Helm chart makes the objects that `elastic install` makes of the same values. Helm itself is not needed, but used if it is there."""

from __future__ import annotations

import base64
import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner
from helm_templates import Rendering

from elastic import certificates
from elastic.api.trainer.crd import definitions
from elastic.api.trainer.modes import Mode
from elastic.api.trainer.shipped import objects
from elastic.cli import main
from elastic.cli.installing import manifests, shared_secret, trainer
from elastic.cli.installing.values import given
from elastic.cli.installing.values.page import files as generated
from elastic.membership.tokens import load_keys
from elastic_worker import __version__

ROOT = Path(__file__).resolve().parents[3]
IMAGE = "registry.example.com/elastic-training:1"
FILES = {
    "nothing": "",
    "no MPI": "mpi: false",
    "everything": """
        mpi: false
        etcd: {enabled: true, storageSize: 10Gi, storageClassName: fast, image: mirror.example.com/etcd:v3.5.16, podDisruptionBudget: false}
        autoscaler: {enabled: true, metricsApi: true, extraArgs: [--cluster-grows]}
        dashboard: {enabled: true, extraArgs: [--allow-changes], resources: {requests: {cpu: 200m}}}
        monitoring: {enabled: true, labels: {release: prometheus}}
    """,
    "one replica": """
        controller: {replicas: 1}
        autoscaler: {enabled: true, replicas: 1}
    """,
    "global": """
        global:
          labels: {team: research, example.com/cost: "7"}
          annotations: {owner: someone}
          imagePullPolicy: Always
          imagePullSecrets: [{name: elastic-pull}]
          nodeSelector: {kubernetes.io/os: linux}
          tolerations: [{key: dedicated, operator: Exists, effect: NoSchedule}]
          priorityClassName: system-cluster-critical
          podLabels: {sidecar.istio.io/inject: "false"}
          podAnnotations: {linkerd.io/inject: disabled}
          serviceAccountAnnotations: {iam.gke.io/gcp-service-account: "a@b.c"}
          logLevel: debug
        autoscaler: {enabled: true}
        dashboard: {enabled: true}
        etcd: {enabled: true}
    """,
    "components win": """
        global: {nodeSelector: {a: b}, logLevel: warning, podLabels: {one: a, two: a}, imagePullPolicy: Always}
        controller:
          replicas: 3
          nodeSelector: {c: d}
          logLevel: debug
          podLabels: {two: b}
          podAnnotations: {note: "yes"}
          imagePullPolicy: Never
          affinity: {nodeAffinity: {}, podAntiAffinity: {}}
          tolerations: [{operator: Exists}]
          resources: {limits: {memory: 2Gi}, requests: {cpu: 1, memory: 512Mi}}
          extraArgs: [--gang-scheduler-name=volcano, "--lease-duration=30"]
          serviceAccountAnnotations: {eks.amazonaws.com/role-arn: "arn:aws:iam::1:role/a"}
          podDisruptionBudget: false
        rendezvous: {priorityClassName: mine, resources: {limits: {memory: 4Gi}}}
    """,
    "no limits": "{controller: {resources: {limits: {memory: null}}}, rendezvous: {resources: {limits: null}}}",
    "webhook of cert-manager": "webhook: {failurePolicy: Fail, timeoutSeconds: 5, certificates: certManager}",
    "webhook of an issuer": "webhook: {certificates: certManager, issuerName: internal, issuerKind: ClusterIssuer}\ntrainjobs: beside",
    "no webhook": "webhook: {enabled: false}\ntrainjobs: instead",
    "no policies, no annotations": """
        networkPolicies: {enabled: false}
        monitoring: {scrapeAnnotations: false}
        dashboard: {enabled: true, podAnnotations: {a: b}}
    """,
}
"""Files of values, by what they show."""


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
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


def rendered(files: dict[str, str], values: dict[str, Any], namespace: str) -> list[dict[str, Any]]:
    """Return the objects that Helm makes of the chart, apart from the Secret with the key."""
    every = given.joined(yaml.safe_load(files["values.yaml"]), values)
    every = without_null(every)
    jsonschema.validate(every, json.loads(files["values.schema.json"]))
    rendering = Rendering(files, every, namespace)
    texts = [rendering.of(text) for name, text in files.items() if name.startswith("templates/") and name.endswith(".yaml")]
    found = [item for text in texts for item in yaml.safe_load_all(text) if item is not None]
    return [item for item in found if item["metadata"]["name"] != shared_secret.NAME]


def without_null(value: Any) -> Any:
    """Return the values without nulls, which Helm takes for "leave the default out"."""
    if isinstance(value, dict):
        return {key: without_null(entry) for key, entry in value.items() if entry is not None}
    return value


def installed(values: dict[str, Any], namespace: str) -> list[dict[str, Any]]:
    every = given.complete(values)
    found = [item for item in manifests.objects("standalone", every, namespace=namespace) if item["kind"] != "Namespace"]
    return found + (trainer.lease_objects(namespace) if every["trainjobs"] == Mode.INSTEAD else [])


def by_name(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    named = {f"{item['kind']}/{item['metadata'].get('namespace', '')}/{item['metadata']['name']}": item for item in objects}
    assert len(named) == len(objects)
    return named


def values_of(name: str) -> dict[str, Any]:
    return given.read(name, FILES[name]) | {"image": IMAGE}


@pytest.mark.parametrize("name", FILES)
def test_the_chart_makes_what_elastic_install_makes_of_the_same_values(files: dict[str, str], name: str) -> None:
    values = values_of(name)
    assert by_name(rendered(files, values, "here")) == by_name(installed(values, "here"))


@pytest.mark.parametrize("mode", list(Mode))
def test_the_chart_makes_what_elastic_install_makes_in_each_mode_of_train_jobs(files: dict[str, str], mode: Mode) -> None:
    values = {"trainjobs": mode.value, "image": IMAGE}
    assert by_name(rendered(files, values, "here")) == by_name(installed(values, "here"))


@pytest.mark.parametrize("name", ["global", "everything"])
def test_the_command_prints_the_objects_of_the_chart_with_its_own_marks(files: dict[str, str], name: str, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(FILES[name])
    words = ["install", "--values", str(file), "--set", f"image={IMAGE}", "-n", "here", "-o", "json"]
    said = CliRunner().invoke(main, words, env={"KUBECONFIG": ""})
    assert said.exit_code == 0, said.output
    left_out = ("Namespace", "CustomResourceDefinition")
    printed = [unmarked(item) for item in json.loads(said.stdout)["items"] if item["kind"] not in left_out]
    assert by_name(printed) == by_name(rendered(files, values_of(name), "here"))


def unmarked(item: dict[str, Any]) -> dict[str, Any]:
    """Return the object without the labels and the annotation by which `elastic install` knows its own objects."""
    metadata = item["metadata"]
    for kind, ours in (
        ("labels", ("app.kubernetes.io/managed-by", "app.kubernetes.io/version")),
        ("annotations", ("elastic-training/values",)),
    ):
        left = {key: value for key, value in metadata.get(kind, {}).items() if key not in ours}
        metadata = {key: value for key, value in metadata.items() if key != kind} | ({kind: left} if left else {})
    return item | {"metadata": metadata}


@pytest.mark.skipif(shutil.which("helm") is None, reason="needs helm")
@pytest.mark.parametrize("name", FILES)
def test_helm_itself_makes_the_same(files: dict[str, str], name: str, tmp_path: Path) -> None:
    for path, text in files.items():
        (tmp_path / "chart" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "chart" / path).write_text(text)
    (tmp_path / "values.yaml").write_text(FILES[name])
    command = [
        "helm",
        "template",
        "elastic",
        str(tmp_path / "chart"),
        "-n",
        "here",
        "--kube-version",
        "1.30.0",
        "-f",
        str(tmp_path / "values.yaml"),
    ]
    done = subprocess.run([*command, "--set", f"image={IMAGE}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [item for item in yaml.safe_load_all(done.stdout) if item is not None]
    (secret,) = [item for item in found if item["metadata"]["name"] == shared_secret.NAME]
    assert_serves(secret, "here", tmp_path)
    found.remove(secret)
    assert by_name(found) == by_name(installed(values_of(name), "here"))


def assert_serves(secret: dict[str, Any], namespace: str, folder: Path) -> None:
    """Assert that a Secret holds a key and a certificate that controller, rendezvous server and etcd can use."""
    data = {name: base64.b64decode(text) for name, text in secret["data"].items()}
    assert data.keys() == {"server.key", "ca.crt", "tls.crt", "tls.key"}
    assert certificates.covers(data["tls.crt"], shared_secret.names(namespace))
    (folder / "server.key").write_bytes(data["server.key"])
    assert len(load_keys(folder)) == 1


def secret_of(files: dict[str, str], objects: dict[str, Any] | None = None, *, create: bool = True) -> Any:
    values = given.complete({"installation": {"create": create}})
    return yaml.safe_load(Rendering(files, values, "here", objects).of(files["templates/installation.yaml"]))


def test_the_chart_makes_the_key_once_and_keeps_it(files: dict[str, str], tmp_path: Path) -> None:
    first = secret_of(files)
    assert_serves(first, "here", tmp_path)
    assert first["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}, "uninstalling keeps it, too"
    ours = first | {"metadata": {"annotations": {"meta.helm.sh/release-name": "elastic"}}}
    assert secret_of(files, {shared_secret.NAME: ours})["data"] == first["data"], "an upgrade keeps the key"
    for metadata in ({}, {"annotations": {"meta.helm.sh/release-name": "another"}}):
        assert secret_of(files, {shared_secret.NAME: first | {"metadata": metadata}}) is None, "a Secret of others is theirs"
    assert secret_of(files, create=False) is None
    assert secret_of(files)["data"] != secret_of(files)["data"], "helm template sees no cluster, so each rendering has a new key"


def test_the_chart_overwrites_no_object_that_kubeflow_trainer_brings(files: dict[str, str]) -> None:
    """Helm takes objects over or fails at them. Notes say how to create those that do not exist."""
    there = by_name(rendered(files, {"trainjobs": "instead", "image": IMAGE}, "here"))
    brought = [*definitions(), *(item for item in objects() if item["kind"] != "Namespace")]
    assert [name for name in by_name(brought) if name in there] == []
    assert not any(name.startswith("crds/") and "trainer" in name for name in files)
    notes = [Rendering(files, given.complete({"trainjobs": mode}), "here").of(files["templates/NOTES.txt"]) for mode in ("instead", "off")]
    assert "kubectl create -f deploy/components/trainjobs/definitions.yaml" in notes[0]
    assert "TrainJobs" not in notes[1]


def test_the_chart_has_every_kind_and_its_version(files: dict[str, str]) -> None:
    for file in (ROOT / "deploy" / "crds").glob("*.kubeflow.org.yaml"):
        assert files[f"crds/{file.name}"] == file.read_text()
    described = yaml.safe_load(files["Chart.yaml"])
    assert described["version"] == described["appVersion"] == __version__


def test_people_can_read_the_templates(files: dict[str, str]) -> None:
    """They were one line of JSON for each field, and one file for each of 50 objects."""
    made = {name: text for name, text in files.items() if name.startswith("templates/")}
    assert len(made) <= 15
    for name, text in made.items():
        longest = max(len(line) for line in text.splitlines() if "expr:" not in line and "description:" not in line)
        assert longest < 340, name
        assert '": "' not in text, name


def test_the_generated_files_are_current() -> None:
    assert [str(path) for path, text in generated() if path.read_text() != text] == [], "run make check to see the command"


@pytest.mark.parametrize(
    "values",
    [
        {"autoscale": {}},
        {"mpi": "no"},
        {"image": 1},
        {"trainjobs": "all"},
        {"trainjobs": False},
        {"autoscaler": True},
        {"autoscaler": {"metricsApi": True}},
        {"controller": {"replicas": 0}},
        {"controller": {"replicas": None}},
        {"rendezvous": {"replicas": 2}},
        {"global": {"labels": {"app": "mine"}}},
        {"controller": {"resources": {"limits": {"memory": "lots"}}}},
        {"controller": {"extraArgs": ["lease"]}},
        {"controller": {"affinity": {"nodes": {}}}},
    ],
    ids=json.dumps,
)
def test_helm_and_the_command_refuse_the_same_values(files: dict[str, str], values: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        rendered(files, values, "here")
    words = ["install", "--values", "-", "--image", IMAGE, "-o", "json"]
    said = CliRunner().invoke(main, words, input=json.dumps(values), env={"KUBECONFIG": ""})
    assert said.exit_code != 0
