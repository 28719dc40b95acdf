"""Check that `elastic node list`, `up` and `status` show all running nodes, however they were added."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cli_api import Api, served
from click.testing import CliRunner

from elastic.cli import main
from elastic.cli.node_list import nodes_table, rows_of
from elastic.cli.up import _nodes
from elastic.kube.nodes import those_there
from elastic.local import LocalCluster
from elastic.local.agent.roster import Member, Roster, played, read, write
from elastic.local.files import ClusterState, FolderError, Layout, Shape

STATE = ClusterState(supervisor=1, sandbox="none", server="", kubeconfig="", nodes=2, gpus=1, control_plane=False, processes={})
MADE = "2026-01-01T00:00:00Z"


def a_node(name: str, *, ready: str = "True", gpus: str | None = None, **spec: object) -> dict[str, Any]:
    capacity = {"cpu": "2"} | ({"nvidia.com/gpu": gpus} if gpus else {})
    status = {"conditions": [{"type": "Ready", "status": ready}], "capacity": capacity}
    return {"metadata": {"name": name, "creationTimestamp": MADE}, "spec": spec, "status": status}


def a_pod(node: str, phase: str) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"nodeName": node}, "status": {"phase": phase}}


def test_a_row_says_what_a_user_asks_of_a_node() -> None:
    taint = {"key": "spot", "value": "going", "effect": "NoSchedule"}
    nodes = [a_node("spare", gpus="2", taints=[taint, {"key": "gone", "effect": "NoExecute"}]), a_node("node-0", unschedulable=True)]
    pods = [a_pod("spare", "Running"), a_pod("spare", "Pending"), a_pod("spare", "Succeeded"), a_pod("node-0", "Failed")]
    rows = rows_of(
        [*nodes, a_node("node-1", ready="Unknown"), a_node("node-2")], pods, Roster(added=(Member("spare"),), killed=("node-2",))
    )
    assert [(row["name"], row["state"], row["gpus"], row["pods"], row["added"]) for row in rows] == [
        ("node-0", "Ready,SchedulingDisabled", 0, 0, False),
        ("node-1", "NotReady", 0, 0, False),
        ("node-2", "Killed", 0, 0, False),
        ("spare", "Ready", 2, 2, True),
    ]
    last = nodes_table(rows, datetime(2026, 1, 1, 1, tzinfo=UTC)).splitlines()[-1]
    assert last.split() == ["spare", "Ready", "2", "2", "60m", "spot=going:NoSchedule,gone:NoExecute"]


def test_up_and_status_count_what_an_earlier_life_added(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert _nodes(STATE, layout) == "2 node(s)"
    write(layout.roster, Roster().with_member(Member("spare")).with_member(Member("node-1", gpus=4)).without("node-0"))
    assert _nodes(STATE, layout) == "2 node(s), the added spare among them"
    assert played(layout, STATE) == [Member("node-1", gpus=4), Member("spare")]


def test_a_roster_that_no_cluster_wrote_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nodes.json").write_text("[]")
    with pytest.raises(FolderError, match=r"nodes.json was not written by a cluster .*; move it away"):
        read(Layout(tmp_path).roster)
    done = CliRunner().invoke(main, ["node", "list", "--data-dir", str(tmp_path)])
    assert done.exit_code == 1
    assert "was not written by a cluster" in done.output


@pytest.mark.parametrize(
    ("stored", "wish", "wanted"),
    [
        (None, {}, ["1", "0"]),
        (Shape(3, 2), {}, ["3", "2"]),
        (Shape(3, 2), {"nodes": 1}, ["1", "2"]),
        (Shape(3, 2), {"nodes": 0, "gpus": 0}, ["0", "0"]),
    ],
)
def test_a_cluster_starts_with_the_size_of_the_last_time(
    tmp_path: Path, stored: Shape | None, wish: dict[str, Any], wanted: list[str]
) -> None:
    if stored is not None:
        Layout(tmp_path).shape.write_bytes(msgspec.json.encode(stored))
    words = LocalCluster(data_dir=tmp_path, **wish)._arguments
    assert [words[words.index(option) + 1] for option in ("--nodes", "--gpus")] == wanted


def test_without_a_cluster_the_list_says_how_to_start_one(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["node", "list", "--data-dir", str(tmp_path)])
    assert (done.exit_code, done.output) == (1, f"Error: no cluster runs in {tmp_path}; start one with `elastic up`\n")


@pytest.mark.parametrize("words", [("down",), ("status",), ("node", "list")])
def test_the_cluster_is_that_of_the_kubeconfig_that_up_said_to_export(tmp_path: Path, words: tuple[str, ...]) -> None:
    """`elastic down` looked into ~/.elastic, found no cluster there, and left the cluster running."""
    layout = Layout(tmp_path.resolve())
    layout.kubeconfig.write_text("{}")
    layout.lock.touch()
    layout.root.joinpath("ca.key").touch()
    said = CliRunner().invoke(main, list(words), env={"KUBECONFIG": str(layout.kubeconfig)}).output
    assert f"no cluster runs in {layout.root}" in said
    assert str(layout.root) not in CliRunner().invoke(main, list(words), env={"KUBECONFIG": str(tmp_path / "other")}).output


def running_in(folder: Path, server: Path) -> str:
    """Prepare a data folder whose cluster is this process and that API server. Return its path."""
    Layout(folder).write_state(msgspec.structs.replace(STATE, supervisor=os.getpid(), kubeconfig=str(server)))
    return str(folder)


@pytest.mark.parametrize("words", [("drain",), ("reclaim",), ("taint", "a:NoSchedule")])
def test_a_node_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path, words: tuple[str, ...]) -> None:
    nodes = [{"kind": "Node", **a_node(name)} for name in ("spare", "node-0")]
    with served(Api(*nodes), tmp_path) as server:
        said = CliRunner().invoke(main, ["node", words[0], "spar", *words[1:], "--data-dir", running_in(tmp_path, server)])
    assert (said.exit_code, said.stderr) == (1, "Error: there is no node spar; nodes: node-0, spare; did you mean spare?\n")


def test_the_node_that_was_meant_is_named_among_many() -> None:
    many = [f"node-{index}" for index in range(30)]
    assert those_there("spar", [*many, "spare"]).endswith(" and 21 more; did you mean spare?")
    assert those_there("node-1", ["node-0"]) == "; nodes: node-0"
    assert those_there("spar", []) == "; nodes: none"


@pytest.mark.parametrize("output", ["table", "json"])
def test_status_of_a_cluster_that_lacks_a_process_is_no_success(tmp_path: Path, output: str) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    for processes, code in (({"agents": os.getpid()}, 0), ({"agents": ended.pid}, 1)):
        Layout(tmp_path).write_state(msgspec.structs.replace(STATE, supervisor=os.getpid(), processes=processes))
        assert CliRunner().invoke(main, ["status", "--data-dir", str(tmp_path), "-o", output]).exit_code == code
