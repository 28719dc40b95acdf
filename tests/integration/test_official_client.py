"""Programs written against the official Python client lead a job on the laptop cluster, with the client's newest two minor versions."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from example_jobs import environment
from grounds import Ground

from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
PROGRAM = Path(__file__).with_name("official_client.py")
WITHIN_S = 250


@pytest.fixture(scope="module")
def cluster(shared: Callable[[Ground], LocalCluster]) -> LocalCluster:
    return shared(Ground("auto"))


@pytest.mark.parametrize("minor", [pytest.param(36, marks=pytest.mark.full), 37])
def test_the_official_client_leads_a_job_from_creation_to_deletion(cluster: LocalCluster, minor: int) -> None:
    python = sys.executable if minor == 37 else str(environment("kubernetes-36") / "bin" / "python")
    done = subprocess.run([python, PROGRAM, cluster.kubeconfig], capture_output=True, text=True, timeout=WITHIN_S)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    seen = json.loads(done.stdout)
    assert seen["version"].startswith(f"{minor}.")
    assert seen["events"][0] == "ADDED"
    assert seen["owner"] == [["PyTorchJob", f"led-by-{minor}"]]
    assert seen["selected"] == [f"led-by-{minor}-worker-0"]
    assert seen["named"] == f"led-by-{minor}-worker-0"
    assert seen["left"] == []
    assert (seen["again"], seen["too few"], seen["gone"]) == (409, 422, 404)
    assert seen["scale"] == 1
    assert seen["log"] == ["ready", "done"]
    assert seen["conditions"][0] == "Created"
    assert seen["conditions"][-1] == "Succeeded"
    assert {"SuccessfulCreatePod", "PyTorchJobSucceeded"} <= set(seen["reasons"])
