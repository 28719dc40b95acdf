"""Members that say too much, or what nobody can read: their connections end, in words, and nobody else waits for them."""

import contextlib
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from test_rendezvous_limits import Served, served

from elastic.membership.tokens import control_token, job_token
from rendezvous.server.members import BURST

__all__ = ["served"]


@asynccontextmanager
async def connected(served: Served, join: str = '{"t":"join","incarnation":"u/1"}') -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    headers = {"Authorization": f"Bearer {job_token(served.key, 'job')}"}
    tls = ssl.create_default_context(cadata=served.ca)
    url = f"https://127.0.0.1:{served.port}/v1/jobs/job/members/w0"
    async with aiohttp.ClientSession() as session, session.ws_connect(url, headers=headers, ssl=tls, autoping=False) as socket:
        await socket.send_str(join)
        yield socket


async def last_word(socket: aiohttp.ClientWebSocketResponse) -> aiohttp.WSMessage:
    while (message := await socket.receive(60)).type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.PONG):
        pass
    return message


@pytest.mark.parametrize("frame", ["ping", "pong", "binary", "text"])
async def test_every_kind_of_frame_counts_towards_how_much_a_member_may_say(served: Served, frame: str) -> None:
    """Pings cost their sender six bytes, and were answered without end, thousands in one turn of the loop that all jobs share."""
    async with connected(served) as socket:
        send = {"ping": socket.ping, "pong": socket.pong, "binary": lambda: socket.send_bytes(b""), "text": lambda: socket.send_str("{}")}
        with contextlib.suppress(ConnectionError):
            for _ in range(2 * int(BURST)):
                await send[frame]()
        end = await last_word(socket)
    wanted = aiohttp.WSCloseCode.UNSUPPORTED_DATA if frame == "text" else aiohttp.WSCloseCode.POLICY_VIOLATION
    assert end.data == wanted or end.type is not aiohttp.WSMsgType.CLOSE, "closed, or cut off before its code was read"


async def test_a_member_that_pings_now_and_then_is_answered(served: Served) -> None:
    async with connected(served) as socket:
        await socket.receive(60)
        await socket.ping(b"well?")
        answer = await socket.receive(60)
    assert (answer.type, bytes(answer.data)) == (aiohttp.WSMsgType.PONG, b"well?")


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("text", ['{"t":"join","incarnation":"u/1","later":%s}', '{"t":"beat","later":%s}'])
async def test_a_message_nested_too_deep_ends_its_connection_in_words(served: Served, text: str, caplog: pytest.LogCaptureFixture) -> None:
    async with connected(served) as socket:
        await socket.receive(60)
        await socket.send_str(text % DEEP)
        assert (await last_word(socket)).data == aiohttp.WSCloseCode.UNSUPPORTED_DATA
    async with connected(served, text % DEEP) as socket:
        assert (await last_word(socket)).data == aiohttp.WSCloseCode.UNSUPPORTED_DATA
    assert not caplog.records


@pytest.fixture
def pythons_own_recursion_limit() -> Iterator[None]:
    """An environment of celpy raises it for the whole process, as another test may have done."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("pythons_own_recursion_limit")
@pytest.mark.parametrize(("method", "path"), [("PUT", "expectation"), ("POST", "report")])
async def test_a_body_nested_too_deep_is_refused(served: Served, method: str, path: str) -> None:
    tls = ssl.create_default_context(cadata=served.ca)
    token = control_token(served.key) if path == "expectation" else job_token(served.key, "job")
    deep = DEEP if path == "expectation" else "[" * 5_000  # a report is short; celpy raises the recursion limit of a process to 2,500
    body = b'{"member":"w0","later":%s}' % deep.encode()
    url, headers = f"https://127.0.0.1:{served.port}/v1/jobs/job/{path}", {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(headers=headers) as session, session.request(method, url, data=body, ssl=tls) as answer:
        assert answer.status == 400
        assert "recursion" in await answer.text()
