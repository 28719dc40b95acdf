"""The unmodified package kubeflow, in an environment of its own, runs TrainJobs on the laptop cluster, also while their size changes."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from example_jobs import environment
from grounds import Ground

from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(900)]
CLIENT = Path(__file__).with_name("trainer_client.py")
WITHIN_S = 600


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Run a cluster of its own, because the SDK's command writes the function into the working folder of containers."""
    folder = tmp_path_factory.mktemp("trainer")
    (folder / "work").mkdir()
    with contextlib.chdir(folder / "work"), Ground("auto").cluster(folder / "data") as running:
        yield running


def told(cluster: LocalCluster, story: str, folder: Path) -> dict[str, Any]:
    python = environment("kubeflow") / "bin" / "python"
    done = subprocess.run([python, CLIENT, cluster.kubeconfig, story, folder], capture_output=True, text=True, timeout=WITHIN_S)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen | {"said": done.stderr}


def test_the_sdk_leads_a_train_job_from_its_function_to_its_deletion(cluster: LocalCluster, tmp_path: Path) -> None:
    seen = told(cluster, "basics", tmp_path)
    assert {"torch-distributed", "plain"} <= set(seen["runtimes"])
    assert seen["runtime"] == "torch"
    assert seen["status"] == "Complete"
    assert seen["steps"] == [["node-0", "Succeeded", "basic-node-0-0"], ["node-1", "Succeeded", "basic-node-0-1"]]
    assert "hello: sum of ranks 3 over 2" in "\n".join(seen["logs"])
    assert "hello: sum of ranks 3 over 2" in "\n".join(seen["followed"])
    assert "hello: sum of ranks 3 over 2" in "\n".join(seen["second"])
    assert "Pod" in seen["events"]
    assert (seen["listed"], seen["left"]) == (["basic"], [])
    assert "kubeflow_trainer_version" not in seen["said"], "the SDK finds the version of the API"


def test_the_sdk_runs_plain_containers_and_sees_why_a_train_job_was_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    seen = told(cluster, "plain", tmp_path)
    assert seen["status"] == "Complete"
    assert seen["logs"] == [["I am 0 at plainly-node-0-0"], ["I am 1 at plainly-node-0-1"]]
    assert seen["patched"] == ["plainly-node-0-0", "plainly-node-0-1"]
    assert seen["refused"].endswith('elastic-training/max-nodes is "many"; write a number from 1 to 8192')


def test_initializers_load_data_and_model_before_the_nodes_of_a_train_job_start(cluster: LocalCluster, tmp_path: Path) -> None:
    seen = told(cluster, "initialized", tmp_path)
    data, model = "dataset-initializer", "model-initializer"
    assert seen["waiting"] == [[data, "Succeeded"], [model, "Running"]], "no node has a pod yet"
    assert seen["before"] == [[data, 1, 0], [model, 0, 1], ["node", 0, 0]]
    assert seen["tried"] == 1
    assert seen["end"] == "Complete"
    assert seen["after"] == [[data, 1, 0], [model, 1, 0], ["node", 1, 0]]
    assert seen["steps"] == [[step, "Succeeded"] for step in (data, model, "node-0", "node-1")]
    assert seen[data] == ["loads hf://my/data as token"]
    assert seen[model] == ["loads hf://default"], "an initializer that the TrainJob does not configure runs as its runtime says"
    assert "loaded: sum of ranks 3 over 2" in "\n".join(seen["node-0"])
    assert seen["claims"] == ["initializer-loaded"]
    assert seen["broken"] == "Failed"
    reason, message = seen["why"]
    assert reason == "FailedJobs"
    assert "dataset-initializer" in message
    assert "No such bucket" in message


@pytest.mark.skipif(shutil.which("orted") is None or shutil.which("sshd") is None or os.getuid() != 0, reason="no Open MPI, sshd or root")
def test_the_sdk_sees_the_launcher_of_mpi_as_the_first_node(cluster: LocalCluster, tmp_path: Path) -> None:
    seen = told(cluster, "mpi", tmp_path)
    assert seen["status"] == "Complete"
    assert seen["logs"] == ["rank 0 at ranks-node-0-0", "rank 1 at ranks-node-0-1"]
    assert seen["steps"] == [["node-0", "ranks-launcher-0-0"], ["node-1", "ranks-node-0-0"], ["node-2", "ranks-node-0-1"]]


def test_a_train_job_grows_and_loses_node_0_without_losing_a_step(cluster: LocalCluster, tmp_path: Path) -> None:
    seen = told(cluster, "elastic", tmp_path)
    nodes = ["node-0", "node-1", "node-2"]
    assert (seen["steps"], seen["after the loss"]) == (nodes, nodes)
    assert seen["at three"] == "Created", "the SDK compares the number of nodes with numNodes"
    assert seen["replaced"]
    assert seen["end"] == "Complete"
    assert seen["logs"] > 0, "the SDK reads the log of node 0 unless told otherwise"
    steps = [int(line.split()[0]) for line in (tmp_path / "steps").read_text().splitlines()]
    assert steps == sorted(steps)
    assert sorted(set(steps)) == list(range(1, steps[-1] + 1)), "no step is lost; the one at the loss may be there twice"
