"""Type `elastic run` and `elastic node`, and check their output, their exit codes, and what they leave behind."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from laptop import get, until

from elastic.api.kinds import KINDS
from elastic.kube import connect
from elastic.kube.following import resource_of
from elastic.kube.resources import CONFIG_MAPS, NODES, PODS
from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(200)]
ELASTIC = (sys.executable, "-m", "elastic.cli")
JOBS = resource_of(KINDS["PyTorchJob"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(nodes=2) as cluster:
        yield cluster


def job(name: str, script: str, *, workers: int = 1, restart_policy: str = "Never") -> dict[str, Any]:
    container = {"name": "pytorch", "image": "any", "command": ["sh", "-c", script]}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 2}}
    worker = {"replicas": workers, "restartPolicy": restart_policy, "template": template}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": {"Worker": worker}},
    }


def elastic(*words: str, stdin: list[dict[str, Any]] | None = None, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    text = json.dumps({"kind": "List", "apiVersion": "v1", "items": stdin}) if stdin is not None else ""
    environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"} | ({"HOME": str(home)} if home else {})
    return subprocess.run([*ELASTIC, *words], input=text, capture_output=True, text=True, timeout=150, env=environment)


def at(cluster: LocalCluster) -> tuple[str, str]:
    return "--data-dir", str(cluster.data_dir)


def test_jobs_run_side_by_side_and_the_exit_code_tells_whether_all_succeeded(cluster: LocalCluster) -> None:
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "words"}, "data": {"WORD": "hello"}}
    greeting = job("greeting", "echo $WORD from $RANK; echo no newline | tr -d '\\n'", workers=2)
    greeting["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["envFrom"] = [
        {"configMapRef": {"name": "words"}}
    ]
    done = elastic("run", *at(cluster), "-", stdin=[greeting, settings])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "greeting-worker-1 | hello from" in done.stdout
    assert "greeting-worker-0 | no newline" in done.stdout
    assert "greeting Succeeded: PyTorchJob default/greeting successfully completed." in done.stdout

    done = elastic("run", *at(cluster), "-", stdin=[job("well", "sleep 0.5; echo bye"), job("ill", "echo oh no >&2; exit 3")])
    assert done.returncode == 1, done.stdout + done.stderr
    assert "ill-worker-0 | oh no" in done.stdout
    assert "well-worker-0 | bye" in done.stdout
    assert done.stdout.splitlines()[-2].endswith("PyTorchJob well: succeeded")
    assert "PyTorchJob ill: failed: PyTorchJob ill is failed because" in done.stdout.splitlines()[-1]


def test_a_script_that_always_fails_before_it_meets_anybody_comes_to_an_end(cluster: LocalCluster, tmp_path: Path) -> None:
    """Nothing counted the script's restarts, and it was started for ever."""
    (tmp_path / "failing.sh").write_text("exit 4\n")
    done = elastic("run", *at(cluster), "--workers", "4", str(tmp_path / "failing.sh"))
    assert done.returncode == 1, done.stdout + done.stderr
    first = r"First of all failing-worker-\d failed with exit code 4\.$"
    assert re.search(rf"Job failing has failed because it has reached the specified backoff limit\. {first}", done.stdout.splitlines()[-1])


def test_a_job_that_is_there_is_replaced_only_when_asked(cluster: LocalCluster) -> None:
    first = elastic("run", *at(cluster), "-", stdin=[job("twice", "echo first")])
    second = elastic("run", *at(cluster), "-", stdin=[job("twice", "echo second")])
    third = elastic("run", *at(cluster), "--replace", "-", stdin=[job("twice", "echo third")])
    assert (first.returncode, second.returncode, third.returncode) == (0, 2, 0)
    assert second.stderr == (
        "Error: PyTorchJob twice is there already in namespace default; give the job another name, "
        "or delete the one that is there first with --replace\n"
    )
    assert "| third" in third.stdout
    assert "| first" not in third.stdout


def test_a_detached_run_returns_at_once_and_its_job_goes_on(cluster: LocalCluster) -> None:
    done = elastic("run", *at(cluster), "--detach", "-", stdin=[job("left", "echo begun; sleep 5; echo ended")])
    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stdout.splitlines()[-1]
    follow = f"elastic logs -f pytorchjobs/left -n default --data-dir {cluster.data_dir}"
    assert f"PyTorchJob left goes on; `{follow}` shows what it prints" in told
    assert "| begun" not in done.stdout
    printed = elastic(*follow.split()[1:])
    assert "ended" in printed.stdout, printed.stdout + printed.stderr
    assert elastic("wait", "left", "--for", "succeeded", *at(cluster)).returncode == 0


def test_a_job_that_cannot_run_is_refused_in_the_words_of_elastic_validate(cluster: LocalCluster) -> None:
    wrong = job("wrong", "true")
    wrong["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["name"] = "torch"
    ran, checked = elastic("run", *at(cluster), "-", stdin=[wrong]), elastic("validate", "-", stdin=[wrong])
    assert (ran.returncode, checked.returncode) == (2, 1)
    assert ran.stderr == checked.stdout

    assert elastic("run", "/no/such/file").returncode == 2
    refused = elastic("run", *at(cluster), "-", stdin=[job("good", "true"), {"apiVersion": "v1", "kind": "Pot", "metadata": {"name": "a"}}])
    assert (refused.returncode, refused.stderr) == (2, "Error: the server knows no kind Pot in apiVersion v1\n")
    nowhere = elastic("run", "--data-dir", "/no/such/folder", "-", stdin=[job("good", "true")])
    assert nowhere.returncode == 2
    assert "no cluster runs in /no/such/folder; start it with `elastic up --detach --data-dir /no/such/folder`" in nowhere.stderr


async def test_ctrl_c_removes_everything_that_the_run_has_made(cluster: LocalCluster, tmp_path: Path) -> None:
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "passing"}}
    file = tmp_path / "job.json"
    file.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [settings, job("endless", "echo going; sleep 1000")]}))
    code, said = _ended(*at(cluster), str(file), once="going", by=signal.SIGINT, sigint=signal.SIG_DFL)
    assert code == 130, said
    assert "interrupted: deleting what this run created" in said
    async with connect(cluster.kubeconfig) as kube:
        assert await get(kube, "endless", resource=JOBS) is None
        assert await get(kube, "endless-worker-0") is None
        assert await get(kube, "passing", resource=CONFIG_MAPS) is None


def on_a_terminal(*words: str, home: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start `elastic run` as a user at a terminal does; return the process and our end of the terminal."""
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"} | {"HOME": str(home), "NO_COLOR": "1"}
    process = subprocess.Popen([*ELASTIC, "run", *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=home)
    os.close(theirs)
    return process, ours


def read_until(terminal: int, words: str, *, within_s: float = 100) -> str:
    seen, end = "", time.monotonic() + within_s
    while words not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0, end - time.monotonic()))
        assert ready, seen
        seen += os.read(terminal, 65536).decode()
    return seen


def test_ctrl_c_on_a_terminal_leaves_the_job_and_says_how_to_come_back(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "long.sh").write_text("echo going; sleep 1000\n")
    for name in ("long", "long-2"):
        process, terminal = on_a_terminal(*at(cluster), "long.sh", home=tmp_path)
        read_until(terminal, "| going")
        process.send_signal(signal.SIGINT)
        said = read_until(terminal, "deletes it")
        assert process.wait(20) == 130
        os.close(terminal)
        assert f"PyTorchJob {name} goes on; `elastic logs -f pytorchjobs/{name} -n default --data-dir {cluster.data_dir}`" in said
    again = elastic("run", *at(cluster), "--name", "long", str(tmp_path / "long.sh"))
    assert (again.returncode, "PyTorchJob long is there already" in again.stderr) == (2, True)
    assert elastic("delete", *at(cluster), "long", "long-2").returncode == 0


def test_a_cluster_of_a_run_that_was_interrupted_stays_if_the_user_wants_it(tmp_path: Path) -> None:
    (tmp_path / "long.sh").write_text("echo going; sleep 1000\n")
    process, terminal = on_a_terminal("long.sh", home=tmp_path)
    read_until(terminal, "| going")
    process.send_signal(signal.SIGINT)
    read_until(terminal, "Enter, or Ctrl-C again, leaves both running")
    os.write(terminal, b"\n")
    said = read_until(terminal, "stops it")
    assert process.wait(20) == 130
    os.close(terminal)
    (stop,) = re.findall(r"`elastic (down --data-dir \S+)` stops it", said)
    place = stop.split()[1:]
    try:
        assert re.search(r"^long +PyTorchJob +Running", elastic("get", *place).stdout, re.MULTILINE)
    finally:
        assert elastic(*stop.split()).returncode == 0


async def test_logs_outlive_the_pods_that_a_suspension_deletes(cluster: LocalCluster, tmp_path: Path) -> None:
    """They went with the pods, so that nobody could read what a job had printed before it was suspended."""
    (tmp_path / "says.sh").write_text('echo "I am $HOSTNAME"; sleep 1000\n')
    line = "says-worker-0 | I am says-worker-0\n"

    def printed() -> str:
        return elastic("logs", *at(cluster), "says").stdout

    assert elastic("run", *at(cluster), "--detach", str(tmp_path / "says.sh")).returncode == 0
    async with connect(cluster.kubeconfig) as kube:
        await until(lambda: printed() == line, "the worker prints")
        assert elastic("suspend", *at(cluster), "says").returncode == 0

        async def is_gone() -> bool:
            return await get(kube, "says-worker-0") is None

        await until(is_gone, "the pod is gone")
        await until(lambda: printed() == line, "its log is kept")
        assert elastic("resume", *at(cluster), "says").returncode == 0
        await until(lambda: printed() == line * 2, "the next pod prints")
    assert elastic("logs", *at(cluster), "says", "--tail", "1").stdout == line
    assert elastic("delete", *at(cluster), "says").returncode == 0


async def test_sigterm_ends_a_run_in_a_scripts_background(cluster: LocalCluster, tmp_path: Path) -> None:
    """A shell makes background processes ignore SIGINT. SIGTERM was passed on as SIGINT, so it did nothing either."""
    file = tmp_path / "job.json"
    file.write_text(json.dumps(job("behind", "echo going; sleep 1000")))
    code, said = _ended(*at(cluster), str(file), once="going", by=signal.SIGTERM, sigint=signal.SIG_IGN)
    assert code == 130, said
    assert "interrupted: deleting what this run created" in said
    async with connect(cluster.kubeconfig) as kube:
        assert await get(kube, "behind", resource=JOBS) is None


def _ended(*words: str, once: str, by: signal.Signals, sigint: signal.Handlers) -> tuple[int, str]:
    """Run a command, and send it a signal once a line has these words. `sigint` is the process's inherited handler of SIGINT."""
    running = subprocess.Popen(
        [*ELASTIC, "run", *words], stdout=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, sigint)
    )
    with running:
        assert running.stdout is not None
        said = next(line for line in running.stdout if once in line)
        running.send_signal(by)
        said += running.stdout.read()
        return running.wait(100), said


def test_without_a_cluster_one_is_started_for_the_run_and_nothing_is_left(tmp_path: Path) -> None:
    done = elastic("run", "-", stdin=[job("alone", "echo here I am")], home=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no cluster runs: starting one for this run" in done.stdout
    assert "alone-worker-0 | here I am" in done.stdout
    assert not (tmp_path / ".elastic").exists()


async def test_nodes_are_drained_reclaimed_and_brought_back_from_the_command_line(cluster: LocalCluster) -> None:
    async with connect(cluster.kubeconfig) as kube:
        await kube.create(JOBS, job("moving", "sleep 1000", workers=2, restart_policy="OnFailure"), namespace="default")

        async def nodes_of_pods() -> set[str]:
            listing = await kube.list(PODS, namespace="default", labels="training.kubeflow.org/job-name=moving")
            running = [
                pod for pod in listing.items if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
            ]
            return {pod["spec"]["nodeName"] for pod in running} if len(running) == 2 else set()

        async def run_only_on(node: str) -> bool:
            return await nodes_of_pods() == {node}

        await until(nodes_of_pods, "both workers run")
        drained = elastic("node", "drain", "node-1", *at(cluster))
        assert drained.returncode == 0, drained.stdout + drained.stderr
        assert drained.stdout.startswith("node node-1 cordoned\n")
        assert drained.stdout.endswith("node node-1 drained\n")
        await until(lambda: run_only_on("node-0"), "both workers run on the other node")

        assert elastic("node", "add", "node-2", "--gpus", "2", "--label", "pool=spot", *at(cluster)).returncode == 0
        added = await get(kube, "node-2", resource=NODES, namespace=None)
        assert added is not None
        assert (added["status"]["capacity"]["nvidia.com/gpu"], added["metadata"]["labels"]["pool"]) == ("2", "spot")

        taken = elastic("node", "reclaim", "node-0", "--as", "gcp", "--seconds", "1", *at(cluster))
        assert taken.returncode == 0, taken.stdout + taken.stderr
        assert "gke-termination given by taint cloud.google.com/impending-node-termination:NoSchedule; lost in 1 s" in taken.stdout
        assert await get(kube, "node-0", resource=NODES, namespace=None) is None
        await until(lambda: run_only_on("node-2"), "both workers run on the node that was added")

        tainted = elastic("node", "taint", "node-2", "a=b:NoSchedule", "c:NoExecute", *at(cluster))
        assert tainted.stdout == "node node-2: taint a=b:NoSchedule set\nnode node-2: taint c:NoExecute set\n"
        assert elastic("node", "kill", "node-9", *at(cluster)).stderr.startswith("Error: no node node-9 runs here; nodes: ")
        assert elastic("node", "taint", "node-9", "a-", *at(cluster)).stderr.startswith("Error: there is no node node-9; nodes: ")
