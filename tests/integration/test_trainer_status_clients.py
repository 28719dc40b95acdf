"""The unmodified clients of Kubeflow Trainer's status protocol report to our server: transformers' callback and Kubeflow's SDK."""

import asyncio
import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web
from example_jobs import environment

from elastic.local.installation import ensure_installation
from elastic.membership.tokens import Role, job_token, load_keys
from elastic.membership.training import TrainingProgress
from elastic.membership.wire import Expectation, Join
from elastic_training.rendezvous.server.access import Gate
from elastic_training.rendezvous.server.credentials import Credentials
from elastic_training.rendezvous.server.http import Face
from elastic_training.rendezvous.server.hub import Hub

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(300)]
WITHIN_S = 200

SDK = """\
from kubeflow.trainer import update_trainjob_status
print(update_trainjob_status(progress_percent=47, estimated_remaining_seconds=120, metrics={"loss": 0.5, "note": "good", "step": 94}))
"""
CALLBACK = """\
from types import SimpleNamespace
from transformers import TrainingArguments
from transformers.integrations import KubeflowCallback
assert TrainingArguments(output_dir="/tmp/unused", use_cpu=True).report_to == ["kubeflow"]
callback = KubeflowCallback()
callback._MIN_UPDATE_INTERVAL = 0.0
state = SimpleNamespace(is_world_process_zero=True, max_steps=200, global_step=94, epoch=1.88)
callback.on_train_begin(None, state, None)
callback.on_log(None, state, None, logs={"loss": 0.5, "note": "good"})
callback.on_step_end(None, state, None)
print(callback._update_status(metrics={"loss": 0.5, "current_step": 94}, progress_percent=47, estimated_time_remaining=120))
"""


class Wire:
    def send(self, view: object) -> None: ...

    def end(self, reason: str) -> None: ...

    def close(self) -> None: ...

    def give(self, exchange: object) -> None: ...


@dataclass
class Served:
    """A server with one job, in a thread of its own."""

    folder: Path
    loop: asyncio.AbstractEventLoop
    hub: Hub
    url: str

    def environment(self, *, role: Role = Role.STATUS) -> dict[str, str]:
        token = self.folder / role.value
        token.write_text(job_token(load_keys(self.folder)[0], "job", role) + "\n")
        return os.environ | {
            "KUBEFLOW_TRAINER_SERVER_URL": f"{self.url}/v1/jobs/job/trainer-status",
            "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(self.folder / "ca.crt"),
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(token),
        }

    def progress(self) -> TrainingProgress:
        async def read() -> TrainingProgress:
            (progress,) = self.hub.progress_since(-1)
            return progress

        return asyncio.run_coroutine_threadsafe(read(), self.loop).result(WITHIN_S)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    ensure_installation(tmp_path, addresses=())
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    credentials, hub = Credentials(tmp_path), Hub(instance="s1", clock=loop.time)
    gate = Gate(keys=lambda: credentials.keys, reviewer=None, accounts=())
    face = Face(hub=hub, gate=gate, clock=loop.time, metrics=lambda: (b"", "text/plain"))
    runner = web.AppRunner(face.application())

    async def start() -> str:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=credentials.tls).start()
        hub.expect("job", Expectation(members=("w0",), min=1, max=8))
        hub.attach("job", name="w0", link=Wire(), message=Join(incarnation="w0/1", store="w0:1"))
        return f"https://127.0.0.1:{runner.addresses[0][1]}"

    async def stop() -> None:
        hub.forget("job")
        await face.close()
        await runner.cleanup()

    try:
        yield Served(tmp_path, loop, hub, asyncio.run_coroutine_threadsafe(start(), loop).result(WITHIN_S))
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(WITHIN_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WITHIN_S)
        loop.close()


def says(framework: str, program: str, env: dict[str, str]) -> str:
    python = environment(framework) / "bin" / "python"
    done = subprocess.run([python, "-c", program], env=env, capture_output=True, text=True, timeout=WITHIN_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("framework", "program"),
    [
        pytest.param("kubeflow", SDK, marks=pytest.mark.framework("kubeflow")),
        pytest.param("huggingface", CALLBACK, marks=pytest.mark.framework("huggingface")),
    ],
    ids=["sdk", "callback"],
)
def test_a_client_of_kubeflow_trainer_is_heard(served: Served, framework: str, program: str) -> None:
    assert says(framework, program, served.environment()) == "True"
    told = served.progress()
    assert (told.step, told.percent, told.remaining_s, told.values) == (94, 47, 120.0, {"loss": 0.5})
    assert says(framework, program, served.environment(role=Role.AGENT)) == "False"
