"""Type each command about jobs on the laptop cluster, for an elastic job of shell processes from its start to its deletion."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from elastic.api.kinds import KINDS
from elastic.kube import connect
from elastic.kube.following import resource_of
from elastic.local.files import Layout

pytestmark = [pytest.mark.integration, pytest.mark.full, pytest.mark.timeout(300)]
SCRIPT = "echo I am $HOSTNAME; while ! [ -e end ]; do sleep 0.2; done; exit $(cat end)"
WAIT_S = "90"


class Elastic:
    """The command line with its own cluster."""

    def __init__(self, data: Path, folder: Path) -> None:
        self.data, self.folder = data, folder

    def __call__(self, *words: str, code: int = 0) -> str:
        """Run a command, and return its output, or its errors if it fails."""
        command = [sys.executable, "-m", "elastic.cli", *words, "--data-dir", str(self.data)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=self.folder)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout if code == 0 else done.stderr

    def started(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "elastic.cli", *words, "--data-dir", str(self.data)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder)


@pytest.fixture(scope="module")
def elastic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elastic]:
    folder = tmp_path_factory.mktemp("cli")
    elastic = Elastic(folder / "data", folder)
    elastic("up", "--detach")
    yield elastic
    elastic("down")


def create(
    elastic: Elastic,
    name: str,
    *,
    workers: int = 2,
    restart: str = "OnFailure",
    script: str = SCRIPT,
    command: Sequence[str] = (),
    backend: str = "elastic",
) -> None:
    """Create a job of shell processes. With a command it is a job of agents that meet through this backend."""
    container = {"name": "pytorch", "image": "any", "command": list(command) or ["sh", "-c", script], "workingDir": str(elastic.folder)}
    policy = {"minReplicas": 1, "maxReplicas": 4} | ({"maxRestarts": 1, "rdzvBackend": backend} if command else {"rdzvBackend": "c10d"})
    replica = {
        "replicas": workers,
        "restartPolicy": restart,
        "template": {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}},
    }
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {
            "elasticPolicy": policy,
            "pytorchReplicaSpecs": {"Worker": replica},
        },
    }

    async def write() -> None:
        async with connect(Layout(elastic.data).kubeconfig) as kube:
            await kube.create(resource_of(KINDS["PyTorchJob"]), job, namespace="default")

    asyncio.run(write())


def test_a_job_is_seen_changed_and_deleted_by_its_commands(elastic: Elastic) -> None:
    end = elastic.folder / "end"
    end.unlink(missing_ok=True)
    create(elastic, "train")
    assert elastic("wait", "train", "--for", "running", "--timeout", WAIT_S) == "PyTorchJob train: running\n"
    assert "train" in elastic("get")
    assert "PyTorchJob" in elastic("status")
    assert json.loads(elastic("get", "train", "-o", "json"))["metadata"]["name"] == "train"
    assert yaml.safe_load(elastic("status", "-o", "yaml"))["jobs"][0]["name"] == "train"
    assert "train-worker-1" in elastic("describe", "pytorchjob", "train")
    assert "of 2 wanted workers" in elastic("explain", "train")
    assert "SuccessfulCreatePod" in elastic("events", "train")
    assert "scaled from 2 to 3 workers" in elastic("scale", "train", "--workers", "3")
    assert "Between 1 and 4 are allowed" in elastic("explain", "train")
    assert "9" in elastic("scale", "train", "--workers", "9", code=1)
    assert "gone" in elastic("evict", "train", "--worker", "1")
    following = elastic.started("logs", "-f", "train")
    try:
        assert "suspended" in elastic("suspend", "train")
        assert "resumed" in elastic("resume", "train")
        assert elastic("wait", "train", "--for", "running", "--timeout", WAIT_S)
        end.write_text("0")
        assert elastic("wait", "train", "--timeout", WAIT_S) == "PyTorchJob train: succeeded\n"
        said, trouble = following.communicate(timeout=60)
    finally:
        following.kill()
    assert following.returncode == 0, trouble
    assert "train-worker-0 | I am" in said
    assert "I am" in elastic("logs", "train", "--worker", "0")
    assert elastic("delete", "train") == "PyTorchJob train deleted\n"
    assert elastic("wait", "train", "--for", "deleted").startswith("deleted: there is no job train in namespace default")


def test_a_job_that_fails_ends_wait_with_1_and_quotes_its_worker(elastic: Elastic) -> None:
    (elastic.folder / "end").write_text("7")
    create(elastic, "broken", workers=1, restart="Never", script="echo ValueError: bad batch >&2; exit 7")
    elastic("wait", "broken", "--timeout", WAIT_S, code=1)
    assert "It failed: " in elastic("explain", "broken")
    assert "First of all broken-worker-0 failed: ValueError: bad batch." in elastic("explain", "broken")
    elastic("delete", "broken")
    assert "there is no job broken" in elastic("describe", "broken", code=1)
    assert "there is no namespace research; make it with" in elastic("get", "-n", "research", code=1)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "backend", "command", "words"),
    [
        (
            "flag",
            "elastic",
            ["torchrun", "--nonsense", "train.py"],
            "flag-worker-0 could not start: torchrun: error: unrecognized arguments: --nonsense.",
        ),
        (
            "store",
            "c10d",
            ["torchrun", "--nonsense", "train.py"],
            "store-worker-0 could not start: torchrun: error: unrecognized arguments: --nonsense.",
        ),
        (
            "value",
            "elastic",
            ["sh", "-c", "torchrun --nnodes a:b train.py"],
            "value-worker-0 could not start: ValueError: invalid literal for int()",
        ),
        ("typo", "elastic", ["torchrunn", "train.py"], "typo-worker-0 could not start: torchrunn: command not found."),
        ("script", "elastic", ["torchrun", "--nproc-per-node=1", "no.py"], "It failed: rank 0: "),
    ],
)
def test_a_wrong_command_uses_up_the_restarts_and_is_quoted(
    elastic: Elastic, name: str, backend: str, command: list[str], words: str
) -> None:
    create(elastic, name, workers=1, command=command, backend=backend)
    elastic("wait", name, "--timeout", WAIT_S, code=1)
    said = elastic("explain", name)
    assert words in said
    assert "2 of them count against the job. The one that maxRestarts allows is used up." in said
    elastic("delete", name)
