"""A member's connection at the server: what is sent last, that it really ends, and how much of its failures is logged."""

import asyncio
import gc
import logging
import weakref

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from elastic.membership.tokens import job_token
from elastic.membership.wire import Expectation, Failed, View
from elastic_training.rendezvous.server import failure_log
from elastic_training.rendezvous.server.access import Gate
from elastic_training.rendezvous.server.failure_log import MOST_LOGGED, FailureLog
from elastic_training.rendezvous.server.http import Face
from elastic_training.rendezvous.server.hub import UNEXPECTED, Hub
from elastic_training.rendezvous.server.members import LONGEST_REASON, Connection

KEY = b"k" * 32


class Socket:
    """A WebSocket of a peer that takes its time. Only the tasks that wait for it keep its futures."""

    def __init__(self) -> None:
        self.sends: list[weakref.ref[asyncio.Future[None]]] = []
        self.sent: list[str] = []
        self.closed: list[int] = []

    async def send_str(self, text: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self.sends.append(weakref.ref(turn))
        await turn
        self.sent.append(text)

    async def close(self, *, code: int) -> None:
        self.closed.append(code)

    def take_next(self) -> None:
        turn = self.sends.pop(0)()
        assert turn is not None, "the task that sends was thrown away"
        turn.set_result(None)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_connection_that_ends_while_a_view_is_sent_still_ends() -> None:
    """The end of the view's task dropped the only reference to the task that closes, which may then be collected."""
    socket = Socket()
    connection = Connection(socket, None)  # type: ignore[arg-type]
    connection.send(View(generation=1))
    await turns()
    connection.end("a newer incarnation of this member has come")
    connection.close()
    await turns()
    socket.take_next()
    await turns()
    assert connection._ending is not None
    gc.collect()
    socket.take_next()
    await turns()
    assert [("refused" in text) for text in socket.sent] == [False, True]
    assert socket.closed == [1008]


async def test_a_connection_that_ends_sends_no_more_views() -> None:
    socket = Socket()
    connection = Connection(socket, None)  # type: ignore[arg-type]
    connection.close()
    connection.send(View(generation=1))
    await turns()
    assert (socket.sends, socket.closed) == ([], [1013])


async def test_a_reason_that_is_too_long_for_its_frame_is_cut() -> None:
    """With a longer one the frame was invalid, and the member heard of a broken protocol instead of the reason."""
    hub = Hub(instance="s1", clock=lambda: 1000.0)
    face = Face(hub=hub, gate=Gate(keys=lambda: [KEY], reviewer=None, accounts=()), clock=lambda: 1000.0, metrics=lambda: (b"", ""))
    hub.expect("job", Expectation(members=("w0",)))
    headers = {"Authorization": f"Bearer {job_token(KEY, 'job')}"}
    async with TestClient(TestServer(face.application())) as client:
        sockets = []
        for number in range(UNEXPECTED + 2):
            socket = await client.ws_connect(f"/v1/jobs/job/members/{number:x>253}", headers=headers)
            await socket.send_str('{"t":"join","incarnation":"u/1"}')
            end = await socket.receive(60)
            sockets.append(socket)
        assert (end.type, end.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.TRY_AGAIN_LATER)
        assert len(str(end.extra)) == LONGEST_REASON
        assert str(end.extra).startswith(f"{UNEXPECTED + 1} members are here, and xxx")
        for socket in sockets:
            await socket.close()
        hub.forget("job")


async def test_the_failures_of_a_job_are_logged_one_by_one_up_to_a_limit_and_then_as_a_number(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A member could fill the log of all jobs with twenty lines a second."""
    monkeypatch.setattr(failure_log, "WINDOW_S", 0.05)
    caplog.set_level(logging.INFO)
    log = FailureLog()

    def logged() -> list[tuple[str, str]]:
        return [(record.uid, record.getMessage()) for record in caplog.records]  # type: ignore[attr-defined]

    for _ in range(MOST_LOGGED + 7):
        log.add("hostile", "w0", Failed(generation=1, status=1))
    log.add("good", "w0", Failed(generation=1, status=1))
    one_by_one = [("hostile", "a worker ended by itself")] * MOST_LOGGED + [("good", "a worker ended by itself")]
    assert logged() == one_by_one
    async with asyncio.timeout(30):
        while log._counts:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert logged() == [*one_by_one, ("hostile", "further workers ended by themselves")]
    assert caplog.records[-1].count == 7  # type: ignore[attr-defined]
    log.add("hostile", "w0", Failed(generation=1, status=1))
    assert logged()[-1] == ("hostile", "a worker ended by itself"), "another window has begun"
