"""Run stock torchrun with the store process of the backend c10d.

Workers come and leave, also worker-0, and the job trains on. test_controller_c10d does the same in pods.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_agents import Agents, Server, grow_and_lose_worker_0

from elastic_training.rendezvous.c10d import C10dStore, c10d_env, store_pod

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(480)]

STORE = C10dStore(
    job_name="train",
    namespace="team",
    job_uid="0d9f",
    owner={},
    template={"spec": {"containers": [{"name": "pytorch", "image": "i"}]}},
    selector={},
)


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    """Run the store pod's only process as its pod says, and yield its endpoint."""
    (container,) = store_pod(STORE)["spec"]["containers"]
    environment = dict(os.environ) | {entry["name"]: entry.get("value", "127.0.0.1") for entry in container["env"]}
    environment |= {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "ELASTIC_STORE_PORT": "0"}
    process = subprocess.Popen(container["command"], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("serving the rendezvous store on port ")
    yield f"127.0.0.1:{line.split()[-1]}"
    process.terminate()
    process.stdout.close()
    assert process.wait(60) == 0, "the store ends cleanly when its pod is deleted"


def test_the_store_serves_keys_and_ends_cleanly(endpoint: str) -> None:
    host, port = endpoint.split(":")
    store = pytest.importorskip("torch.distributed").TCPStore(host, int(port), is_master=False)
    store.set("key", "value")
    assert store.get("key") == b"value"


@pytest.mark.full
def test_stock_torchrun_grows_and_outlives_worker_0(endpoint: str, tmp_path: Path) -> None:
    server = Server(tmp_path)  # not started: of our programs only the store runs here
    agents = Agents(tmp_path / "job", server, job=STORE.job_uid)
    env = {entry["name"]: entry["value"] for entry in c10d_env(STORE, rendezvous_id=STORE.job_uid)} | {"PET_RDZV_ENDPOINT": endpoint}
    try:
        grow_and_lose_worker_0(agents, env)
    finally:
        agents.stop()
