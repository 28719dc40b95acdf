"""That commands about jobs say how far training is, as the dashboard heard it, and show the rest where it does not answer."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cli_api import Api, elastic, pod, running, served
from click.testing import CliRunner, Result
from dashboard_scene import Scene, job, kube, owned
from kubernetes.client import ApiClient
from msgspec.structs import replace

from elastic.cli import main
from elastic.client import errors
from elastic.client.cluster import Cluster
from elastic.client.live import of_laptop
from elastic.client.sample import Sample, samples, shortened
from elastic.local.files import ClusterState, Layout
from elastic.local.ports import free_port
from elastic.membership.training import TrainingProgress
from elastic_training.dashboard.serving.callers import LaptopOwner
from elastic_training.dashboard.serving.sessions import LaptopSessions, Session

BOUNDS = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 4}}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait long enough for an answer on a slow machine."""
    monkeypatch.setattr("elastic.client.live.WITHIN_S", 60.0)


def trained() -> Scene:
    """Return a scene with ten steps a second in a world of two for ten seconds. The status still says three."""
    scene = Scene(job(status=running(), **BOUNDS), owned(pod(0)), owned(pod(1)))
    scene.book.clock = lambda: time.time() + 600  # however slow this machine is, the next step is not late
    for _ in range(13):
        scene.now += 1
        step = int(scene.now) * 10
        values = {"loss": 0.03125}
        told = TrainingProgress(job="uid-train", generation=1, phase="running", size=2, step=step, highest=step, values=values)
        scene.book.hear(replace(told, percent=47, remaining_s=150.0))
    return scene


def write_state(folder: Path, kubeconfig: Path, port: int) -> None:
    layout = Layout(folder)
    layout.ports.write_text(json.dumps({"dashboard": port}))
    state = ClusterState(
        supervisor=os.getpid(),
        sandbox="loopback",
        server="",
        kubeconfig=str(kubeconfig),
        nodes=1,
        gpus=0,
        control_plane=True,
        processes={"dashboard": os.getpid()},
    )
    layout.write_state(state)


@asynccontextmanager
async def laptop(folder: Path) -> AsyncIterator[Path]:
    """Yield the kubeconfig of a laptop cluster with a dashboard."""
    scene = trained()
    api = Api(job(status=running(), **BOUNDS), pod(0), pod(1))
    (folder / "dashboard").mkdir()
    with served(api, folder) as kubeconfig:
        async with scene.served(folder / "dashboard", is_logged_in=False) as browser:
            assert browser._base_url is not None
            assert browser._base_url.port is not None
            write_state(folder, kubeconfig, browser._base_url.port)
            yield kubeconfig


async def asked(kubeconfig: Path, *words: str) -> Result:
    return await asyncio.to_thread(elastic, kubeconfig, *words)


async def test_get_top_and_explain_say_how_far_training_is_now(tmp_path: Path) -> None:
    async with laptop(tmp_path) as kubeconfig:
        lines = (await asked(kubeconfig, "get")).stdout.splitlines()
        assert lines[0].split() == ["NAME", "KIND", "STATE", "WORKERS", "WORLD", "STEP", "SPEED", "LOSS", "RESTARTS", "RESCALED", "AGE"]
        assert lines[1].split()[:9] == ["train", "PyTorchJob", "Running", "3/3", "2", "10130", "10", "steps/s", "0.0312"]
        top = await asked(kubeconfig, "top", "train")
        assert (
            top.stdout.splitlines()[0]
            == "PyTorchJob train: world 2, step 10130, speed 10 steps/s, loss 0.0312, progress 47 %, remaining 2m"
        )
        facts = json.loads((await asked(kubeconfig, "top", "-o", "json")).stdout)["jobs"][0]
        assert (facts["world"], facts["step"], facts["speed"], facts["unit"], facts["loss"]) == (2, 10130, 10.0, "steps/s", 0.03125)
        assert (facts["progressPercent"], facts["remainingSeconds"]) == (47, 150.0)
        explained = (await asked(kubeconfig, "explain", "train")).stdout.splitlines()
        assert explained[1] == "It is at step 10130, 10 steps/s, loss 0.0312, 47 %, 2m left."


async def test_a_program_without_a_loop_of_its_own_hears_it_too(tmp_path: Path) -> None:
    """Check how `elastic.Client` asks."""
    async with laptop(tmp_path):
        layout = Layout(tmp_path)
        of = of_laptop(layout)
        assert of is not None
        client = Cluster(ApiClient(), "default", is_laptop=True, layout=layout)
        found = await asyncio.to_thread(client.ask, "progress", lambda kube: client.sample("uid-train"))
        assert found is not None
        assert (found.world, found.step, found.rate, found.loss) == (2, 10130, 10.0, 0.03125)
        client.dashboard = of.url
        with pytest.raises(errors.Unreachable, match="it answers 401"):
            await asyncio.to_thread(client.ask, "progress", lambda kube: client.sample("uid-train"))
        client.close()


async def test_status_of_the_laptop_says_it_too(tmp_path: Path) -> None:
    async with laptop(tmp_path):
        said = await asyncio.to_thread(CliRunner().invoke, main, ["status", "--data-dir", str(tmp_path)])
        assert said.stdout.splitlines()[-1].split()[:7] == ["default", "train", "PyTorchJob", "Running", "3/3", "2", "10130"]
        said = await asyncio.to_thread(CliRunner().invoke, main, ["status", "-o", "json", "--data-dir", str(tmp_path)])
        assert json.loads(said.stdout)["jobs"][0]["step"] == 10130


async def test_a_dashboard_that_is_down_costs_the_samples_only(tmp_path: Path) -> None:
    async with laptop(tmp_path) as kubeconfig:
        port = free_port()
        write_state(tmp_path, kubeconfig, port)
        said = await asked(kubeconfig, "get")
        assert (said.exit_code, said.stdout.splitlines()[1].split()[:5]) == (0, ["train", "PyTorchJob", "Running", "3/3", "3"])
        assert f"how far jobs are right now is unknown: the dashboard at http://127.0.0.1:{port}: " in said.stderr


@pytest.mark.parametrize(
    ("answer", "limits", "words"),
    [
        (b"", {"WITHIN_S": 0.2}, "no answer in time"),
        (b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 3\r\n\r\nbad", {}, "it answers 500: bad"),
        (b"HTTP/1.1 500 Error\r\nContent-Length: 7\r\n\r\n\x1b[31mno", {}, "it answers 500: \\x1b[31mno"),
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", {}, ""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"[" * 2000, {"MOST_BYTES": 1000}, "the answer is longer than"),
    ],
)
async def test_a_silent_or_endless_dashboard_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, limits: dict[str, float], words: str
) -> None:
    for name, limit in limits.items():
        monkeypatch.setattr(f"elastic.client.live.{name}", limit)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await reader.read()
        writer.close()

    async with laptop(tmp_path) as kubeconfig, await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        write_state(tmp_path, kubeconfig, server.sockets[0].getsockname()[1])
        said = await asked(kubeconfig, "get")
        assert (said.exit_code, words in said.stderr, bool(said.stderr)) == (0, True, bool(words))


class OneToken(LaptopSessions):
    """As in a cluster: the token of the kubeconfig is shown with each request."""

    async def of(self, request):  # type: ignore[no-untyped-def]
        return Session("s", LaptopOwner(self._owner.kube)) if request.headers.get("Authorization") == "Bearer mine" else None


async def test_a_clusters_dashboard_is_asked_with_the_kubeconfigs_token(tmp_path: Path) -> None:
    scene = trained()
    api = Api(job(status=running(), **BOUNDS))
    with served(api, tmp_path) as kubeconfig:
        async with scene.served(tmp_path, sessions=OneToken(tmp_path, kube()), is_logged_in=False) as browser:
            url = str(browser._base_url)
            without = await asked(kubeconfig, "get", "--dashboard", url)
            assert (without.exit_code, "wants a token, and this kubeconfig has none" in without.stderr) == (1, True)
            text = kubeconfig.read_text().replace("cluster: test\n", "cluster: test\n    user: me\n", 1)
            kubeconfig.write_text(text + "users:\n- name: me\n  user: {token: mine}\n")
            said = await asked(kubeconfig, "get", "--dashboard", url)
            assert said.stdout.splitlines()[1].split()[4:6] == ["2", "10130"]
            kubeconfig.write_text(kubeconfig.read_text().replace("token: mine", "token: another"))
            refused = await asked(kubeconfig, "get", "--dashboard", url)
            assert (refused.exit_code, "it answers 401" in refused.stderr) == (1, True)
            plain = await asked(kubeconfig, "get", "--dashboard", "http://training.example")
            assert (plain.exit_code, "must begin with https://" in plain.stderr) == (2, True)


@pytest.mark.parametrize("body", [b"", b"{}", b'[{"step": 1}]', b'[{"uid": "a", "step": "x"}]', b"\xff"])
def test_an_answer_that_no_dashboard_sends_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        samples(body)


def test_numbers_keep_three_digits() -> None:
    assert [shortened(value) for value in (123456.7, 99.96, 0.00012345, 0.0)] == ["123457", "100", "0.000123", "0"]
    assert Sample(uid="a").progress == ""
    assert Sample(uid="a", step=3, rate=1.5, unit="tokens").progress == "step 3, 1.5 tokens/s"
