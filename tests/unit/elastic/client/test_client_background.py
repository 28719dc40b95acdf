"""Check that the calls of `elastic.Client` work next to a running loop, end when they should, and leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_api import PYTORCH, Api, job, pod, running, served
from client_api import Open
from kubernetes.client import ApiClient, Configuration

from elastic.client import cluster, errors
from elastic.client.client import Client
from elastic.client.job import Job
from elastic.kube.background import AHEAD
from elastic.kube.client import Kube


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "elastic-client"]


@pytest.fixture
def silent() -> Iterator[Client]:
    """Return a client of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        configuration = Configuration(host=f"http://127.0.0.1:{server.getsockname()[1]}")
        with Client(api=ApiClient(configuration)) as client:
            yield client


async def test_it_works_in_a_notebook_whose_loop_runs(opened: Open) -> None:
    api = Api(job(status=running()), pod(0))
    api.logs = {"train-worker-0": "one\ntwo\n"}
    there = opened(api).get("train")
    assert there.status.state == "Running"
    assert list(there.logs()) == ["one", "two"]
    assert next(iter(there.watch())).running == 3


def test_one_thread_serves_a_client_and_its_handles_and_ends_with_the_last_of_them(tmp_path: Path) -> None:
    with served(Api(job()), tmp_path) as kubeconfig:
        before = len(threads())
        client = Client(kubeconfig)
        assert len(threads()) == before, "a client that is not used has none"
        handles = client.jobs()
        del client
        assert (handles[0].status.state, len(threads())) == ("Pending", before + 1)
        del handles
        gc.collect()
        assert len(threads()) == before


def test_a_client_that_is_closed_says_so(opened: Open) -> None:
    client = opened(Api(job(status=running())))
    there = client.get("train")
    changes = there.watch()
    assert next(changes).state == "Running"
    client.close()
    client.close()
    with pytest.raises(errors.ElasticError, match="this client is closed"):
        next(changes)
    with pytest.raises(errors.ElasticError, match="this client is closed"):
        _ = there.status


def test_a_call_that_waits_when_the_client_is_closed_ends(silent: Client) -> None:
    threading.Timer(0.2, silent.close).start()
    with pytest.raises(errors.ElasticError, match="this client is closed"):
        silent.jobs()


def test_a_silent_server_does_not_hold_a_call_up_for_ever(silent: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic.client.job.WITHIN_S", 0.2)
    monkeypatch.setattr(cluster.Cluster.ask, "__defaults__", (0.2,))
    there = Job(silent._cluster, PYTORCH, "train")
    acts: list[Callable[[], Any]] = [silent.jobs, lambda: there.status, lambda: next(there.logs()), lambda: next(there.watch())]
    acts += [there.explain, lambda: there.scale(2)]
    for act in acts:
        with pytest.raises(errors.Unreachable, match="the API server cannot be reached: no answer in time"):
            act()


def test_ctrl_c_ends_a_call_and_cancels_its_coroutine(silent: Client) -> None:
    began, ended = threading.Event(), threading.Event()

    async def for_ever(kube: Kube) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def interrupt() -> None:
        assert began.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        silent._cluster.ask("waiting", for_ever, None)
    assert ended.wait(60)


def test_ctrl_c_before_the_caller_knows_that_its_call_has_begun_cancels_it(silent: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call went on in the thread without an end."""
    background, began, ended = silent._cluster._running(), threading.Event(), threading.Event()
    give = background._call
    interrupts = [KeyboardInterrupt]

    async def for_ever(kube: Kube) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def given(act: Callable[[], None]) -> None:
        give(act)
        if interrupts:
            assert began.wait(60)
            raise interrupts.pop()

    monkeypatch.setattr(background, "_call", given)
    with pytest.raises(KeyboardInterrupt):
        silent._cluster.ask("waiting", for_ever, None)
    assert ended.wait(60)


def test_ctrl_c_ends_a_stream_and_cancels_its_generator(opened: Open) -> None:
    client, ended = opened(Api()), threading.Event()

    async def items(kube: Kube) -> Any:
        try:
            yield 1
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            ended.set()

    stream = client._cluster.each("waiting", items)
    with pytest.raises(KeyboardInterrupt):
        list(stream)
    assert ended.wait(60)


def test_a_stream_that_nobody_reads_waits_and_ends_with_its_last_reference(opened: Open) -> None:
    client, made, ended = opened(Api()), list[int](), threading.Event()

    async def numbers(kube: Kube) -> Any:
        try:
            for number in range(1000):
                made.append(number)
                yield number
        finally:
            ended.set()

    stream = client._cluster.each("reading", numbers)
    assert [next(stream) for _ in range(100)] == list(range(100))
    del stream
    gc.collect()
    assert ended.wait(60)
    assert len(made) <= 100 + AHEAD + 1
    assert list(client._cluster.each("reading", numbers)) == list(range(1000))


def test_a_fork_has_a_thread_of_its_own(tmp_path: Path) -> None:
    """The thread of the parent does not exist in its child, which waited for it for ever."""
    program = (
        "import os, sys\n"
        "from elastic import Client\n"
        "client = Client(sys.argv[1])\n"
        "assert [job.name for job in client.jobs()] == ['train']\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    print([job.name for job in client.jobs()], flush=True)\n"
        "    sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "print([job.name for job in client.jobs()])\n"
    )
    with served(Api(job()), tmp_path) as kubeconfig:
        done = subprocess.run([sys.executable, "-c", program, kubeconfig], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "['train']\n['train']\n", "")


def test_a_program_that_ends_in_the_middle_of_a_watch_ends_silently(tmp_path: Path) -> None:
    program = "import sys\nfrom elastic import Client\nkept = Client(sys.argv[1]).get('train').watch()\nprint(next(kept).state)\n"
    with served(Api(job(status=running())), tmp_path, user={"token": "t"}) as kubeconfig:
        done = subprocess.run([sys.executable, "-c", program, kubeconfig], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Running\n", "")
