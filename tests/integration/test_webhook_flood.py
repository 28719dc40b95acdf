"""The webhook with its processes gets hostile requests. Anybody can send them, because it asks for no credentials."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from elastic.api import KINDS
from elastic.api.webhook import PATH
from elastic.certificates import issue, make_ca
from elastic_training.controller.webhook.judges import Judges, Verdict, command
from elastic_training.controller.webhook.server import LARGEST_REVIEW, serving

pytestmark = pytest.mark.integration
HERE = Path(__file__).parent.parent
ODD = [sys.executable, str(HERE / "odd_judge.py")]
REAL = command(kinds=KINDS, namespace=None)
PATIENCE_S = 60.0
MOST_WORK_S = 2.0
"""Limit of the loop's processor time between two turns: ten times the usual, and a small part of a Lease's ten seconds."""


def review(name: str = "train", **container: Any) -> bytes:
    template = {"spec": {"containers": [{"name": "pytorch", "image": "x", **container}]}}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": {"Worker": {"template": template}}},
    }
    kind = {"group": "kubeflow.org", "version": "v1", "kind": "PyTorchJob"}
    request = {"uid": "u", "kind": kind, "name": name, "namespace": "n", "operation": "CREATE", "object": job}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


class Webhook:
    def __init__(self, port: int, session: aiohttp.ClientSession) -> None:
        self.port = port
        self._session = session

    async def said(self, body: bytes) -> tuple[int, Any]:
        async with self._session.post(f"https://127.0.0.1:{self.port}{PATH}", data=io.BytesIO(body)) as answer:
            return answer.status, await answer.json() if answer.status == 200 else await answer.text()

    async def response(self, body: bytes) -> dict[str, Any]:
        status, said = await self.said(body)
        assert status == 200, said
        response: dict[str, Any] = said["response"]
        assert response["uid"] == "u"
        return response


@asynccontextmanager
async def webhook(judge: list[str], **options: Any) -> AsyncIterator[Webhook]:
    authority = make_ca("ca")
    served = issue(authority, "webhook", names=("127.0.0.1",))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(tls, served.certificate, served.key)
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    port = listening.getsockname()[1]
    judges = Judges(judge, **options)

    async def judged(body: bytes, address: str) -> Verdict:
        return await judges.judge(body, address=address)

    trusting = ssl.create_default_context(cadata=authority.certificate.decode())
    connector = aiohttp.TCPConnector(ssl=trusting, force_close=True)
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with (
        judges.running(),
        serving(listening, tls=tls, judge=judged),
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
    ):
        asked = Webhook(port, session)
        async with asyncio.timeout(PATIENCE_S):
            await judges.wait_ready()
        yield asked


def _load(tls: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    from tempfile import NamedTemporaryFile

    with NamedTemporaryFile() as file:
        file.write(certificate + key)
        file.flush()
        tls.load_cert_chain(file.name)


@contextmanager
def flood(port: int, address: str, kind: str) -> Iterator[None]:
    args = [sys.executable, str(HERE / "webhook_flood.py"), str(port), address, kind]
    process = subprocess.Popen(args, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"flooding\n"
        yield
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@asynccontextmanager
async def loop_that_runs() -> AsyncIterator[None]:
    """Check that no work in the loop keeps other tasks waiting, such as the renewal of a Lease.

    The processor time of the thread counts, which does not grow if the machine is busy.
    """
    longest = 0.0

    async def beat() -> None:
        nonlocal longest
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.01)
            longest = max(longest, time.thread_time() - before)

    beating = asyncio.create_task(beat())
    yield
    await asyncio.sleep(0.02)
    beating.cancel()
    print(f"the loop worked for {longest:.2f} s at most between two turns")
    assert longest < MOST_WORK_S


async def test_a_job_with_20_000_wrong_ports_is_refused_in_words_and_holds_nobody_up():
    body = review(ports=[{"containerPort": 70_000 + i} for i in range(20_000)])
    async with webhook(REAL, limit_s=PATIENCE_S) as asked, loop_that_runs():
        response = await asked.response(body)
    assert not response["allowed"]
    assert "containerPort is 70000; a port is between 1 and 65535" in response["status"]["message"]


async def test_a_job_that_takes_too_long_is_refused_in_words_and_the_next_ones_are_judged():
    async with webhook(ODD, size=1, limit_s=2.5, wait_s=PATIENCE_S) as asked, loop_that_runs():
        response = await asked.response(review("slow-3600"))
        assert not response["allowed"]
        message = "the job could not be judged: it took more than 2.5 s; make it smaller, or try again if it is small"
        assert response["status"]["message"] == message
        assert (await asked.response(review()))["allowed"]


@pytest.mark.parametrize("name", ["dies", "hoards"])
async def test_a_job_that_ends_the_process_which_judges_it_is_refused_in_words(name: str):
    async with webhook(ODD, size=1, limit_s=PATIENCE_S, wait_s=PATIENCE_S) as asked:
        response = await asked.response(review(name))
        assert not response["allowed"]
        assert "the process that judged it ended" in response["status"]["message"]
        assert (await asked.response(review()))["allowed"]


async def test_callers_without_a_free_place_are_told_to_try_again_and_those_that_left_are_not_judged():
    async with webhook(ODD, size=1, limit_s=PATIENCE_S, wait_s=0.2) as asked:
        long = asyncio.create_task(asked.response(review("slow-6")))
        while (await asked.said(review()))[0] != 503:
            assert not long.done(), "while the long one is judged nobody is free"
        assert (await long)["allowed"]


async def test_bodies_are_bounded():
    async with webhook(REAL) as asked:
        assert (await asked.said(b"x" * (LARGEST_REVIEW + 1)))[0] == 413
        assert (await asked.said(b"{}"))[0] == 400


@pytest.mark.parametrize(
    ("kind", "address"), [("silent", "127.0.0.1"), ("slow", "127.0.0.1"), ("slow", "127.0.0.2"), ("large", "127.0.0.2")]
)
async def test_a_flood_keeps_neither_the_loop_nor_a_small_job_of_somebody_else_waiting(kind: str, address: str):
    async with webhook(REAL, limit_s=PATIENCE_S, wait_s=PATIENCE_S) as asked:
        with flood(asked.port, address, kind):
            async with loop_that_runs():
                for _ in range(5):
                    assert (await asked.response(review()))["allowed"]


def test_the_processes_end_with_a_controller_that_is_killed(tmp_path: Path):
    program = (
        "import asyncio, sys\n"
        "from elastic_training.controller.webhook.judges import Judges\n"
        "async def main():\n"
        "    judges = Judges(sys.argv[1:], limit_s=3600)\n"
        "    async with judges.running():\n"
        "        await judges.judge(sys.stdin.buffer.read(), address='a')\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, *ODD], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(review("slow-3600"))
    process.stdin.close()
    judges = _until(lambda: _children(process.pid) if len(_children(process.pid)) == 2 else None)
    time.sleep(1)  # one of them judges by then, or has not started yet; it ends all the same
    process.send_signal(signal.SIGKILL)
    process.wait()
    _until(lambda: not any(map(_lives, judges)) or None)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _until(found: Any) -> Any:
    end = time.monotonic() + PATIENCE_S
    while (value := found()) is None:
        assert time.monotonic() < end
        time.sleep(0.05)
    return value


def test_a_process_that_judges_loads_no_more_than_it_needs():
    program = (
        "import sys, elastic_training.controller.webhook.judge; "
        "print(*sorted({'torch', 'aiohttp', 'kopf', 'asyncio', 'cryptography'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, env=os.environ).stdout == b"\n"
