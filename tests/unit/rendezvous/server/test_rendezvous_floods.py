"""Members that say too much, or what nobody can read: their connections end, in words, and nobody else waits for them."""

import asyncio
import contextlib
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from test_rendezvous_limits import Served, served

from elastic.membership.limits import MEMBER_MESSAGE
from elastic.membership.tokens import control_token, job_token
from elastic_training.rendezvous.server.metered import BURST, BYTES_PER_MESSAGE, MOST_UNREAD, VALUES_AT_ONCE, Rate, Unread

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


@pytest.mark.parametrize("is_of_exchange", [True, False], ids=["of the exchange", "of another round"])
async def test_a_member_with_many_workers_may_give_the_values_of_all_at_once(
    served: Served, monkeypatch: pytest.MonkeyPatch, is_of_exchange: bool
) -> None:
    """A member of 100 workers says 300 values at once and was cut off, came back, said them again, and was cut off again."""
    monkeypatch.setattr(served.hub, "said", lambda *_, **__: is_of_exchange, raising=False)
    async with connected(served) as socket:
        with contextlib.suppress(ConnectionError):
            for number in range(3 * int(BURST)):
                await socket.send_str(f'{{"t":"put","round":1,"key":"k{number}","value":"{"A" * 2000}"}}')
        if is_of_exchange:
            await socket.ping()
            while (message := await socket.receive(60)).type is aiohttp.WSMsgType.TEXT:
                pass
            assert message.type is aiohttp.WSMsgType.PONG
        else:
            assert (await last_word(socket)).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)


def test_a_member_may_give_no_values_without_end() -> None:
    rate, number = Rate(lambda: 0.0), 0
    while rate.allows_message():
        rate.give_back(0)
        number += 1
    assert number == BURST + VALUES_AT_ONCE


async def upgraded(served: Served, member: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a member's connection, to write frames by hand."""
    tls = ssl.create_default_context(cadata=served.ca)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=tls)
    request = [
        f"GET /v1/jobs/job/members/{member} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {job_token(served.key, 'job')}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    ]
    writer.write("\r\n".join([*request, "", ""]).encode())
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    return reader, writer


TEXT_BEGINS, GOES_ON = b"\x01\x80" + bytes(4), b"\x00\x80" + bytes(4)
"""Empty masked frames without the bit that ends a message."""


@pytest.mark.parametrize("is_joined", [True, False], ids=["joined", "before it joins"])
async def test_frames_that_end_no_message_count_too(served: Served, is_joined: bool) -> None:
    """An empty continuation frame costs its sender six bytes, and is no message that the server could count."""
    reader, writer = await upgraded(served, "w0")
    if is_joined:
        join = b'{"t":"join","incarnation":"u/1"}'
        writer.write(bytes([0x81, 0x80 | len(join)]) + bytes(4) + join)
        await reader.read(2)
    writer.write(TEXT_BEGINS)
    most = int(2 * BURST) * BYTES_PER_MESSAGE + MEMBER_MESSAGE
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < 2 * most and not reader.at_eof():
            writer.write(GOES_ON * 10_000)
            sent += len(GOES_ON) * 10_000
            await writer.drain()
            await asyncio.sleep(0)
    assert sent <= most + 2**20, "what the kernels hold on the way is sent as well"
    writer.close()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        await writer.wait_closed()


async def test_the_members_of_one_job_hold_few_unread_bytes_together(served: Served) -> None:
    """Members that never end a message filled the server's memory, 250 KB each, with the token of a job that no longer existed."""
    held = MEMBER_MESSAGE - 1000
    begun = b"\x01\xff" + held.to_bytes(8) + bytes(4) + b" " * held
    fitting = MOST_UNREAD // len(begun)
    connections = [await upgraded(served, f"m{number}") for number in range(fitting + 1)]
    ends = [asyncio.create_task(reader.read()) for reader, _ in connections]
    for _, writer in connections:
        writer.write(begun)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
    cut, _ = await asyncio.wait(ends, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    assert len(cut) == 1, "a connection that is cut gives its bytes back, so the others stay"
    for _, writer in connections:
        writer.close()
    await asyncio.gather(*ends, return_exceptions=True)


@pytest.mark.parametrize("length", [0, 125, 126, 2**16 - 1, 2**16])
def test_a_message_that_was_read_counts_no_longer(length: int) -> None:
    """Heartbeats for weeks must not add up, and a message with many short frames must not count as less than it is."""
    of_jobs: Counter[str] = Counter()
    unread = Unread(of_jobs, "job")
    head = 6 if length < 126 else 8 if length < 2**16 else 14
    for _ in range(3):
        assert unread.arrived(head + length)
        unread.read("x" * length)
    assert not of_jobs
    unread.arrived(1000)
    unread.read(b"x" * 100)
    other = Unread(of_jobs, "job")
    assert not other.arrived(MOST_UNREAD)
    other.lost()
    assert of_jobs == {"job": 1000 - 106}
    unread.lost()
    assert not of_jobs


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
    """Set the limit of recursion as Python does: an environment of celpy raises it for the whole process, perhaps in another test."""
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
