"""`elastic stacks` shows what each rank of a job does, on the laptop cluster."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from test_cli_commands import WAIT_S, Elastic, create

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.full, pytest.mark.timeout(300)]
PATIENCE_S = 90.0
HANGS = """
import time
import torch
import torch.distributed as dist

def main():
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        time.sleep(3600)
    dist.all_reduce(torch.ones(1))

main()
"""


@pytest.fixture(scope="module")
def elastic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elastic]:
    folder = tmp_path_factory.mktemp("stacks")
    elastic = Elastic(folder / "data", folder)
    elastic("up", "--detach")
    yield elastic
    elastic("down")


@pytest.fixture(scope="module")
def job(elastic: Elastic) -> Iterator[str]:
    """Start a job of two workers, of which one sleeps and the other waits for it."""
    (elastic.folder / "train.py").write_text(textwrap.dedent(HANGS))
    create(elastic, "hangs", command=["torchrun", "--nproc-per-node=1", "train.py"])
    elastic("wait", "hangs", "--for", "running", "--timeout", WAIT_S)
    yield "hangs"
    elastic("delete", "hangs")


def stacks(elastic: Elastic, *words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "elastic.cli", "stacks", *words, "-o", "json", "--data-dir", str(elastic.data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=elastic.folder, check=False)
    return json.loads(done.stdout) if done.stdout else {"workers": [], "troubles": {"command": done.stderr}}


def eventually(elastic: Elastic, *words: str, holds: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    deadline = time.monotonic() + PATIENCE_S
    while not holds((found := stacks(elastic, *words))["workers"]):
        assert time.monotonic() < deadline, found
        time.sleep(0.5)
    rows: list[dict[str, Any]] = found["workers"]
    return rows


def test_each_rank_is_shown_with_its_pod_and_its_stack(elastic: Elastic, job: str) -> None:
    rows = eventually(elastic, job, holds=lambda rows: [row["does"] for row in rows] == ["waits in all_reduce", "sleeps"])
    assert [(row["rank"], row["kind"]) for row in rows] == [(0, "collective"), (1, "other")]
    assert {row["pod"] for row in rows} == {"hangs-worker-0", "hangs-worker-1"}
    assert (rows[1]["place"], rows[1]["code"]) == ("train.py:9", "time.sleep(3600)")
    assert 'train.py", line 9 in main\n' in rows[1]["stacks"]
    shown = elastic("stacks", job, "--rank", "1")
    assert shown.startswith(
        f"rank 1 ({rows[1]['pod']}, process {rows[1]['pid']} in its container) sleeps at train.py:9: `time.sleep(3600)`\n"
    )
    assert "all_reduce" not in shown
    assert "elastic_worker/warm" not in shown, "the frames of our launcher say nothing about the program"


def test_a_rank_that_is_not_there_and_a_job_without_torchrun_are_said(elastic: Elastic, job: str) -> None:
    eventually(elastic, job, holds=lambda rows: len(rows) == 2)
    assert "hangs has no rank 7" in elastic("stacks", job, "--rank", "7", code=1)
    create(elastic, "shell", workers=1, script="sleep 600")
    elastic("wait", "shell", "--for", "running", "--timeout", WAIT_S)
    said = elastic("stacks", "shell", code=1)
    assert "shell-worker-0: " in said
    assert "no stacks were read" in said
    elastic("delete", "shell")
