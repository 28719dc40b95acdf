"""Check that every command has `-o json|yaml`, or says why it has not."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import yaml
from cli_api import Api, elastic, job, running, served
from click.testing import CliRunner, Result

from elastic.cli import main
from elastic.cli import node as nodes
from elastic.cli.without_data import WHY
from elastic.local.files import ClusterState, Layout


def commands(group: click.Command = main, *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield all commands that are no groups, with their names."""
    if not isinstance(group, click.Group):
        yield words, group
        return
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield from commands(found, *words, name)


def formats(command: click.Command) -> set[str]:
    chosen = [option.type for option in command.params if "-o" in option.opts and "--output" in option.opts]
    return {str(choice) for kind in chosen if isinstance(kind, click.Choice) for choice in kind.choices}


def test_every_command_prints_data_or_says_why_not() -> None:
    without = set()
    for words, command in commands():
        if formats(command) >= {"json", "yaml"}:
            continue
        without.add(" ".join(words))
        for option in (["-o", "json"], ["--output=yaml"], ["-oyaml"]):
            said = CliRunner().invoke(main, [*words, *option])
            assert (said.exit_code, " has no -" in said.stderr) == (2, True), words
            assert WHY[words[-1]] in said.stderr
    assert without == set(WHY)


def test_an_option_that_is_missing_otherwise_is_told_as_before(tmp_path: Path) -> None:
    said = CliRunner().invoke(main, ["logs", "train", "-z"])
    assert (said.exit_code, "has no" in said.stderr, "-z" in said.stderr) == (2, False, True)
    script = tmp_path / "train.py"
    script.touch()
    said = CliRunner().invoke(main, ["run", str(script), "-o", "json"])
    assert "The script's own options stand after `--`" in said.stderr


def test_a_network_that_is_too_slow_is_not_taken_for_the_users_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command printed a verdict without a name, and failed at a number of seconds that nobody had given."""

    async def too_slow(*_: object) -> object:
        raise TimeoutError

    monkeypatch.setattr("elastic.cli.jobs.found.one", too_slow)
    with served(Api(job()), tmp_path) as kubeconfig:
        said = elastic(kubeconfig, "wait", "train", "-o", "json")
    assert (said.exit_code, said.stdout) == (1, "")
    assert "in time" in said.stderr


def test_the_result_of_a_wait_is_data_for_programs(tmp_path: Path) -> None:
    def waited(api: Api, *words: str) -> tuple[int, dict[str, Any]]:
        with served(api, tmp_path) as kubeconfig:
            said = elastic(kubeconfig, "wait", "train", *words)
        found: dict[str, Any] = yaml.safe_load(said.stdout)
        return said.exit_code, found

    at = {"kind": "PyTorchJob", "namespace": "default", "name": "train"}
    assert waited(Api(job(status=running())), "--for", "running", "-o", "json") == (
        0,
        {**at, "for": "running", "met": True, "is": "running"},
    )
    over = running()
    over["conditions"].append({"type": "Failed", "status": "True", "message": "no"})
    assert waited(Api(job(status=over)), "-o", "yaml") == (1, {**at, "for": "over", "met": False, "is": "failed"})
    assert waited(Api(job(status=running())), "--timeout", "0.3", "-o", "json") == (1, {**at, "for": "over", "met": False, "is": None})
    assert waited(Api(), "--for", "deleted", "-o", "json") == (0, {"for": "deleted", "met": True, "is": "deleted"})


def test_changes_of_nodes_are_data_for_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(nodes, "ask_agents", lambda folder, request: asked.append(request))
    api = Api({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "resourceVersion": "1"}, "spec": {}})
    with served(api, tmp_path) as kubeconfig:
        state = ClusterState(
            supervisor=os.getpid(), sandbox="none", server="", kubeconfig=str(kubeconfig), nodes=1, gpus=0, control_plane=True, processes={}
        )
        Layout(tmp_path).write_state(state)

        def items(*words: str) -> list[dict[str, Any]]:
            said: Result = CliRunner().invoke(main, ["node", *words, "--data-dir", str(tmp_path), "-o", "json"])
            assert said.exit_code == 0, said.output
            found: list[dict[str, Any]] = json.loads(said.stdout)["items"]
            return found

        node = {"kind": "Node", "name": "n"}
        assert items("taint", "n", "a=b:NoSchedule", "a-") == [
            {**node, "did": "taint set", "taint": "a=b:NoSchedule"},
            {**node, "did": "taint removed", "taint": "a"},
        ]
        assert items("drain", "n") == [{**node, "did": "drained"}]
        assert items("reclaim", "n", "--like", "gke-termination", "--seconds", "0") == [
            {**node, "did": "signal given", "signal": "gke-termination"},
            {**node, "did": "reclaimed"},
        ]
        assert items("add", "n") == [{**node, "did": "added"}]
        assert items("kill", "n") == [{**node, "did": "killed"}]
    assert [msgspec.structs.asdict(one)["name"] for one in asked] == ["n", "n", "n"]  # type: ignore[arg-type]
