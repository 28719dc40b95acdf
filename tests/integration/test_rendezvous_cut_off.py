"""A rendezvous server is cut off together with a worker and a standby controller, by real processes in network namespaces."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

SCENE = Path(__file__).with_name("cut_off_scene.py")
APART = ["unshare", "--user", "--map-root-user", "--net", "--mount"]


@pytest.fixture(scope="module", autouse=True)
def namespaces() -> None:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("network namespaces cannot be made: unshare (util-linux) or ip (iproute2) is missing")
    tried = subprocess.run([*APART, "sh", "-c", "mount -t tmpfs tmpfs /run && ip netns add near"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"network namespaces cannot be made: {tried.stderr.strip()}")


def play(folder: Path) -> dict[str, Any]:
    path = os.pathsep.join([str(SCENE.parent), str(SCENE.parents[1]), str(SCENE.parents[2])])
    done = subprocess.run(
        [*APART, sys.executable, str(SCENE), str(folder), "scene"], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    logs = "\n".join(f"--- {log.name}\n{log.read_text()}" for log in sorted(folder.glob("*.log")))
    assert done.returncode == 0, f"{done.stderr}\n{logs}"
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(logs)
    return facts


def test_a_cut_off_server_decides_nothing_though_a_standby_controller_next_to_it_listens(tmp_path: Path) -> None:
    """On real nodes, the standby's open stream counted as a sign of the leader.

    The server gave up the worker on the other node 19 s after the cut, and formed a world of one. Its successor formed a world of two.
    """
    facts = play(tmp_path)
    assert "this server may be cut off" in facts["during"]
    assert "round began" not in facts["during"]
    for name in ("w0", "w1"):
        assert [json.loads(line) for line in facts[name]] == [{"generation": 1, "is_in_world": True, "size": 2}], name
