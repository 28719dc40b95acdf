"""`elastic install --values FILE --set PATH=VALUE`: which values hold, what is refused, and what is shown before anything changes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from installing_cluster import IMAGE, OURS, SYSTEM, Cluster, deployment, install, installed, names

from elastic.cli import main
from elastic.cli.installing.progress import Progress
from elastic.cli.installing.values import given
from elastic.cli.installing.values.given import BadValues, read, settings
from elastic.cli.installing.values.page import values_yaml


def replicas(cluster: Cluster) -> int:
    count: int = deployment(cluster)["spec"]["replicas"]
    return count


def file(folder: Path, text: str) -> str:
    path = folder / "values.yaml"
    path.write_text(text)
    return str(path)


def test_values_are_remembered_until_a_file_replaces_them(tmp_path: Path) -> None:
    cluster = installed(tmp_path, "--set", "controller.replicas=3", "--component", "dashboard")
    assert replicas(cluster) == 3
    assert install(cluster, tmp_path, "--set", "controller.extraArgs=[--lease-duration=30]").exit_code == 0
    container = deployment(cluster)["spec"]["template"]["spec"]["containers"][0]
    assert (replicas(cluster), container["args"][-1]) == (3, "--lease-duration=30"), "the other values stay"
    said = install(cluster, tmp_path, "--values", file(tmp_path, "controller: {replicas: 4}"))
    assert said.exit_code == 0, said.output
    container = deployment(cluster)["spec"]["template"]["spec"]["containers"][0]
    assert (replicas(cluster), container["image"]) == (4, IMAGE)
    assert "--lease-duration=30" not in container["args"]
    assert not [name for name in names(cluster) if "dashboard" in name], "the file does not name it"


def test_later_files_win_over_earlier_ones_and_settings_over_files(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("controller: {replicas: 3, podLabels: {a: x, b: x}}")
    words = ["install", "-f", str(tmp_path / "base.yaml"), "-f", "-", "--set", "controller.podLabels.c=x,image=" + IMAGE, "-o", "json"]
    said = CliRunner().invoke(main, words, input="controller: {podLabels: {b: y, c: y}}", env={"KUBECONFIG": ""})
    assert said.exit_code == 0, said.output
    (found,) = [
        item
        for item in json.loads(said.stdout)["items"]
        if (item["kind"], item["metadata"]["name"]) == ("Deployment", "elastic-controller")
    ]
    assert found["spec"]["replicas"] == 3
    labels = found["spec"]["template"]["metadata"]["labels"]
    assert labels == {"app": "elastic-controller", "a": "x", "b": "y", "c": "x"}


def test_the_components_of_an_installation_of_0_4_0_are_kept(tmp_path: Path) -> None:
    cluster = installed(tmp_path, "--component", "dashboard")
    noted = deployment(cluster)["metadata"]["annotations"]
    assert json.loads(noted.pop("elastic-training/values")) == {"dashboard": {"enabled": True}}
    noted["elastic-training/components"] = "without-mpi,dashboard"
    said = install(cluster, tmp_path)
    assert "components: without-mpi, dashboard" in said.stdout
    assert "elastic-training/components" not in deployment(cluster)["metadata"]["annotations"]


def test_remembered_values_that_this_release_does_not_know_are_named(tmp_path: Path) -> None:
    cluster = installed(tmp_path)
    deployment(cluster)["metadata"]["annotations"]["elastic-training/values"] = '{"controller": {"colour": "red"}}'
    said = install(cluster, tmp_path)
    assert (said.exit_code, cluster.applied) == (1, [])
    assert (
        f"annotation elastic-training/values of deployment {SYSTEM}/elastic-controller: controller.colour: there is no such" in said.stderr
    )
    assert "give all values again with --values FILE" in said.stderr
    assert install(cluster, tmp_path, "--values", file(tmp_path, "")).exit_code == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("controller: {replicas: two}", 'values.yaml: controller.replicas: "two": give a whole number from 1 to 5'),
        ("controller: {replica: 2}", "values.yaml: controller.replica: there is no such value; did you mean controller.replicas?"),
        ("contoller: {}", "values.yaml: contoller: there is no such value; did you mean controller?"),
        ("rendezvous: {replicas: 2}", "values.yaml: rendezvous.replicas: there is always one rendezvous server"),
        ("autoscaler: true", "values.yaml: autoscaler: true: give autoscaler.enabled: true"),
        ("controller: 3", "values.yaml: controller: 3: give an object with values such as replicas"),
        ("global: {logLevel: loud}", 'values.yaml: global.logLevel: "loud": give one of "", "debug", "info", "warning"'),
        ("global: {podLabels: {a: 1}}", 'values.yaml: global.podLabels.a: 1: give a string: "1"'),
        ("global: {labels: {app: x}}", "values.yaml: global.labels.app: the control plane sets this label itself; give another one"),
        ("global: {podLabels: {a: 'x y'}}", "values.yaml: global.podLabels.a: \"x y\": give at most 63 letters, digits, '-', '_' and '.'"),
        (
            "controller: {resources: {limits: {memory: lots}}}",
            'values.yaml: controller.resources.limits.memory: "lots": give an amount, such as 100m, 2 or 512Mi',
        ),
        (
            "controller: {tolerations: [{kye: a}]}",
            "values.yaml: controller.tolerations[0].kye: there is no such value; did you mean controller.tolerations[0].key?",
        ),
        ("controller: {extraArgs: --a}", 'values.yaml: controller.extraArgs: "--a": give a list of flags, such as ["--lease-duration=30"]'),
        ("mpi: null", "values.yaml: mpi: null: give true or false"),
        ("a: [", "values.yaml: line 1: not YAML: "),
        ("- a", 'values.yaml: values: ["a"]: give a map, such as image: NAME'),
        ("autoscaler: {metricsApi: true}", "component autoscaler-metrics-api needs component autoscaler; add it"),
    ],
)
def test_a_wrong_value_is_named_with_its_path_and_what_to_give(tmp_path: Path, text: str, said: str) -> None:
    cluster = Cluster()
    refused = install(cluster, tmp_path, "--image", IMAGE, "--values", file(tmp_path, text))
    assert refused.exit_code in (1, 2)
    assert said in refused.stderr
    assert cluster.applied == []


def test_all_wrong_values_are_named_at_once() -> None:
    with pytest.raises(given.BadValues) as refused:
        given.read("a.yaml", "{controller: {replicas: 0, extraArgs: [a]}, webhook: {timeoutSeconds: 99}}")
    assert str(refused.value).splitlines() == [
        "a.yaml: controller.replicas: 0: give a whole number from 1 to 5",
        'a.yaml: controller.extraArgs[0]: "a": give a flag with its value, such as "--lease-duration=30"',
        "a.yaml: webhook.timeoutSeconds: 99: give a whole number from 1 to 30",
    ]


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("controller.replicas=3,mpi=false", {"controller": {"replicas": 3}, "mpi": False}),
        ("controller.extraArgs={--a=b,--c}", {"controller": {"extraArgs": ["--a=b", "--c"]}}),
        ("controller.extraArgs=[--a=1, --b]", {"controller": {"extraArgs": ["--a=1", "--b"]}}),
        ("global.podAnnotations.example\\.com/a=true", {"global": {"podAnnotations": {"example.com/a": "true"}}}),
        ("global.podAnnotations.a=x\\,y", {"global": {"podAnnotations": {"a": "x,y"}}}),
        ("controller.resources.limits.memory=null", {"controller": {"resources": {"limits": {"memory": None}}}}),
        ("controller.resources.limits.cpu=2", {"controller": {"resources": {"limits": {"cpu": "2"}}}}),
        ("global.imagePullSecrets=[{name: a}]", {"global": {"imagePullSecrets": [{"name": "a"}]}}),
    ],
)
def test_settings_are_read_as_helm_reads_them_and_by_the_type_of_the_value(text: str, made: dict[str, Any]) -> None:
    assert given.settings([text]) == made


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("controller.replicas", "--set controller.replicas: give PATH=VALUE"),
        ("controller.replicas=two", '--set: controller.replicas: "two": give a whole number'),
        ("controller.tolerations[0].key=a", "an entry of a list cannot be set; give the whole list"),
        ("controller.replcas=2", "--set: controller.replcas: there is no such value; did you mean controller.replicas?"),
    ],
)
def test_a_wrong_setting_is_named(text: str, said: str) -> None:
    with pytest.raises(given.BadValues, match=re.escape(said)):
        given.settings([text])


def test_one_namespace_refuses_values_that_it_has_no_place_for(tmp_path: Path) -> None:
    words = ["install", "--overlay", "namespaced", "-n", "team", "--image", IMAGE, "-o", "yaml"]
    said = CliRunner().invoke(main, [*words, "--set", "webhook.failurePolicy=Fail"], env={"KUBECONFIG": ""})
    assert said.exit_code == 2
    assert "webhook: this needs the overlay standalone; it has no effect with namespaced, so leave it out" in said.stderr
    assert CliRunner().invoke(main, [*words, "--set", "controller.replicas=1"], env={"KUBECONFIG": ""}).exit_code == 0


def test_the_printed_values_are_all_values_with_their_defaults() -> None:
    said = CliRunner().invoke(main, ["install", "--print-values"])
    assert (said.exit_code, said.stdout) == (0, values_yaml())
    assert yaml.safe_load(said.stdout) == given.complete({})


def test_a_diff_shows_what_would_change_and_changes_nothing(tmp_path: Path) -> None:
    cluster = installed(tmp_path)
    same = install(cluster, tmp_path, "--diff")
    assert (same.exit_code, same.stdout) == (0, "Nothing differs.\n")
    said = install(cluster, tmp_path, "--diff", "--set", "controller.replicas=3,dashboard.enabled=true")
    lines = said.stdout.splitlines()
    assert f"  Deployment {SYSTEM}/elastic-controller changes:" in lines
    assert {"-  replicas: 2", "+  replicas: 3", f"+ Deployment {SYSTEM}/elastic-dashboard is created"} <= set(lines)
    assert not [line for line in lines if "elastic-webhook" in line], "it stays as it is"
    gone = install(cluster, tmp_path, "--diff", "--set", "networkPolicies.enabled=false").stdout.splitlines()
    assert f"- NetworkPolicy {SYSTEM}/elastic-rendezvous is deleted" in gone
    assert gone[-1] == "Nothing was changed."
    assert cluster.applied == []


def test_at_a_terminal_a_change_is_shown_and_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        """Standard input and output of `elastic install`, at a terminal."""

        stdin = stdout = property(lambda self: self)

        def isatty(self) -> bool:
            return True

    cluster = installed(tmp_path)
    monkeypatch.setattr("elastic.cli.installing.carrying_out.sys", Terminal())
    said = install(cluster, tmp_path, "--set", "controller.replicas=3")
    assert "+  replicas: 3" in said.stdout
    assert ("Make these changes?" in said.stdout, cluster.applied) == (True, []), "no answer is no agreement"
    assert install(cluster, tmp_path, "--set", "controller.replicas=3", "--yes").exit_code == 0
    assert replicas(cluster) == 3
    same = install(cluster, tmp_path)
    assert (same.exit_code, "Make these changes?" in same.stdout) == (0, False), "nothing changes, so nothing is asked"


@pytest.mark.parametrize("image", ["r/elastic-training:0.0.1", "r:5000/elastic-training:v99.0.0@sha256:0"])
def test_an_image_of_another_release_is_named(tmp_path: Path, image: str) -> None:
    said = install(Cluster(), tmp_path, "--image", image)
    assert said.exit_code == 0, said.output
    assert f"warning: the image is {image}, but this command is {OURS}" in said.stderr
    assert f"Give an image of {OURS}, or take the command of release " in said.stderr


@pytest.mark.parametrize("tag", [f":{OURS}", f":v{OURS}", ":prod", ":2026-11-29", ":1", "@sha256:0", ""])
def test_a_tag_that_names_this_release_or_none_is_taken_silently(tmp_path: Path, tag: str) -> None:
    said = CliRunner().invoke(main, ["install", "--image", f"r:5000/elastic-training{tag}", "-o", "yaml"], env={"KUBECONFIG": ""})
    assert (said.exit_code, "warning" in said.stderr) == (0, False)


def test_a_secret_that_the_user_makes_must_be_there(tmp_path: Path) -> None:
    cluster = Cluster()
    said = install(cluster, tmp_path, "--image", IMAGE, "--set", "installation.create=false")
    assert (said.exit_code, cluster.applied) == (1, [])
    assert f"the Secret {SYSTEM}/elastic-installation does not exist; create it with deploy/installation.sh" in said.stderr
    cluster = installed(tmp_path)
    assert install(cluster, tmp_path, "--set", "installation.create=false").exit_code == 0


def test_certificates_of_cert_manager_need_it(tmp_path: Path) -> None:
    cluster = Cluster()
    said = install(cluster, tmp_path, "--image", IMAGE, "--set", "webhook.certificates=certManager")
    assert (said.exit_code, cluster.applied) == (1, [])
    assert "webhook.certificates: certManager needs cert-manager (cert-manager.io is not served here); install it first" in said.stderr


def test_a_change_that_somebody_else_made_to_another_field_stays(tmp_path: Path) -> None:
    """The command applies only its own fields, so the API server keeps all others."""
    cluster = installed(tmp_path)
    install(cluster, tmp_path)
    (body,) = [body for path, body in cluster.applied if path.endswith("/deployments/elastic-controller")]
    assert "paused" not in body["spec"]
    assert "nodeSelector" not in body["spec"]["template"]["spec"]
    assert "imagePullPolicy" not in body["spec"]["template"]["spec"]["containers"][0]


def test_each_workload_is_told_once_it_is_ready(tmp_path: Path) -> None:
    said = install(Cluster(), tmp_path, "--image", IMAGE)
    assert f"Deployment {SYSTEM}/elastic-controller is ready\nDeployment {SYSTEM}/elastic-rendezvous is ready\n" in said.stdout


def test_on_a_terminal_one_line_tells_what_is_waited_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    progress.show("a", after_s=1)
    progress.show("b" * 100, after_s=2)
    progress.end()
    _, first, second, last = capsys.readouterr().err.split("\r\x1b[K")
    assert (first, len(second), second[-3:], last) == ("waits for a (1 s)", 39, "...", "")


def test_a_path_of_dots_and_a_value_that_contains_itself_are_named() -> None:
    """Both ended in a traceback."""
    with pytest.raises(BadValues, match=r"--set ...=x: give PATH=VALUE"):
        settings(["...=x"])
    with pytest.raises(BadValues, match=r"v.yaml: an alias refers to a value that contains it; write the value out"):
        read("v.yaml", "controller: &a {resources: {requests: {cpu: *a}}}")
