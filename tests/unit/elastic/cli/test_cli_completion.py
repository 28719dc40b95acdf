"""Complete names as the shell asks click for them."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from cli_api import Api, job, namespace, running, served
from click.shell_completion import ShellComplete

from elastic.cli import SECTIONS, completion, main
from elastic.local.files import ClusterState, Layout

ABOUT_JOBS = [name for name in SECTIONS["Jobs"] if name != "run"]
"""The commands about jobs by name. `run` takes files."""


def completed(*words: str) -> list[str]:
    """Return the shell's offers for the last of these words."""
    found = ShellComplete(main, {}, "elastic", "_ELASTIC_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return [one.value for one in found]


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Api:
    """Return an API server with a few jobs and a node."""
    tensor = job("tensor", kind="TFJob", status=running())
    node = {"kind": "Node", "metadata": {"name": "node-0"}}
    return Api(namespace("team"), job("train", status=running()), job("test", status=running()), tensor, node)


def test_jobs_are_completed_by_what_is_typed_of_them(tmp_path: Path, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(api, tmp_path) as kubeconfig:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        for command in ABOUT_JOBS:
            assert completed(command, "t") == ["tensor", "test", "train"], command
        assert completed("delete", "test", "te") == ["tensor"], "the other one stands there already"
        assert completed("describe", "tfjob", "") == ["tensor"]
        assert completed("describe", "pytorchjob/t") == ["pytorchjob/test", "pytorchjob/train"]
        assert completed("get", "nokind/t") == []
        assert completed("get", "-n", "team", "t") == []


def test_namespaces_and_nodes_are_completed(tmp_path: Path, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(api, tmp_path) as kubeconfig:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        assert completed("get", "-n", "t") == ["team"]
        assert completed("doctor", "--namespace", "") == ["default", "team"]
        state = ClusterState(
            supervisor=os.getpid(), sandbox="none", server="", kubeconfig="", nodes=1, gpus=0, control_plane=True, processes={}
        )
        folder = tmp_path / "laptop"
        folder.mkdir()
        Layout(folder).write_state(msgspec.structs.replace(state, kubeconfig=str(kubeconfig)))
        Layout(folder).kubeconfig.write_bytes(kubeconfig.read_bytes())
        assert completed("node", "kill", "--data-dir", str(folder), "n") == ["node-0"]
        assert completed("node", "kill", "--data-dir", str(tmp_path), "n") == []


def test_without_a_cluster_that_answers_nothing_is_completed_nor_said(
    tmp_path: Path, api: Api, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with served(api, tmp_path) as kubeconfig:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        monkeypatch.setattr(completion, "WITHIN_S", 0.0)
        assert completed("get", "t") == [], "an answer comes too late"
        monkeypatch.setattr(completion, "WITHIN_S", 1.0)
        api.refuses = (403, "no")
        assert completed("get", "t") == []
    assert completed("get", "t") == [], "nobody listens any more"
    for text in ("no: [yaml", "{}"):
        kubeconfig.write_text(text)
        assert completed("get", "t") == []
    kubeconfig.unlink()
    assert completed("get", "t") == []
    assert capfd.readouterr() == ("", "")
