"""The example of a notebook, which has the cells of docs/notebook.md, run one cell after the other on the laptop cluster."""

from __future__ import annotations

import ast
import json
import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from grounds import Ground

from elastic import Client
from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.full, pytest.mark.torch, pytest.mark.timeout(600)]
NOTEBOOK = Path(__file__).resolve().parents[2] / "examples/notebook/train.ipynb"
WORKER = {"replicas": 1, "template": {"spec": {"containers": [{"name": "pytorch", "image": "none", "command": ["true"]}]}}}
IDLE = {"runPolicy": {"suspend": True}, "pytorchReplicaSpecs": {"Worker": WORKER}}


@pytest.fixture(scope="module")
def cluster(shared: Callable[[Ground], LocalCluster]) -> LocalCluster:
    return shared(Ground("auto"))


def run(cell: str, number: int, names: dict[str, Any]) -> Any:
    """Run a cell as IPython does: its source can be looked up, and the value of a last expression is returned."""
    file = f"<cell {number}>"
    linecache.cache[file] = (len(cell), None, cell.splitlines(keepends=True), file)
    parsed = ast.parse(cell)
    last = parsed.body.pop() if isinstance(parsed.body[-1], ast.Expr) else None
    exec(compile(parsed, file, "exec"), names)
    return eval(compile(ast.Expression(last.value), file, "eval"), names) if isinstance(last, ast.Expr) else None


def test_the_cells_of_the_page_do_what_it_says(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = ["".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    theirs = Client().create({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "theirs"}, "spec": IDLE})
    values = [run(cell, number, names) for number, cell in enumerate(cells)]
    assert {"w": 0.5, "world": 2} in values
    said = capsys.readouterr().out
    assert "PyTorchJob train  Succeeded" in said
    assert "ValueError: no such data set" in said
    assert "train Succeeded" in said
    assert [job.name for job in names["client"].jobs()] == ["theirs"], "a colleague's job stays"
    theirs.delete()
