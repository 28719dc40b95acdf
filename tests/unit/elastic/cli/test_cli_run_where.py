"""Check the choice of a cluster by `elastic run`, as far as it happens before any cluster is asked."""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_api import Api, served
from click.testing import CliRunner, Result

from elastic.cli import main
from elastic.client import errors
from elastic.client.cluster import connect
from elastic.local import etcd
from elastic.local.cluster import LocalCluster
from elastic.local.files import ClusterState, Layout

command = importlib.import_module("elastic.cli.run")
place = importlib.import_module("elastic.cli.run_place")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(JOB))
    return path


JOB = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "a"},
    "spec": {
        "pytorchReplicaSpecs": {"Worker": {"template": {"spec": {"containers": [{"name": "pytorch", "image": "i", "command": ["true"]}]}}}}
    },
}


def run(file: Path, *options: str, kubeconfig: str = "") -> Result:
    return CliRunner().invoke(main, ["run", *options, str(file)], env={"KUBECONFIG": kubeconfig})


def test_the_environment_is_read_as_the_option_is_and_a_list_of_files_refused(file: Path, tmp_path: Path) -> None:
    missing = run(file, kubeconfig="/no/such")
    assert (missing.exit_code, "there is no file /no/such; unset KUBECONFIG to use the laptop cluster" in missing.stderr) == (2, True)
    several = run(file, kubeconfig="/a:/b")
    assert (several.exit_code, "KUBECONFIG names 2 files; name the one to use with --kubeconfig" in several.stderr) == (2, True)
    (tmp_path / "empty").write_text("")
    for chosen in (run(file, kubeconfig=str(tmp_path / "empty")), run(file, "--kubeconfig", str(tmp_path / "empty"), kubeconfig="/a:/b")):
        assert (chosen.exit_code, f"kubeconfig {tmp_path}/empty is not a mapping" in chosen.stderr) == (2, True)


def test_an_option_that_names_a_cluster_wins_over_the_environment(file: Path, tmp_path: Path) -> None:
    for options in (("--data-dir", "/no/such/folder"), ("--data-dir=/no/such/folder",)):
        answer = run(file, *options, kubeconfig=str(tmp_path))
        assert (answer.exit_code, "no cluster runs in /no/such/folder" in answer.stderr) == (2, True)
    both = run(file, "--data-dir", "/no/such/folder", "--kubeconfig", str(file))
    assert (both.exit_code, "--kubeconfig and --data-dir name two clusters" in both.stderr) == (2, True)


def test_options_for_a_new_cluster_are_refused_for_an_existing_one(file: Path, tmp_path: Path) -> None:
    (tmp_path / "venv/bin").mkdir(parents=True)
    answer = run(file, "--image", f"train={tmp_path}/venv", "--gpus", "2", kubeconfig=str(file))
    assert answer.exit_code == 2
    said = (
        f"--image train={tmp_path}/venv --gpus 2 is for a cluster that is started for this run, but the one of {file} is used; leave it out"
    )
    assert said in answer.stderr
    for options in (("--sandbox", "loopback"), ("--sandbox", "netns")):
        assert f"{' '.join(options)} is for a cluster that is started" in run(file, *options, kubeconfig=str(file)).stderr


def test_the_sandbox_of_a_cluster_that_run_starts_is_chosen_as_for_up(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[LocalCluster]
) -> None:
    monkeypatch.setattr(place, "default_data_dir", lambda: tmp_path / "none")
    for options, wanted in ((("--sandbox", "loopback"), "loopback"), ((), "auto")):
        assert run(file, *options).exit_code == 0
        words = started[-1]._arguments
        assert words[words.index("--sandbox") + 1] == wanted


def test_a_running_cluster_of_that_sandbox_is_taken() -> None:
    shape = place.Shape(gpus=0, is_asked=True, sandbox="loopback", images={})
    assert shape.options(running="loopback") == []
    assert shape.options(running="netns") == ["--sandbox loopback"]


def test_a_running_cluster_with_the_same_folder_for_the_image_is_taken(tmp_path: Path) -> None:
    """`elastic up --image A=B` and then a page's `elastic run --image A=B` was refused."""
    shape = place.Shape(gpus=0, is_asked=True, sandbox=None, images={"train": tmp_path})
    assert shape.options(running="netns", has={"train": str(tmp_path)}) == []
    assert shape.options(running="netns", has={"train": "/other"}) == [f"--image train={tmp_path}"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[LocalCluster]:
    """Collect the clusters that were started, without processes; each job on them succeeds at once."""
    clusters: list[LocalCluster] = []

    async def succeed(*_: Any, **__: Any) -> int:
        return 0

    monkeypatch.setattr(LocalCluster, "start", lambda cluster, **_: clusters.append(cluster))
    monkeypatch.setattr(LocalCluster, "sandbox", "loopback")
    monkeypatch.setattr(command, "_run", succeed)
    monkeypatch.setattr(command, "end_by_sigterm", lambda: None)
    return clusters


def test_a_cluster_that_run_starts_says_how_to_watch_it(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[LocalCluster]
) -> None:
    monkeypatch.setattr(place, "default_data_dir", lambda: tmp_path / "none")
    monkeypatch.setattr(place, "link", lambda layout: f"http://127.0.0.1:1/{layout.root.name}")
    said = run(file)
    assert said.exit_code == 0, said.output
    (cluster,) = started
    assert "--dashboard" in cluster._arguments, "step, speed and loss come from it"
    assert f"watch it: elastic top --watch --data-dir {cluster.data_dir} (or" in said.stdout
    assert f"the dashboard: http://127.0.0.1:1/{cluster.data_dir.name}\n" in said.stdout


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """Return the kubeconfig of a laptop cluster that was stopped."""
    folder = tmp_path / "laptop"
    folder.mkdir()
    for name in ("lock", "ca.key"):
        (folder / name).touch()
    context = {"name": "elastic", "context": {"cluster": "elastic"}}
    clusters = [{"name": "elastic", "cluster": {"server": "http://127.0.0.1:9"}}]
    config = {"current-context": "elastic", "contexts": [context], "clusters": clusters}
    (folder / "kubeconfig").write_text(json.dumps(config))
    return folder / "kubeconfig"


@pytest.mark.parametrize("name", ["job.json", "train.py"])
def test_run_starts_the_stopped_laptop_cluster_of_the_kubeconfig(
    name: str, file: Path, tmp_path: Path, stopped: Path, started: list[LocalCluster]
) -> None:
    (tmp_path / "train.py").write_text("")
    said = run(tmp_path / name, kubeconfig=str(stopped))
    assert said.exit_code == 0, said.output
    assert f"the laptop cluster in {stopped.parent} is stopped: starting it for this run" in said.stdout
    assert [cluster.data_dir for cluster in started] == [stopped.parent]


@pytest.mark.parametrize("words", [["get"], ["top"], ["logs", "a"], ["explain", "a"]])
def test_other_commands_say_that_the_laptop_cluster_of_the_kubeconfig_is_stopped(words: list[str], stopped: Path) -> None:
    said = CliRunner().invoke(main, words, env={"KUBECONFIG": str(stopped)})
    line = f"Error: the laptop cluster in {stopped.parent} is stopped; start it with `elastic up --detach --data-dir {stopped.parent}`\n"
    assert (said.exit_code, said.stderr) == (1, line)
    with pytest.raises(errors.NoCluster, match=f"the laptop cluster in {stopped.parent} is stopped"):
        connect(stopped, context=None, namespace=None, data_dir=None)


def test_a_detached_run_starts_no_cluster_for_there_is_none_in_which_its_job_goes_on(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "default_data_dir", lambda: tmp_path / "none")
    answer = run(file, "--detach")
    wanted = "no cluster runs in which the job could go on; start one with `elastic up --detach`, or leave --detach out"
    assert (answer.exit_code, wanted in answer.stderr) == (2, True), answer.output


@pytest.mark.parametrize("is_laptop", [True, False])
def test_a_cluster_that_does_not_know_the_kind_is_given_what_fits_it(file: Path, tmp_path: Path, is_laptop: bool) -> None:
    """A laptop cluster started with --cluster-only was told to `elastic install`, which wants images."""
    of_laptop = {"kind": "Node", "metadata": {"name": "node-0", "labels": {"elastic-training/played-by": "x"}}}
    with served(Api(*([of_laptop] if is_laptop else []), kinds=False), tmp_path) as kubeconfig:
        answer = run(file, "--kubeconfig", str(kubeconfig))
    assert (answer.exit_code, "the cluster does not know PyTorchJob; " in answer.stderr) == (2, True)
    assert ("--cluster-only: `elastic down`, then `elastic up` without it" in answer.stderr) == is_laptop
    assert ("`elastic install`" in answer.stderr) == (not is_laptop)


@pytest.mark.parametrize("option", ["--data-dir", "--kubeconfig", "$KUBECONFIG"])
def test_a_laptop_cluster_without_a_control_plane_is_refused_however_it_is_named(file: Path, tmp_path: Path, option: str) -> None:
    """With the kubeconfig that `elastic up` says to export, a job whose kind an earlier life had left waited for a controller for ever."""
    state = ClusterState(
        supervisor=os.getpid(), sandbox="none", server="", kubeconfig="", nodes=1, gpus=0, control_plane=False, processes={}
    )
    layout = Layout(tmp_path / "laptop")
    layout.root.mkdir()
    layout.write_state(state)
    layout.kubeconfig.touch()
    named = {"--data-dir": layout.root, "--kubeconfig": layout.kubeconfig}
    answer = run(file, option, str(named[option])) if option in named else run(file, kubeconfig=str(layout.kubeconfig))
    where = f"--data-dir {layout.root}"
    words = f"because it was started with --cluster-only: `elastic down {where}`, then `elastic up {where}` without it"
    assert (answer.exit_code, words in answer.stderr) == (2, True)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"sandbox": "netns", "python": sys.prefix}, ["pods reach no network outside this machine"]),
        (
            {"sandbox": "loopback", "python": "/other"},
            [f"commands run in the Python environment /other, which started the cluster, not in {sys.prefix}"],
        ),
        ({"sandbox": "loopback", "python": sys.prefix}, []),
        ({"sandbox": "loopback"}, []),
    ],
    ids=["no network", "another Python", "nothing to know", "a former release"],
)
def test_run_tells_why_a_script_that_works_in_the_shell_may_fail_in_a_running_cluster(
    file: Path, tmp_path: Path, started: list[LocalCluster], state: dict[str, str], words: list[str]
) -> None:
    """A script failed for a package that its user had installed into another environment, and for a download."""
    layout = running_layout(tmp_path, **state)
    said = run(file, "--data-dir", str(layout.root))
    assert (said.exit_code, started) == (0, []), said.output
    told = [line for line in said.stdout.splitlines() if "it runs on the laptop cluster in " in line or "commands run in " in line]
    assert len(told) == len(words)
    assert all(part in line for part, line in zip(words, told, strict=True))


@pytest.fixture
def of_etcd(tmp_path: Path) -> Path:
    path = tmp_path / "etcd.json"
    path.write_text(
        json.dumps({**JOB, "spec": JOB["spec"] | {"elasticPolicy": {"rdzvBackend": "etcd", "minReplicas": 1, "maxReplicas": 2}}})
    )
    return path


def test_a_job_that_needs_an_etcd_starts_no_cluster_without_one(of_etcd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ran into torch's own handler, and the command waited for ever."""
    monkeypatch.setattr(place, "default_data_dir", lambda: tmp_path / "none")
    monkeypatch.setattr(etcd, "program", lambda: None)
    answer = run(of_etcd)
    assert answer.exit_code == 2
    assert "PyTorchJob a: elasticPolicy.rdzvBackend is an etcd, rdzvHost names none, and none is installed here" in answer.stderr
    assert "install etcd 3.4 or newer (sudo apt-get install etcd-server)" in answer.stderr
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("is_installed", [True, False])
def test_a_cluster_that_was_started_without_etcd_is_to_be_restarted(
    of_etcd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_installed: bool
) -> None:
    monkeypatch.setattr(etcd, "program", lambda: Path("/usr/bin/etcd") if is_installed else None)
    layout = running_layout(tmp_path, has_etcd=False)
    answer = run(of_etcd, "--data-dir", str(layout.root))
    where = f"--data-dir {layout.root}"
    assert answer.exit_code == 2
    assert f"restart the cluster with `elastic down {where}` and `elastic up --detach {where}`" in answer.stderr
    assert ("install etcd" in answer.stderr) == (not is_installed)


def test_a_cluster_with_an_etcd_takes_such_a_job(of_etcd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a cluster of a former release, whose state says nothing of an etcd."""
    monkeypatch.setattr(etcd, "program", lambda: None)
    layout = running_layout(tmp_path)
    assert "etcd, rdzvHost names none" not in run(of_etcd, "--data-dir", str(layout.root), "--detach").stderr.partition("warning")[0]


def running_layout(tmp_path: Path, **state: Any) -> Layout:
    layout = Layout(tmp_path / "laptop")
    layout.root.mkdir()
    layout.kubeconfig.touch()
    pids: dict[str, int] = {}
    known: dict[str, Any] = {"supervisor": os.getpid(), "nodes": 1, "gpus": 0, "control_plane": True, "processes": pids}
    words = {"sandbox": "none", "server": "", "kubeconfig": ""}
    layout.write_state(ClusterState(**{**known, **words, **state}))
    return layout
