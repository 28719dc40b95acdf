"""Type what kubectl's users type: all namespaces, selectors, times with units, all jobs at once, and missing names."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_api import Api, elastic, job, namespace, pod, running, served
from click.testing import CliRunner, Result

from elastic.cli import main
from elastic.cli.options import Seconds


def asked(tmp_path: Path, api: Api, *words: str) -> Result:
    with served(api, tmp_path) as kubeconfig:
        return elastic(kubeconfig, *words)


def labelled(name: str, where: str = "default", **labels: str) -> dict[str, Any]:
    one = job(name, status=running())
    one["metadata"] |= {"namespace": where, "labels": labels, "uid": f"uid-{where}-{name}"}
    return one


def two_teams() -> Api:
    return Api(namespace("team"), labelled("a", tier="test"), labelled("b"), labelled("a", "team"))


def test_a_name_is_looked_for_in_all_namespaces_and_jobs_by_their_labels(tmp_path: Path) -> None:
    everywhere = asked(tmp_path, two_teams(), "get", "a", "-A").stdout.splitlines()
    assert [line.split()[:2] for line in everywhere[1:]] == [["default", "a"], ["team", "a"]]
    assert "there is no job c in any namespace" in asked(tmp_path, two_teams(), "get", "c", "-A").stderr
    assert asked(tmp_path, two_teams(), "get", "-l", "tier=test", "-o", "name").stdout == "pytorchjob.kubeflow.org/a\n"
    assert asked(tmp_path, two_teams(), "get", "a", "-l", "tier=test").exit_code == 2
    assert asked(tmp_path, two_teams(), "top", "-A").stdout.count("world 3") == 3


def test_only_the_missing_ones_of_several_jobs_are_passed_over(tmp_path: Path) -> None:
    """`delete nope a --ignore-not-found` deleted nothing, and said nothing."""
    api = two_teams()
    said = asked(tmp_path, api, "delete", "nope", "a", "--ignore-not-found", "--no-wait")
    assert (said.exit_code, said.stdout) == (0, "PyTorchJob a deleted\n")
    assert not any(path.endswith("namespaces/default/pytorchjobs/a") for path in api.objects)


def test_all_jobs_of_a_namespace_are_deleted_once_that_is_agreed(tmp_path: Path) -> None:
    api = two_teams()
    shown = asked(tmp_path, api, "delete", "--all", "--no-wait")
    assert "1. delete PyTorchJob a with its pods" in shown.stdout
    assert "Nothing was changed; --yes does it." in shown.stdout
    done = asked(tmp_path, api, "delete", "--all", "--yes", "--no-wait")
    assert "PyTorchJob b deleted" in done.stdout
    assert [path for path in api.objects if "pytorchjobs" in path] == ["/apis/kubeflow.org/v1/namespaces/team/pytorchjobs/a"]
    for words in (["delete"], ["delete", "a", "--all"]):
        assert "name jobs, or give --all or --filename; one of them" in asked(tmp_path, api, *words).stderr


def test_the_jobs_that_a_file_names_are_deleted_and_nothing_else(tmp_path: Path) -> None:
    """The jobs need not be valid. Their namespace is the file's, or else the command's."""
    file = tmp_path / "jobs.yaml"
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    in_team = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "a", "namespace": "team"}, "spec": 1}
    gone = in_team | {"metadata": {"name": "gone"}}
    file.write_text(json.dumps({"kind": "List", "items": [in_team, other]}))
    api = two_teams()
    elsewhere = asked(tmp_path, api, "delete", "-f", str(file), "-n", "default", "--no-wait")
    assert (elsewhere.exit_code, "is of namespace team by its file, and --namespace is default" in elsewhere.stderr) == (1, True)
    said = asked(tmp_path, api, "delete", "-f", str(file), "--no-wait")
    assert (said.exit_code, said.stdout) == (0, "PyTorchJob a deleted\n")
    assert "1 other object(s) of the file(s) stay" in said.stderr
    left = {path.removeprefix("/apis/kubeflow.org/v1/namespaces/") for path in api.objects if "pytorchjobs" in path}
    assert left == {"default/pytorchjobs/a", "default/pytorchjobs/b"}
    file.write_text(json.dumps({"kind": "List", "items": [gone, gone | {"metadata": {"name": "b"}}]}))
    assert "there is no job gone" in asked(tmp_path, api, "delete", "-f", str(file), "--no-wait").stderr
    assert asked(tmp_path, api, "delete", "-f", str(file), "--no-wait", "--ignore-not-found").stdout == "PyTorchJob b deleted\n"
    file.write_text(json.dumps(gone | {"metadata": {"generateName": "a-"}}))
    assert "kind and metadata.name are needed" in asked(tmp_path, api, "delete", "-f", str(file)).stderr
    file.write_text(json.dumps(other))
    assert f"no job is in {file}" in asked(tmp_path, api, "delete", "-f", str(file)).stderr
    assert asked(tmp_path, api, "delete", "a", "-f", str(file)).exit_code == 2


def test_several_jobs_are_described_one_after_the_other(tmp_path: Path) -> None:
    said = asked(tmp_path, two_teams(), "describe", "a", "b").stdout
    assert [line.split()[1] for line in said.splitlines() if line.startswith("Name:")] == ["a", "b"]
    items = json.loads(asked(tmp_path, two_teams(), "describe", "a", "b", "-o", "json").stdout)["items"]
    assert [item["job"]["metadata"]["name"] for item in items] == ["a", "b"]
    assert json.loads(asked(tmp_path, two_teams(), "describe", "b", "-o", "json").stdout)["job"]["metadata"]["name"] == "b"


@pytest.mark.parametrize(("bounds", "words"), [((1, 1), ", 1 allowed"), ((1, 4), ", 1 to 4 allowed")])
def test_a_job_of_one_size_is_not_said_to_have_two(tmp_path: Path, bounds: tuple[int, int], words: str) -> None:
    least, most = bounds
    one = job(workers=1, status=running(), elasticPolicy={"minReplicas": least, "maxReplicas": most})
    assert any(line.endswith(words) for line in asked(tmp_path, Api(one), "describe", "train").stdout.splitlines())


def test_events_of_all_jobs_are_shown_and_no_others(tmp_path: Path) -> None:
    def event(name: str, kind: str, uid: str) -> dict[str, Any]:
        about = {"kind": kind, "name": name, "uid": uid}
        metadata = {"name": f"{name}.1", "namespace": "default"}
        return {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": about, "reason": f"Of{kind}", "message": ""}

    mine = pod(0)
    events = [
        event("train", "PyTorchJob", "x"),
        event("train-worker-0", "Pod", mine["metadata"]["uid"]),
        event("web-1", "Pod", "y"),
        event("claim", "PersistentVolumeClaim", "z"),
    ]
    api = Api(job(status=running()), mine, *events)
    said = asked(tmp_path, api, "events")
    assert {line.split()[1] for line in said.stdout.splitlines()[1:]} == {"OfPyTorchJob", "OfPod"}
    assert len(asked(tmp_path, api, "events", "-A").stdout.splitlines()) == 3
    assert "there is no namespace research" in asked(tmp_path, api, "events", "-n", "research").stderr


def test_finished_and_suspended_jobs_stay_as_they_are(tmp_path: Path) -> None:
    over = running()
    over["conditions"].append({"type": "Failed", "status": "True"})
    api = Api(job(status=over), pod(0))
    said = asked(tmp_path, api, "evict", "train", "--worker", "0")
    assert "has ended (failed); its pods stay for their logs until it is deleted" in said.stderr
    assert "JOB" not in asked(tmp_path, api, "top").stdout, "it uses nothing"
    suspended = Api(job(status=running(), runPolicy={"suspend": True}))
    again = asked(tmp_path, suspended, "suspend", "train")
    assert (again.exit_code, "is suspended already" in again.stdout) == (0, True)


def test_a_laptop_cluster_without_kinds_is_not_told_to_install_them(tmp_path: Path) -> None:
    laptops = {"kind": "Node", "metadata": {"name": "node-0", "labels": {"elastic-training/played-by": "x"}}}
    assert "`elastic up` without it" in asked(tmp_path, Api(laptops, kinds=False), "get").stderr
    assert "`elastic install`" in asked(tmp_path, Api(kinds=False), "get").stderr


def test_a_namespace_that_is_missing_is_named_by_top(tmp_path: Path) -> None:
    said = asked(tmp_path, two_teams(), "top", "-n", "research")
    assert (said.exit_code, "there is no namespace research" in said.stderr) == (1, True)


def test_doctor_finds_that_a_namespace_is_missing_though_one_has_rights_there(tmp_path: Path) -> None:
    said = asked(tmp_path, two_teams(), "doctor", "-n", "research")
    assert any(
        line.split()[:2] == ["bad", "namespace"] and "kubectl create namespace research" in line for line in said.stdout.splitlines()
    )
    assert said.exit_code == 1
    assert "there is no namespace" not in asked(tmp_path, two_teams(), "doctor", "-n", "team").stdout


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5", 1.5), ("90s", 90), ("2m", 120), ("1h30m", 5400), ("1h2m3s", 3723), ("0", 0)]
)
def test_a_time_is_written_as_kubectl_takes_it(text: str, seconds: float) -> None:
    assert Seconds()(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "2 m", "-1", "1d", "s", "1m1h", "nan", "1e9", "²", "9" * 400])
def test_an_invalid_time_is_refused(text: str) -> None:
    said = CliRunner().invoke(main, ["delete", "x", "--timeout", text])
    assert said.exit_code == 2
    assert "is no time; write seconds, or as in 90s, 2m, 1h30m" in said.stderr


def test_help_and_version_are_commands_too(tmp_path: Path) -> None:
    assert "Add a node" in CliRunner().invoke(main, ["help", "node", "add"]).stdout
    assert "Usage:" in CliRunner().invoke(main, ["help"]).stdout
    assert CliRunner().invoke(main, ["help", "nope"]).exit_code == 2
    assert CliRunner().invoke(main, ["version"]).stdout.startswith("elastic, version ")


def test_a_closed_output_is_no_traceback(tmp_path: Path) -> None:
    with served(two_teams(), tmp_path) as kubeconfig:
        line = f"exec {sys.executable} -m elastic.cli get --kubeconfig {kubeconfig} >&-"
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_folder_without_job_files_is_no_valid_folder(tmp_path: Path) -> None:
    said = CliRunner().invoke(main, ["validate", str(tmp_path)])
    assert (said.exit_code, "there is no .yaml, .yml, .json file in this folder" in said.stdout) == (2, True)


def test_changes_of_jobs_are_data_for_programs(tmp_path: Path) -> None:
    def items(api: Api, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(asked(tmp_path, api, *words, "-o", "json").stdout)["items"]
        return found

    api = two_teams()
    at = {"kind": "PyTorchJob", "namespace": "default", "name": "a"}
    assert items(api, "scale", "a", "--workers", "4") == [{**at, "did": "scaled", "workers": 4, "before": 3}]
    assert items(api, "scale", "a", "--workers", "4") == [{**at, "did": "nothing", "workers": 4}]
    assert items(api, "suspend", "a") == [{**at, "did": "suspended"}]
    assert items(api, "resume", "a") == [{**at, "did": "resumed"}]
    assert items(api, "resume", "a") == [{**at, "did": "nothing"}]
    assert items(api, "delete", "a", "--no-wait") == [{**at, "did": "deleted"}]
    assert "add --yes" in asked(tmp_path, api, "delete", "--all", "-o", "json").stderr
    assert items(api, "delete", "--all", "--yes", "--no-wait") == [{**at, "name": "b", "did": "deleted"}]
    with_pod = Api(job(status=running()), pod(0))
    assert items(with_pod, "evict", "train", "--worker", "0") == [{**at, "name": "train", "did": "evicted", "pod": "train-worker-0"}]
    rows = json.loads(CliRunner().invoke(main, ["signals", "-o", "json"]).stdout)["signals"]
    assert {"aws-spot", "gke-termination"} <= {row["name"] for row in rows}
