"""`python -m elastic.local.agent`, which docs/laptop.md has people type, says in a line what it cannot work with."""

import base64
import json
import subprocess
import sys
from pathlib import Path

from elastic.certificates import make_ca
from elastic.kube.errors import KubeError
from elastic.local.agent.__main__ import refusal
from elastic.local.ports import free_port

FORBIDDEN = KubeError(code=403, reason="Forbidden", message='nodes is forbidden: User "me" cannot create resource "nodes"')


def test_a_refusal_is_one_line_and_a_defect_of_ours_none() -> None:
    words = refusal(ExceptionGroup("", [FORBIDDEN, FORBIDDEN]))
    assert words == f"the API server refuses this node: {FORBIDDEN.message}; name an administrator's file by --kubeconfig"
    assert refusal(ExceptionGroup("", [FORBIDDEN, KeyError("a")])) is None


def agent(kubeconfig: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "elastic.local.agent", "--kubeconfig", str(kubeconfig), "--node", "mine"]
    return subprocess.run([*command, "--data-dir", str(folder)], capture_output=True, text=True, timeout=60, check=False)


def kubeconfig(folder: Path, server: str, **fields: str) -> Path:
    cluster, context = {"name": "c", "cluster": {"server": server, **fields}}, {"name": "c", "context": {"cluster": "c", "user": "u"}}
    config = {"clusters": [cluster], "users": [{"name": "u", "user": {}}], "contexts": [context], "current-context": "c"}
    path = folder / "config"
    path.write_text(json.dumps(config))
    return path


def test_a_kubeconfig_that_is_missing_and_a_server_that_is_away_are_told_without_a_traceback(tmp_path: Path) -> None:
    missing = agent(tmp_path / "none", tmp_path / "nodes")
    assert (missing.returncode, f"cannot read kubeconfig {tmp_path}/none: No such file" in missing.stderr) == (1, True)
    unknown = agent(kubeconfig(tmp_path, f"http://127.0.0.1:{free_port()}"), tmp_path / "nodes")
    assert (unknown.returncode, "has no certificate authority" in unknown.stderr) == (1, True)
    encoded = base64.b64encode(make_ca("test").certificate).decode()
    away = agent(kubeconfig(tmp_path, f"https://127.0.0.1:{free_port()}", **{"certificate-authority-data": encoded}), tmp_path / "nodes")
    assert (away.returncode, "the API server cannot be reached" in away.stderr) == (1, True)
    assert "Traceback" not in missing.stderr + unknown.stderr + away.stderr
