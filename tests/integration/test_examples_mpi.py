"""Run the MPI examples on the laptop cluster, by ssh and over the exec client that the launcher gets.

That client behaves as kubectl does.

Only in sandbox netns: Open MPI refuses to talk over loopback addresses.
"""

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from example_jobs import NAMESPACE, documents, laptop, read, resource, run_to_end
from grounds import Ground

from elastic.kube import connect
from elastic.kube.resources import PODS
from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400), pytest.mark.sandboxes("netns")]
WITHIN_S = 200.0
WORKERS = "training.kubeflow.org/job-name=typed,training.kubeflow.org/replica-type=worker"
needs_open_mpi = pytest.mark.skipif(shutil.which("orted") is None, reason="Open MPI is not installed: apt-get install openmpi-bin")
needs_sshd = pytest.mark.skipif(shutil.which("sshd") is None, reason="OpenSSH's server is not installed: apt-get install openssh-server")
# In a user namespace that maps one user only, sshd cannot become the one that logs in.
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="sshd needs root")
needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


@pytest.fixture(scope="module")
def cluster(ground: Ground) -> Iterator[LocalCluster]:
    with laptop(ground, "mpi", "openmpi5") as running:
        yield running


@pytest.mark.parametrize("open_mpi", [pytest.param("mpi", marks=needs_open_mpi), "openmpi5"])
def test_an_mpijob_trains_with_ranks_on_every_worker(cluster: LocalCluster, open_mpi: str) -> None:
    """With the machine's Open MPI 4, and with 5, which goes by other variables."""
    job = read("mpi")
    job["metadata"]["name"] = open_mpi
    for type in ("Launcher", "Worker"):
        job["spec"]["mpiReplicaSpecs"][type]["template"]["spec"]["containers"][0]["image"] = f"example.com/{open_mpi}"
    outcome = run_to_end(cluster, job, within_s=WITHIN_S, framework=open_mpi)
    assert outcome.state == "Succeeded", outcome.story
    log = outcome.logs[f"{open_mpi}-launcher"]
    trained = re.search(rf"4 ranks on {open_mpi}-worker-0, {open_mpi}-worker-1: loss ([\d.]+) -> ([\d.]+)", log)
    assert trained, outcome.story
    assert float(trained[2]) < float(trained[1]) / 1000


@needs_open_mpi
@needs_sshd
@needs_root
def test_an_mpijob_over_ssh_trains_with_ranks_on_every_worker(cluster: LocalCluster) -> None:
    outcome = run_to_end(cluster, read("mpi-ssh"), within_s=WITHIN_S, framework="mpi")
    assert outcome.state == "Succeeded", outcome.story
    trained = re.search(r"4 ranks on mpi-ssh-worker-0, mpi-ssh-worker-1: loss ([\d.]+) -> ([\d.]+)", outcome.logs["mpi-ssh-launcher"])
    assert trained, outcome.story
    assert float(trained[2]) < float(trained[1]) / 1000


@needs_open_mpi
@needs_sshd
@needs_root
def test_a_train_job_with_the_policy_mpi_trains_with_ranks_on_every_node(cluster: LocalCluster) -> None:
    (job,) = documents("trainjob-mpi")
    outcome = run_to_end(cluster, job, within_s=WITHIN_S, framework="mpi")
    assert outcome.state == "Complete", outcome.story
    log = outcome.logs["trainjob-mpi-launcher-0-0"]
    trained = re.search(r"4 ranks on trainjob-mpi-node-0-0, trainjob-mpi-node-0-1: loss ([\d.]+) -> ([\d.]+)", log)
    assert trained, outcome.story
    assert float(trained[2]) < float(trained[1]) / 1000


@needs_kubectl
def test_the_launchers_exec_client_passes_streams_and_statuses_on_as_kubectl_does(cluster: LocalCluster, tmp_path: Path) -> None:
    """The launcher only waits here; everything is typed into it from outside, so no MPI is needed."""
    job = read("mpi")
    job["metadata"]["name"] = "typed"
    launcher, worker = (job["spec"]["mpiReplicaSpecs"][type]["template"]["spec"]["containers"][0] for type in ("Launcher", "Worker"))
    launcher["command"], launcher["image"] = ["sleep", "600"], "example.com/ours"
    worker["image"] = "example.com/ours"
    asyncio.run(_start(cluster, job))
    assert _typed(cluster, "exec typed-worker-0 -- hostname") == (0, "typed-worker-0\n", "")
    assert _typed(cluster, "exec typed-worker-1 -- sh -c 'echo out; echo err >&2; exit 7'") == (7, "out\n", "err\n")
    assert _typed(cluster, "exec -i typed-worker-0 -c mpi -- wc -c", given="abc" * 50_000) == (0, "150000\n", "")
    size = 3_000_000
    code, out, _ = _typed(cluster, f"exec typed-worker-0 -- head -c {size} /dev/zero")
    assert (code, len(out)) == (0, size)
    code, _, err = _typed(cluster, "exec typed-worker-9 -- true")
    assert code == 1
    assert "typed-worker-9" in err
    code, _, err = _typed(cluster, "get pods")
    assert code != 0
    assert "kubectl" in err
    # Unlike kubectl, it leaves nothing behind in the worker: not when it is told to end, and not when it is killed.
    assert _signalled(cluster, "TERM", tmp_path) == 9
    assert _signalled(cluster, "KILL", tmp_path) == 128 + 9


async def _start(cluster: LocalCluster, job: dict[str, object]) -> None:
    """Create the job, and wait until the launcher runs. It starts only after all workers."""
    async with connect(cluster.kubeconfig) as kube, asyncio.timeout(WITHIN_S):
        await kube.create(resource(job), job, namespace=NAMESPACE)
        async for event in kube.watch(PODS, namespace=NAMESPACE, fields="metadata.name=typed-launcher"):
            if event.object["status"].get("phase") == "Running":
                break
        workers = (await kube.list(PODS, namespace=NAMESPACE, labels=WORKERS)).items
        assert [pod["status"]["phase"] for pod in workers] == ["Running", "Running"]


def _signalled(cluster: LocalCluster, signal: str, folder: Path) -> int:
    """Send our client a signal, and return its exit status once its command in the worker was told to end. Pods here see our files."""
    ready, told = folder / f"ready-{signal}", folder / f"told-{signal}"
    # Nobody takes its words any more; a shell that says one would end by that.
    remote = f"exec >/dev/null 2>&1; trap 'touch {told}; exit 9' TERM; touch {ready}; while :; do sleep 0.1; done"
    until = "while ! [ -e {} ]; do sleep 0.1; done"
    and_then = f"{until.format(ready)}; kill -{signal} $!; wait $!; ended=$?; {until.format(told)}; (exit $ended)"
    return _typed(cluster, f'exec typed-worker-0 -- sh -c "{remote}" & {and_then}')[0]


def _typed(cluster: LocalCluster, words: str, *, given: str = "") -> tuple[int, str, str]:
    """Return the status and both outputs of our client in the launcher. A marker tells its status from that of the way there."""
    script = f"/opt/kube/kubectl {words}; echo status $? >&2"
    command = ["kubectl", "--kubeconfig", str(cluster.kubeconfig), "exec", "-i", "typed-launcher", "-c", "mpi", "--", "sh", "-c", script]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=WITHIN_S)
    err, _, status = done.stderr.rpartition("status ")
    return int(status), done.stdout, err
