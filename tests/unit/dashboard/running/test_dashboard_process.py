"""The process as a whole over an API server: what it says of wrong options, and that it serves what it sees."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from cli_api import Api, job, running, served
from click.testing import CliRunner
from dashboard_scene import node, owned, pod

from elastic.kube import connect
from elastic.local import dashboard
from elastic.local.files import ClusterState, Layout, default_data_dir
from elastic.runtime.one_time import OneTimeToken
from elastic_training.dashboard.running.main import main
from elastic_training.dashboard.running.options import Options
from elastic_training.dashboard.running.process import Process


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--enable-kinds", "Pod"], "'Pod' is not a kind of this control plane"),
        (["--enable-kinds", ""], "--enable-kinds names no kind"),
        (["--rendezvous-url", "https://r"], "--rendezvous-url alone is not enough; give --rendezvous-token and --rendezvous-ca as well"),
        (["--rendezvous-url", "http://r", "--rendezvous-token", "t", "--rendezvous-ca", "c"], "must begin with https://"),
        (["--metrics-port", "65536"], "--metrics-port is 65536 but must be from 1 to 65535, or 0 for none"),
        (["--listen", "8080"], "--listen is '8080' but must be HOST:PORT"),
        (["--listen", "0.0.0.0:8080"], "give --tls FOLDER"),
        (["--laptop", "x"], "--laptop and --user-kubeconfig belong together"),
        (["--reclaim-command", "x"], "--reclaim-command is for the laptop"),
    ],
)
def test_a_wrong_option_is_told_in_one_sentence(arguments: list[str], words: str) -> None:
    ended = CliRunner().invoke(main, arguments)
    assert ended.exit_code == 2
    assert words in " ".join(ended.output.split())


def options(kubeconfig: Path, folder: Path, listening: socket.socket) -> Options:
    return Options(
        kubeconfig=kubeconfig,
        namespace=None,
        kinds=("PyTorchJob", "TFJob"),
        signals=None,
        rendezvous_url="",
        rendezvous_token=None,
        rendezvous_ca=None,
        listen="127.0.0.1:0",
        listen_fd=listening.fileno(),
        hosts=(),
        tls=None,
        tls_elsewhere=False,
        laptop=folder,
        user_kubeconfig=kubeconfig,
        allow_changes=False,
        reclaim_command=(),
        command_options="",
        health_port=0,
        metrics_port=0,
        ready_file=folder / "ready",
        identity="test",
    )


async def nodes_seen(browser: aiohttp.ClientSession) -> list[dict[str, Any]]:
    """Return the nodes as soon as there are some: an account may lack the right to list them, so that nothing waits for them."""
    async with asyncio.timeout(60):
        while True:
            async with browser.get("/api/nodes") as answer:
                nodes: list[dict[str, Any]] = json.loads(await answer.read())["nodes"]
            if nodes:
                return nodes
            await asyncio.sleep(0.02)


async def test_it_shows_what_the_cluster_has_and_keeps_its_history(tmp_path: Path) -> None:
    api = Api(job(status=running()), owned(pod(0)), node())
    folder = tmp_path / "dashboard"
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    stop = asyncio.Event()
    with served(api, tmp_path) as kubeconfig:
        async with connect(kubeconfig) as kube, aiohttp.ClientSession(url, cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
            process = asyncio.create_task(Process(kube, options(kubeconfig, folder, listening)).run(stop))
            listening.detach()
            async with asyncio.timeout(60):
                while not (folder / "ready").exists():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            async with browser.get(f"/login?token={OneTimeToken(folder / 'token').current()}") as page:
                assert "<title>" in await page.text()
            async with browser.get("/api/jobs/default/train") as answer:
                page = json.loads(await answer.read())
            nodes = await nodes_seen(browser)
            stop.set()
            await process
    assert (page["job"]["world"], [worker["pod"] for worker in page["workers"]]) == (3, ["train-worker-0"])
    assert nodes[0]["occupants"] == [
        {"namespace": "default", "job": "train", "kind": "PyTorchJob", "pod": "train-worker-0", "state": "Running"}
    ]
    assert (folder / "history.db").exists()


def test_elastic_up_starts_it_with_options_that_it_knows(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.signals.write_text("signals: []")
    given = dashboard.arguments(layout, tmp_path / "account", tmp_path / "user", allow_changes=True)
    (tmp_path / "account").write_text("")
    context = main.make_context("elastic-dashboard", [*given, "--dashboard-fd", "3"])
    chosen = context.params
    assert (chosen["laptop"], chosen["user_kubeconfig"], chosen["listen_fd"]) == (layout.dashboard, tmp_path / "user", 3)
    assert chosen["reclaim_command"][1:] == ("-m", "elastic.cli", "node", "reclaim", "--data-dir", str(tmp_path))
    assert chosen["command_options"] == f"--data-dir {tmp_path}"
    reading = dashboard.arguments(layout, tmp_path / "account", tmp_path / "user", allow_changes=False)
    assert main.make_context("elastic-dashboard", reading).params["reclaim_command"] == ()


def test_commands_need_no_option_for_the_usual_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    layout = Layout(default_data_dir())
    layout.root.mkdir()
    given = dashboard.arguments(layout, tmp_path / "account", tmp_path / "user", allow_changes=False)
    assert not [word for word in given if word.startswith("--command-options")]


def test_the_link_is_of_the_dashboard_that_runs(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert dashboard.link(layout) is None
    state = ClusterState(
        supervisor=1, sandbox="", server="", kubeconfig="", nodes=1, gpus=0, control_plane=True, processes={"dashboard": 2}
    )
    layout.write_state(state)
    layout.ports.write_text('{"dashboard": 4711}')
    layout.dashboard.mkdir()
    assert dashboard.link(layout) == f"http://127.0.0.1:4711/login?token={OneTimeToken(layout.dashboard / 'token').current()}"
    layout.write_state(msgspec.structs.replace(state, processes={}))
    assert dashboard.link(layout) is None
