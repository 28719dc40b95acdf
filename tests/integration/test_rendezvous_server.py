"""The real server process and real presences of agents, without torch: who may do what, what it bounds, and what outlives it."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from rendezvous_members import Member, expecting, members
from torch_agents import Proxy, Server, serving, wait_until

from elastic.local.installation import ensure_installation
from elastic.membership import limits
from elastic.membership.client import RendezvousClient, RendezvousError
from elastic.membership.tokens import control_token, job_token
from elastic.membership.wire import Expectation, LeaveOrder, WorldReport
from elastic_worker import report
from elastic_worker.agent import presence
from elastic_worker.report import Reporter

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as running:
        yield running


def test_one_job_can_neither_read_nor_join_nor_steer_another(server: Server) -> None:
    server.expect("mine", expecting(1))
    server.expect("theirs", expecting(1))
    mine, control = job_token(server.key, "mine"), control_token(server.key)
    assert server.call("GET", "/v1/jobs/mine/world", token=mine)[0] == 200
    assert server.call("GET", "/v1/jobs/theirs/world", token=mine)[0] == 403
    assert server.call("GET", "/v1/jobs/theirs/world")[0] == 401
    assert server.call("PUT", "/v1/jobs/mine/expectation", token=mine, body=b"{}")[0] == 403
    assert server.call("DELETE", "/v1/jobs/theirs", token=mine)[0] == 403
    assert server.call("GET", "/v1/worlds", token=mine)[0] == 403
    assert server.call("POST", "/v1/jobs/theirs/report", token=mine, body=b'{"member":"w0"}')[0] == 401
    assert server.call("GET", "/v1/jobs/theirs/signals", token=control)[0] == 200
    intruder = Member(server, job="theirs", name="w0", token=mine)
    try:
        wait_until(lambda: bool(intruder.presence.denied), what="the intruder is denied")
        assert "401" in intruder.presence.denied
        world = server.world("theirs")
        assert world is not None
        assert world.phase == "empty"
    finally:
        intruder.stop()


def test_requests_are_bounded_and_refused_in_words(server: Server) -> None:
    control, agent = control_token(server.key), job_token(server.key, "job")
    status, text = server.call("PUT", "/v1/jobs/job/expectation", token=control, body=b'{"min": 0}')
    assert status == 400
    assert b"$.min" in text
    assert server.call("PUT", "/v1/jobs/job/expectation", token=control, body=b" " * (limits.EXPECTATION_BODY + 1))[0] == 413
    assert server.call("POST", "/v1/jobs/job/report", token=agent, body=b" " * (limits.REPORT_BODY + 1))[0] == 413
    assert server.call("POST", "/v1/jobs/job/report", token=agent, body=b"[]")[0] == 400
    assert server.call("GET", f"/v1/jobs/{'j' * 300}/members/w0", token=agent)[0] == 400


async def test_a_connection_that_talks_nonsense_or_too_much_is_closed(server: Server) -> None:
    tls = ssl.create_default_context(cadata=server.ca)
    headers = {"Authorization": f"Bearer {job_token(server.key, 'job')}"}
    url = f"https://127.0.0.1:{server.port}/v1/jobs/job/members/w0"
    async with aiohttp.ClientSession() as session:
        for first in ("nonsense", '{"t":"beat"}', '{"t":"join","incarnation":""}'):
            async with session.ws_connect(url, headers=headers, ssl=tls) as ws:
                await ws.send_str(first)
                message = await ws.receive(10)
                assert message.type is aiohttp.WSMsgType.CLOSE
        async with session.ws_connect(url, headers=headers, ssl=tls) as ws:
            await ws.send_str('{"t":"join","incarnation":"a/1"}')
            assert (await ws.receive(10)).type is aiohttp.WSMsgType.TEXT
            with contextlib.suppress(ConnectionError):
                for _ in range(1000):
                    await ws.send_str('{"t":"beat"}')
            while (message := await ws.receive(10)).type is aiohttp.WSMsgType.TEXT:
                pass
            # A peer that has also sent too many bytes is cut off, so the reason may be lost on its way.
            is_closed = message.type is aiohttp.WSMsgType.CLOSE and message.data == aiohttp.WSCloseCode.POLICY_VIOLATION
            assert is_closed or message.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
    await asyncio.sleep(0.25)  # aiohttp does not wait for the good-byes of its TLS connections


def test_an_older_leaders_expectation_is_refused(server: Server) -> None:
    async def two_leaders() -> None:
        async with server.client() as client:
            await client.expect("job", expecting(2, term=5))
            await client.expect("job", expecting(1, term=4))

    with pytest.raises(RendezvousError, match="of term 4 is older") as refusal:
        asyncio.run(two_leaders())
    assert refusal.value.code == 409


def test_the_controller_hears_of_every_world_over_a_restart_of_the_server(server: Server) -> None:
    heard: list[WorldReport] = []
    opened: list[float] = []
    stop = threading.Event()

    async def listen() -> None:
        async with server.client() as client:
            stream = client.worlds(on_open=lambda: opened.append(time.monotonic()))

            async def take() -> None:
                async for world in stream:
                    heard.append(world)

            task = asyncio.create_task(take())
            await asyncio.to_thread(stop.wait)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    listener = threading.Thread(target=lambda: asyncio.run(listen()))
    listener.start()
    try:
        server.expect("job", expecting(2, min=2))
        with members(server, "job", 2):
            wait_until(lambda: any(w.phase == "running" and len(w.members) == 2 for w in heard), what=lambda: f"a world of 2: {heard}")
            server.kill()
            server.start()
            wait_until(lambda: len(opened) >= 2, what="the stream opens again")
            heard.clear()
            server.expect("job", expecting(2, min=2, floor=1))
            wait_until(
                lambda: any(w.phase == "running" and len(w.members) == 2 and w.generation == 1 for w in heard),
                what=lambda: f"the same world is found again: {heard}",
            )
        assert asyncio.run(_forget(server, "job")) is None
        wait_until(lambda: any(w.forgotten for w in heard), what="the end of the job is heard")
    finally:
        stop.set()
        listener.join(10)


async def _forget(server: Server, job: str) -> int | None:
    async with server.client() as client:
        return await client.forget(job)


def test_training_signals_are_answered_and_readable(server: Server) -> None:
    server.expect("job", expecting(2, min=2))
    with members(server, "job", 2) as (first, second):
        wait_until(lambda: first.generation == 1 and second.generation == 1, what="a world of 2")
        reporter = Reporter(first.settings, generation=1, least_gap_s=0)
        assert reporter.send(10, loss=0.5) == (False, "", None)
        reporter.send(11, loss=0.4)

        def signals() -> list[dict[str, object]]:
            status, text = server.call("GET", "/v1/jobs/job/signals", token=control_token(server.key))
            assert status == 200
            return list(json.loads(text))

        wait_until(lambda: [one["step"] for one in signals()] == [11], what="the newest report is there")
        (newest,) = signals()
        assert (newest["member"], newest["step"], newest["values"]) == ("w0", 11, {"loss": 0.4})
        world = server.world("job")
        assert world is not None
        assert world.rescale is not None
        assert {"detect", "notice", "drain", "round", "start", "firstStep"} == set(world.rescale.phases)
        first._is_over = True  # keeps working, so that it can be told to stop
        first._thread.join()
        server.expect("job", Expectation(members=("w1",), min=1, max=2, leaving=(LeaveOrder(member="w0", by_s=40, cause="disruption"),)))
        wait_until(lambda: bool(first.presence.view.reform), what="the leaver is told")
        wait_until(lambda: second.generation == 2, what="the other has a world of its own")
        wait_until(lambda: reporter.send(12).stop, what="the worker is told to stop")
        answer = reporter.send(12)
        assert answer.reason == "w0 is leaving (disruption)"
        assert 30 < (answer.checkpoint_s or 0) <= 40
        reporter.close()
        assert asyncio.run(_forget(server, "job")) == 11, "a step of a former world does not count"


def test_training_waits_neither_for_a_server_that_is_gone_nor_for_one_that_stands_still(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report that waited for its answer would wait for an hour here, and the test would end by its own time limit."""
    monkeypatch.setattr(report, "TIMEOUT_S", 3600.0)
    server.expect("job", expecting(1))
    with members(server, "job", 1) as (member,):
        wait_until(lambda: member.generation == 1, what="a world of 1")
        reporter = Reporter(member.settings, generation=1, least_gap_s=0)
        assert server.process is not None
        for stop in (lambda: os.kill(server.process.pid, signal.SIGSTOP), server.kill):
            stop()
            for step in range(20):
                reporter.send(step)
                time.sleep(0.05)
        reporter.close()


def test_health_and_metrics_are_open_and_name_no_job(server: Server) -> None:
    server.expect("secret-job", expecting(1))
    with members(server, "secret-job", 1) as (member,):
        wait_until(lambda: member.generation == 1, what="a world of 1")
        assert server.call("GET", "/healthz") == (200, b"ok\n")
        # The member says that it runs once it has entered its world.
        running = b'elastic_rendezvous_members{phase="running"} 1.0'
        wait_until(lambda: running in server.call("GET", "/metrics")[1], what="the metrics count it as running")
        status, text = server.call("GET", "/metrics")
        assert status == 200
        assert b"secret-job" not in text


def test_a_listening_socket_can_be_handed_in(server: Server, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        port = opened.getsockname()[1]
        ready = tmp_path / "second"
        arguments = [
            "--installation",
            str(server.installation),
            "--listen-fd",
            str(opened.fileno()),
            "--listen",
            "127.0.0.1:0",
            "--ready-file",
            str(ready),
        ]
        process = subprocess.Popen(
            [sys.executable, "-m", "elastic_training.rendezvous.main", *arguments], pass_fds=[opened.fileno()], stderr=subprocess.DEVNULL
        )
    try:
        wait_until(ready.exists, what="the second server serves")
        addresses = json.loads(ready.read_text())["listen"]
        assert f"127.0.0.1:{port}" in addresses
        for address in addresses:
            with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=5):
                pass
    finally:
        process.terminate()
        assert process.wait(20) == 0


def test_a_missing_key_is_one_clear_error(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "elastic_training.rendezvous.main", "--installation", str(tmp_path), "--listen", "127.0.0.1:0"],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert result.stderr == f"Error: {tmp_path} holds no server.key; point --installation at the installation's folder\n"


def stands(server: Server, job: str, least: int) -> bool:
    world = server.world(job)
    return world is not None and world.phase == "running" and len(world.members) == 3 and world.generation >= least


def test_many_worlds_survive_kill_9_of_the_server_in_the_middle_of_rounds(server: Server) -> None:
    """Three times, while members come and go: worlds are found again, generations never fall, and nobody ends."""
    jobs = [f"job-{index}" for index in range(8)]
    with contextlib.ExitStack() as stack:
        groups = {}
        for job in jobs:
            server.expect(job, expecting(3))
            groups[job] = stack.enter_context(members(server, job, 3))
        highest = dict.fromkeys(jobs, 0)
        for attempt in range(3):
            wait_until(lambda: all(m.generation for group in groups.values() for m in group), what="all worlds stand")
            for job in jobs:  # a round under way in each job when the server dies
                server.expect(job, expecting(2, floor=highest[job]))
            server.kill()
            highest = {job: max(highest[job], *(m.generation for m in group)) for job, group in groups.items()}
            server.start()
            for job in jobs:
                server.expect(job, expecting(3, floor=highest[job]))

            for job in jobs:
                wait_until(partial(stands, server, job, highest[job]), what=partial(str, f"{job} stands again, attempt {attempt}"))
            for group in groups.values():
                assert not any(m.presence.refused or m.presence.view.closed for m in group)


def test_a_member_whose_network_was_cut_is_replaced_at_once_and_welcomed_back(server: Server) -> None:
    proxy = Proxy(server.port)
    server.expect("job", expecting(2, min=2))
    near, far = Member(server, job="job", name="w0"), Member(server, job="job", name="w1", port=proxy.port)
    try:
        wait_until(lambda: near.generation == 1 and far.generation == 1, what="a world of 2")
        server.expect("job", expecting(2))
        proxy.cut()
        wait_until(lambda: near.generation == 2, what="the other goes on alone")
        assert far.generation == 1
        proxy.mend()
        wait_until(lambda: near.generation == 3 and far.generation == 3, what="both are in one world again")
    finally:
        near.stop()
        far.stop()
        proxy.close()


def test_if_nobody_answers_the_client_says_so(tmp_path: Path) -> None:
    ensure_installation(tmp_path, addresses=())
    ca = (tmp_path / "ca.crt").read_text()

    async def token() -> str:
        return "t"

    async def ask() -> None:
        async with RendezvousClient("https://127.0.0.1:1", token, ca) as client:
            await client.expect("job", Expectation())

    with pytest.raises(RendezvousError, match="PUT /v1/jobs/job/expectation") as refusal:
        asyncio.run(ask())
    assert refusal.value.code == 0


class ShiftedServer(Server):
    module = "shifted_rendezvous"


def test_a_server_that_is_stopped_and_goes_on_ends_no_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reproduce a loss of all members: the server had stopped for longer than a member may be silent.

    It took them all for gone before it read what they had sent. Here its clock says that it was stopped for 25 s.
    """
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("AHEAD", str(tmp_path / "ahead"))
    monkeypatch.setattr(presence, "BEAT_S", 0.1)
    server = ShiftedServer(tmp_path)
    server.start()
    try:
        server.expect("job", expecting(3, min=3, max=4))
        with members(server, "job", 3) as group:
            wait_until(lambda: all(member.generation == 1 for member in group), what="a world of 3")
            assert server.process is not None
            os.kill(server.process.pid, signal.SIGSTOP)
            (tmp_path / "ahead").write_text("25")
            time.sleep(0.5)  # in which members send some beats
            os.kill(server.process.pid, signal.SIGCONT)
            wait_until(lambda: "this process was paused" in server.log(), what="the server goes on")
            server.expect("job", expecting(4, min=3, max=4, number=2))
            newcomer = Member(server, job="job", name="w3")
            try:
                wait_until(lambda: all(member.generation == 2 for member in (*group, newcomer)), what="a world of 4")
                world = server.world("job")
                assert world is not None
                assert (world.generation, len(world.members), world.restarts) == (2, 4, {}), "the stop itself changed nothing"
            finally:
                newcomer.stop()
    finally:
        server.stop()


class PatientServer(Server):
    module = "patient_rendezvous"


@pytest.fixture
def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Yield a server that waits for its connections for longer than the test does."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    server = PatientServer(tmp_path)
    server.start()
    yield server
    server.stop()


def test_a_server_that_is_told_to_end_waits_for_nobody(patient: Server) -> None:
    """The controllers' streams of worlds kept it for six seconds, in which no other server could take its place."""
    server = patient
    server.expect("job", expecting(2))
    broke, ended = threading.Event(), threading.Event()

    async def listen() -> None:
        opened = asyncio.Event()
        async with server.client() as client:

            async def take() -> None:
                async for _ in client.worlds(on_open=opened.set):
                    pass

            task = asyncio.create_task(take())
            await opened.wait()
            broke.set()
            await asyncio.to_thread(ended.wait)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    listener = threading.Thread(target=lambda: asyncio.run(listen()))
    listener.start()
    try:
        with members(server, "job", 2) as group:
            wait_until(lambda: all(member.generation for member in group) and broke.is_set(), what="all are connected")
            assert server.process is not None
            server.process.terminate()
            assert server.process.wait(60) == 0
    finally:
        ended.set()
        listener.join(10)
