"""TrainJobs with the policy mpi run real ranks on the laptop: as Kubeflow Trainer's end-to-end test has it, and across a suspension.

Only in sandbox netns: Open MPI refuses to talk over loopback addresses.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from grounds import Ground
from train_job_sight import conditions, counts, pods_of, until, until_job

from elastic.kube import connect
from elastic.kube.resources import TRAIN_JOBS, Object
from elastic.local import LocalCluster

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(400),
    pytest.mark.sandboxes("netns"),
    pytest.mark.skipif(shutil.which("orted") is None, reason="Open MPI is not installed: apt-get install openmpi-bin"),
    pytest.mark.skipif(shutil.which("sshd") is None, reason="OpenSSH's server is not installed: apt-get install openssh-server"),
    pytest.mark.skipif(os.getuid() != 0, reason="sshd needs root"),
]


@pytest.fixture(scope="module")
def cluster(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    if ground.assets is not None:
        pytest.skip(
            "a control plane that joins a real API server serves no TrainJobs; tests/cluster/test_cluster_trainjobs.py has one that does"
        )
    with ground.cluster(tmp_path_factory.mktemp("mpi")) as running:
        yield running


def train_job(name: str, *command: str) -> Object:
    spec = {"runtimeRef": {"name": "mpi-distributed"}, "trainer": {"numNodes": 2, "command": list(command)}}
    return {"apiVersion": TRAIN_JOBS.api_version, "kind": TRAIN_JOBS.kind, "metadata": {"name": name}, "spec": spec}


async def test_mpirun_starts_its_program_on_the_nodes_and_its_end_completes_the_job(cluster: LocalCluster) -> None:
    async with connect(cluster.kubeconfig) as kube:
        await kube.create(TRAIN_JOBS, train_job("sleeps", "mpirun", "sleep", "10"), namespace="default")
        active = await until_job(kube, "sleeps", lambda job: counts(job, "node")["active"], "active")
        assert counts(active, "node")["failed"] == 0
        done = await until_job(kube, "sleeps", conditions, "finished")
        assert conditions(done) == [("Complete", "True", "AllJobsCompleted")]
        assert counts(done, "launcher") == {"ready": 0, "succeeded": 1, "failed": 0, "active": 0, "suspended": 0}
        assert counts(done, "node")["failed"] == 0


async def test_a_suspended_job_gives_up_its_pods_and_starts_its_ranks_again_when_resumed(cluster: LocalCluster, tmp_path: Path) -> None:
    begun, finish = tmp_path / "begun", tmp_path / "finish"
    rank = f"hostname >>{begun}; while ! [ -e {finish} ]; do sleep 0.2; done"
    async with connect(cluster.kubeconfig) as kube:
        await kube.create(TRAIN_JOBS, train_job("pauses", "mpirun", "-np", "2", "sh", "-c", rank), namespace="default")
        nodes = ["pauses-node-0-0", "pauses-node-0-1"]
        await until(lambda: _lines(begun), lambda lines: lines == nodes, "on both nodes")
        await kube.patch(TRAIN_JOBS, "pauses", {"spec": {"suspend": True}}, namespace="default")
        idle = await until_job(kube, "pauses", lambda job: counts(job, "node")["suspended"], "suspended")
        assert conditions(idle) == [("Suspended", "True", "Suspended")]
        assert counts(idle, "launcher")["suspended"] == 1
        await until(lambda: pods_of(kube, "pauses"), lambda pods: pods == [], "without pods")
        assert await _lines(begun) == nodes

        await kube.patch(TRAIN_JOBS, "pauses", {"spec": {"suspend": False}}, namespace="default")
        await until(lambda: _lines(begun), lambda lines: lines == sorted(2 * nodes), "on both nodes again")
        finish.touch()
        done = await until_job(kube, "pauses", lambda job: ("Complete", "True", "AllJobsCompleted") in conditions(job), "complete")
        assert ("Suspended", "False", "Resumed") in conditions(done)


async def _lines(file: Path) -> list[str]:
    return sorted(file.read_text().split()) if file.exists() else []
