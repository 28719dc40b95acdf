"""Check the messages of the dashboard's streams, and that the cost of a stream is bounded."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest
from cli_api import running
from dashboard_scene import Scene, events, job, read, scene, until

from elastic.runtime import signed_cookie
from elastic_training.dashboard.serving import server as server_module
from elastic_training.dashboard.serving import stream as stream_module


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(stream_module, "LEAST_GAP_S", 0.01)


async def test_the_stream_of_jobs_begins_with_all_and_goes_on_with_changes(tmp_path: Path):
    shown = scene()
    async with shown.served(tmp_path) as browser, browser.get("/api/stream") as response:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        stream = events(response)
        name, jobs = await anext(stream)
        assert (name, [row["name"] for row in jobs]) == ("jobs", ["train"])
        shown.put(job(workers=7), job("other"))
        name, news = await anext(stream)
        assert (name, sorted((row["name"], row["wanted"]) for row in news["jobs"])) == ("changed", [("other", 3), ("train", 7)])
        shown.drop(job("other"))
        assert await anext(stream) == ("changed", {"jobs": [], "gone": ["uid-other"]})


async def test_however_often_a_job_changes_it_is_sent_once_a_message(tmp_path: Path):
    shown = scene()
    async with shown.served(tmp_path) as browser, browser.get("/api/stream") as response:
        stream = events(response)
        await anext(stream)
        for workers in range(4, 200):
            shown.put(job(workers=workers))
        _, news = await anext(stream)
        assert [row["wanted"] for row in news["jobs"]] == [199]


async def test_the_stream_of_a_job_sends_its_page_and_new_rows_until_it_is_gone(tmp_path: Path):
    shown = scene()
    async with shown.served(tmp_path) as browser, browser.get("/api/stream?of=job&namespace=default&name=train") as response:
        stream = events(response)
        assert (await anext(stream))[0] == "job"
        assert len((await anext(stream))[1]["rows"]) == 1
        shown.now += 100
        shown.put(job(workers=5))
        assert (await anext(stream))[1]["job"]["wanted"] == 5
        assert [row[2] for row in (await anext(stream))[1]["rows"]] == [5.0]
        shown.drop(job())
        assert (await anext(stream))[0] == "gone"


async def test_there_are_only_so_many_streams_of_one_session(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(stream_module, "MOST_OF_ONE", 2)
    async with scene().served(tmp_path) as browser:
        first, second = await browser.get("/api/stream"), await browser.get("/api/stream")
        await first.content.readuntil(b"\n\n")
        await second.content.readuntil(b"\n\n")
        assert (await read(browser, "/api/stream"))[0] == 429
        first.close()
        await until(lambda: open_streams() == 1)
        async with browser.get("/api/stream") as response:
            assert response.status == 200
        second.close()


async def test_a_client_that_takes_nothing_is_dropped(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(stream_module, "TAKEN_WITHIN_S", 0.3)
    monkeypatch.setattr(stream_module, "BYTES_A_SECOND", 1 << 40)
    shown = Scene(*(job(f"train-{number}", status=long_status()) for number in range(500)))
    async with shown.served(tmp_path) as browser:
        _, writer = await asyncio.open_connection("127.0.0.1", browser._base_url.port, limit=1024)
        cookie = next(iter(browser.cookie_jar))
        writer.write(f"GET /api/stream HTTP/1.1\r\nHost: localhost\r\nCookie: {signed_cookie.NAME}={cookie.value}\r\n\r\n".encode())
        await until(lambda: open_streams() == 1)
        workers = itertools.count(4)

        def is_dropped() -> bool:
            many = next(workers)
            shown.put(*(job(f"train-{number}", workers=many, status=long_status()) for number in range(500)))
            return open_streams() == 0

        await until(is_dropped)
        writer.close()


def long_status():
    return running(waitsFor="x" * 1000)


def open_streams() -> int:
    return sum(places.count for places in PLACES)


PLACES: list[stream_module.StreamPlaces] = []


@pytest.fixture(autouse=True)
def counted_places(monkeypatch):
    PLACES.clear()

    class Counted(stream_module.StreamPlaces):
        def __init__(self):
            super().__init__()
            PLACES.append(self)

    monkeypatch.setattr(server_module, "StreamPlaces", Counted)
