"""Wrong flags of `elastic-controller` get one sentence each, with the value that was found and what to do."""

import contextlib
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from prometheus_client import CollectorRegistry

from elastic.membership.tokens import BadKey
from elastic.runtime.web import PortTaken, serving
from elastic_training.controller.running.main import main
from elastic_training.controller.running.process import _installation


def said(*flags: str) -> Result:
    return CliRunner().invoke(main, list(flags))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--enable-kinds", "PyTorchJob,Job"], "--enable-kinds: 'Job' is not a kind of this controller; choose from PyTorchJob"),
        (["--enable-kinds", ", "], "--enable-kinds names no kind"),
        (["--namespace", ""], "--namespace is '' but"),
        (["--namespace", "Team_A"], "leave the flag out for all namespaces"),
        (["--lease-namespace", "a/b"], "--lease-namespace is 'a/b' but"),
        (["--gang-scheduler-name", "Volcano!"], "--gang-scheduler-name is 'Volcano!' but"),
        (["--metrics-port", "70000"], "--metrics-port is 70000 but must be from 1 to 65535, or 0 for none"),
        (["--health-port", "-1"], "--health-port is -1 but"),
        (["--webhook-port", "9443", "--health-port", "9443"], "which another flag uses; give the webhook a port of its own"),
        (["--webhook-port", "9443", "--webhook-fd", "3"], "give one of them"),
        (["--rendezvous-url", "https://r:1"], "give --rendezvous-endpoint and --installation as well"),
        (["--rendezvous-endpoint", "r:1"], "give --rendezvous-url and --installation as well"),
        (["--rendezvous-url", "http://r:1"], "--rendezvous-url is 'http://r:1' but must begin with https://"),
        (["--rendezvous-endpoint", "r"], "--rendezvous-endpoint is 'r' but must be HOST:PORT"),
        (["--rendezvous-endpoint", "r:99999"], "--rendezvous-endpoint is 'r:99999' but must be HOST:PORT"),
        (["--pytorch-init-container-max-tries", "0"], "--pytorch-init-container-max-tries is 0 but must be at least 1"),
        (["--workers", "0"], "0 is not in the range 1<=x<=256"),
        (["--kubeconfig", "/nowhere"], "'/nowhere' does not exist"),
    ],
)
def test_a_flag_that_cannot_be_meant_so_is_refused_in_words(flags: list[str], words: str) -> None:
    result = said(*flags)
    assert result.exit_code == 2
    assert words in result.output


def test_every_mistake_is_named_at_once() -> None:
    output = said("--enable-kinds", "Job", "--metrics-port", "70000").output
    assert "--enable-kinds" in output
    assert "--metrics-port" in output


async def test_a_port_that_another_has_is_named_with_its_flag() -> None:
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortTaken, match=f"--metrics-port is {port}, which cannot be listened on"):
            async with contextlib.AsyncExitStack() as stack:
                await stack.enter_async_context(
                    serving(health_port=0, metrics_port=port, is_ready=lambda: True, registry=CollectorRegistry())
                )


def test_a_port_of_the_webhook_that_another_has_is_named_too(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as other:
        kubeconfig = tmp_path / "kubeconfig"
        user, cluster = {"name": "u", "user": {}}, {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
        context = {"name": "x", "context": {"user": "u", "cluster": "c"}}
        kubeconfig.write_text(json.dumps({"users": [user], "clusters": [cluster], "contexts": [context], "current-context": "x"}))
        port = other.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "elastic_training.controller.running.main",
            "--kubeconfig",
            str(kubeconfig),
            "--webhook-port",
            str(port),
        ]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 2
    (line,) = map(json.loads, ended.stderr.splitlines())
    assert f"--webhook-port is {port}, which cannot be listened on" in line["error"]


@pytest.mark.parametrize("certificate", [None, "", "not a certificate"])
def test_an_installation_without_a_certificate_is_refused_with_its_path(tmp_path: Path, certificate: str | None) -> None:
    (tmp_path / "server.key").write_text("00" * 32)
    if certificate is not None:
        (tmp_path / "ca.crt").write_text(certificate)
    with pytest.raises(BadKey, match=r"ca\.crt cannot be read as a certificate"):
        _installation(tmp_path)
