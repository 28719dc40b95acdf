"""Check that the log quotes nothing from requests that no server can read."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from aiohttp import web

from elastic.logs import LOOPS, SERVERS, log_to, quotes_no_request, tells_no_peer_that_left

LONG = b"a" * 9000
HEAD = b"GET /login?token=secret HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(autouse=True)
def as_a_process_logs() -> Iterator[None]:
    log_to(io.StringIO(), level="info")
    yield
    SERVERS.removeFilter(quotes_no_request)
    LOOPS.removeFilter(tells_no_peer_that_left)


async def answer(request: web.BaseRequest) -> web.Response:
    raise ValueError("a defect")


@pytest_asyncio.fixture
async def port() -> AsyncIterator[int]:
    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def asked(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.readline(), 30)
    finally:
        writer.close()


@pytest.mark.parametrize(
    "request_text",
    [
        HEAD + b"Cookie: elastic-dashboard=secret; x=" + LONG + b"\r\n\r\n",
        HEAD + b"Authorization: Bearer secret\x01\r\n\r\n",
        b"GET /login?token=secret HTTP/1.1 x\r\n\r\n",
    ],
    ids=["too long", "no text", "no request"],
)
async def test_a_secret_in_a_request_that_cannot_be_read_stays_out_of_the_log(
    port: int, request_text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Other pages of this machine can make a browser's cookies too long for a request. The log then quoted the session."""
    with caplog.at_level(logging.DEBUG):
        assert b"400" in await asked(port, request_text)
    assert "secret" not in caplog.text
    assert caplog.text.count("Traceback") == 0


async def test_a_defect_of_ours_is_logged_with_its_traceback(port: int, caplog: pytest.LogCaptureFixture) -> None:
    assert b"500" in await asked(port, HEAD + b"\r\n")
    assert "a defect" in caplog.text


@pytest.mark.parametrize(
    ("message", "error", "is_told"),
    [
        ("Future exception was never retrieved", ConnectionResetError(), False),
        (
            "Fatal error on SSL protocol",
            RuntimeError("unable to perform this; the handler is closed"),
            False,
        ),
        ("Future exception was never retrieved", ValueError("a defect"), True),
        ("Task exception was never retrieved", ConnectionResetError("a defect"), True),
        ("Fatal error on SSL protocol", RuntimeError("a defect"), True),
    ],
    ids=str,
)
def test_a_peer_that_has_gone_is_no_error_of_a_server(
    message: str, error: Exception, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A peer that left during a handshake, or in the middle of a stream, caused tracebacks in the log."""
    LOOPS.error("%s\nfuture: <Future finished>", message, exc_info=error)
    assert bool(caplog.records) == is_told
