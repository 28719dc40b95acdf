"""Check the progress of scripts that report none, as read from the log of rank 0 or a page of its pod."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from autoscale_cluster import pod
from autoscale_heard import PATIENCE_S, Logs, heard, job
from served_api import refusal, served

from elastic.api.scaling import ProgressSource, PrometheusProgress
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.membership.training import TrainingProgress
from elastic_training.autoscale.deciding.jobs import ScaledJob
from elastic_training.autoscale.deciding.training import SAMPLES
from elastic_training.autoscale.figures import JobName
from elastic_training.autoscale.running.book import Book
from elastic_training.autoscale.watching import pages, sources
from elastic_training.autoscale.watching.sources import Report, Sources, amount

LOGGED = ProgressSource(log_pattern="step {step} * samples {samples}.")


async def test_the_newest_line_that_matches_is_the_progress() -> None:
    logs = Logs(b"starting\nstep 3 of 9, samples 96.\nstep 4 of 9, samp", b"les 128.\nother\n")
    reports, trouble = await heard(logs, job(LOGGED))
    assert reports == [Report(3, 96.0)]
    assert trouble == ""
    (asked,) = logs.asked
    assert (asked["name"], asked["container"], asked["follow"], asked["tail_lines"]) == ("one-0", "pytorch", True, 1)


async def test_a_log_without_a_matching_line_says_so() -> None:
    reports, trouble = await heard(Logs(b"x" * 100_000, b"\n" * 100_000, b"step many\n"), job(LOGGED), "no line")
    assert reports == []
    assert trouble == (
        "elasticPolicy.progress.logPattern: no line of the log of one-0 matches it so far; let rank 0 print one, or change the pattern"
    )


async def test_a_log_that_may_not_be_read_is_tried_again_and_told() -> None:
    logs = Logs(error=KubeError(code=403, reason="Forbidden", message="no"))
    reports, trouble = await heard(logs, job(LOGGED), "could not be read")
    assert (reports, len(logs.asked)) == ([], 1)
    assert "default/one-0 could not be read" in trouble


async def test_a_pod_that_is_no_longer_wanted_is_read_no_more() -> None:
    logs, seen = Logs(), job(LOGGED)
    found = Sources(logs, lambda *_: None)  # type: ignore[arg-type]
    first, second = pod("one-0", owner=seen.uid, index=0), replace(pod("one-1", owner=seen.uid, index=1), uid="other")
    for one in (first, first, second):
        found.look([(seen, one)])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert [asked["name"] for asked in logs.asked] == ["one-0", "one-1"]
    await found.close()


@contextlib.asynccontextmanager
async def page(body: bytes, *, status: int = 200, encoding: str = "identity") -> AsyncIterator[int]:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, status=status, headers={"Location": "http://127.0.0.1:1/", "Content-Encoding": encoding})

    async def answer_elsewhere(_: web.Request) -> web.Response:
        return web.Response(body=b"train_step_total 99\n")

    app = web.Application()
    app.router.add_get("/metrics", answer)
    app.router.add_get("/train/metrics", answer_elsewhere)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


STRANGER = "192.0.2.7"
"""An address to which no request may go."""


@contextlib.asynccontextmanager
async def api_server(answer: Callable[[], web.Response]) -> AsyncIterator[Kube]:
    """Serve the page of the pod one-0 at port 8000, as an API server proxies it."""

    async def handler(request: web.Request) -> web.Response:
        assert request.raw_path == "/api/v1/namespaces/default/pods/one-0:8000/proxy/metrics"
        return answer()

    async with served(handler) as kube:
        yield kube


async def test_a_page_is_read_through_the_api_server_if_so_chosen() -> None:
    async with api_server(lambda: web.Response(body=b"train_step_total 42\n")) as kube:
        reports, _ = await heard(kube, job(paged(8000)), through_api=True, address=STRANGER)
    assert reports == [Report(42, None)]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda: refusal(503, "ServiceUnavailable"), "ServiceUnavailable it is"),
        (lambda: refusal(403, "Forbid\x1b[2J\n"), "Forbid\\x1b[2J it is"),
        (lambda: web.Response(status=404, text="not here"), "/metrics on port 8000 answered 404"),
        (lambda: web.Response(status=302, headers={"Location": "/version"}), "/metrics on port 8000 answered 302"),
        (
            lambda: web.Response(body=gzip.compress(b"train_step_total 5\n"), headers={"Content-Encoding": "gzip"}),
            "its page came as 'gzip', although it was asked for as it is",
        ),
    ],
)
async def test_an_error_of_the_api_server_instead_of_a_page_is_told(answer: Callable[[], web.Response], words: str) -> None:
    async with api_server(answer) as kube:
        reports, trouble = await heard(kube, job(paged(8000)), "could not be read", through_api=True, address=STRANGER)
    assert reports == []
    assert trouble == (
        f"elasticPolicy.progress.prometheus: default/one-0 could not be read: {words}; "
        "correct port and path, or see why the page does not answer"
    )


async def test_an_endless_page_through_the_api_server_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "LONGEST_PAGE", 1000)
    async with api_server(lambda: web.Response(body=b"x 1\n" * 1000 + b"train_step_total 5\n")) as kube:
        reports, trouble = await heard(kube, job(paged(8000)), "has no number", through_api=True)
    assert (reports, "has no number" in trouble) == ([], True)


def paged(port: int) -> ProgressSource:
    return ProgressSource(prometheus=PrometheusProgress(port=port, step="train_step_total", samples="train_samples"))


async def test_a_page_of_metrics_is_read() -> None:
    text = b'# TYPE train_step_total counter\ntrain_step_total{rank="0"} 42 1700000000\ntrain_samples 1e3\n'
    async with page(text) as port:
        reports, _ = await heard(Logs(), job(paged(port)), address="127.0.0.1")
    assert reports == [Report(42, 1000.0)]


async def test_the_page_may_have_another_path() -> None:
    async with page(b"train_step_total 42\n") as port:
        source = ProgressSource(prometheus=PrometheusProgress(port=port, path="/train/metrics", step="train_step_total"))
        reports, _ = await heard(Logs(), job(source), address="127.0.0.1")
    assert reports == [Report(99, None)]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"train_step 4\n", 200, "has no number for train_step_total"),
        (b"train_step_total NaN\n", 200, "has no number"),
        (b"", 302, "/metrics on port"),
    ],
)
async def test_a_page_of_nonsense_is_told(body: bytes, status: int, words: str) -> None:
    async with page(body, status=status) as port:
        reports, trouble = await heard(Logs(), job(paged(port)), words, address="127.0.0.1")
    assert reports == []
    assert words in trouble


async def test_a_page_that_never_answers_is_told_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE_S", 0.05)
    monkeypatch.setattr(sources, "FIRST_PAUSE_S", 0.0)
    asked: list[asyncio.Task[None]] = []

    def keep_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(asyncio.create_task(until_gone(reader, writer)))

    async def until_gone(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(keep_silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        reports, trouble = await heard(Logs(), job(paged(port)), "could not be read", address="127.0.0.1")
    await asyncio.gather(*asked)
    assert (reports, bool(asked)) == ([], True)
    assert trouble == (
        "elasticPolicy.progress.prometheus: default/one-0 could not be read: no answer within 0.05 s; "
        "correct port and path, or see why the page does not answer"
    )


async def test_an_endless_page_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "LONGEST_PAGE", 1000)
    async with page(b"x 1\n" * 1000 + b"train_step_total 5\n") as port:
        reports, trouble = await heard(Logs(), job(paged(port)), "has no number", address="127.0.0.1")
    assert reports == []
    assert "has no number" in trouble


@pytest.mark.parametrize("value", ["", "x", "1e99", "nan", "inf"])
def test_an_invalid_amount_does_not_count(value: str) -> None:
    assert amount(f"m {value}\n".encode(), "m") is None


@pytest.mark.parametrize(
    ("page", "value"),
    [
        (b'm{rank="0"} 4 17\n', 4.0), (b"m\t5", 5.0), (b"mm 1\nxm 2\n# m 3\nm 6\n", 6.0), (b"m{a=\"}\"} 7\n", 7.0), (b"m x\nm 8\n", None),
        (b"m_total 9\n", None), (b"m 1\nm{} 2\n", 1.0), (b"m " + b" " * 5000 + b"1\n", None), (b"m" * 1_000_000, None), (b"", None),
    ],
)  # fmt: skip
def test_the_first_line_of_a_metric_has_its_amount(page: bytes, value: float | None) -> None:
    assert amount(page, "m") == value


async def test_a_compressed_page_is_not_unpacked() -> None:
    """A few hundred bytes unpack to megabytes, in the process that scales all jobs."""
    async with page(gzip.compress(b"train_step_total 5\n"), encoding="gzip") as port:
        reports, trouble = await heard(Logs(), job(paged(port)), "came as 'gzip'", address="127.0.0.1")
    assert reports == []
    assert "asked for as it is" in trouble


async def test_only_parts_of_a_flood_of_output_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that prints without end would keep the thread busy that scales all jobs."""
    monkeypatch.setattr(sources, "BURST", 1000)
    monkeypatch.setattr(sources, "BYTES_A_SECOND", 1e6)
    logs = Flood(b"step 7 of 9, samples 70.\n" * 10)
    reports: list[Report] = []
    found = Sources(logs, lambda _, report: reports.append(report))  # type: ignore[arg-type]
    seen = job(LOGGED)
    found.look([(seen, pod("one-0", on="n", owner=seen.uid, index=0))])
    async with asyncio.timeout(PATIENCE_S):
        while logs.opened < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await found.close()
    assert logs.most_read <= 1000 + 2 * 250
    assert reports[0] == Report(7, 70.0)
    assert found.trouble(seen.key) == ""


class Flood(Logs):
    """A pod that prints without end."""

    def __init__(self, chunk: bytes) -> None:
        super().__init__()
        self.chunk, self.opened, self.most_read = chunk, 0, 0

    async def logs(self, name: str, **asked: Any) -> AsyncIterator[bytes]:
        self.opened += 1
        read = 0
        while True:
            read += len(self.chunk)
            self.most_read = max(self.most_read, read)
            yield self.chunk


async def test_a_namespace_with_many_jobs_leaves_places_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MOST_SOURCES", 2)
    logs = Logs()
    many = [job_of("many", f"job-{n}") for n in range(5)]
    found = Sources(logs, lambda *_: None)  # type: ignore[arg-type]
    found.look([(seen, pod(f"{seen.key.name}-0", on="n", owner=seen.uid, index=0)) for seen in (*many, job_of("few", "one"))])
    await asyncio.sleep(0.01)
    await found.close()
    assert [asked["name"] for asked in logs.asked] == ["job-0-0", "one-0"]


def job_of(namespace: str, name: str) -> ScaledJob:
    return replace(job(LOGGED), key=JobName("PyTorchJob", namespace, name), uid=name)


def test_the_reports_of_a_source_count_in_the_world_that_the_stream_knows() -> None:
    book, seen = Book(is_ready=lambda: True), job(LOGGED)
    book.states([seen], now=0.0)
    book.heard(TrainingProgress(job=seen.uid, generation=3, phase="running", size=2, rank_zero="one-1"), seen=seen, now=0.0, monotonic=0.0)
    assert book.rank_zero(seen) == "one-1"
    for at, samples in ((1.0, 100.0), (20.0, 2000.0), (31.0, 3100.0)):
        book.read(seen, step=int(at), samples=samples, working=9, now=at, monotonic=at)
    (known,) = book.states([seen], now=0.0)
    assert (known.training.size, known.training.unit) == (2, SAMPLES)
    assert [one.size for one in known.memory.sizes] == [2]
    assert known.memory.sizes[0].rate == 100.0


def test_a_job_of_another_rendezvous_has_the_size_of_its_running_workers() -> None:
    book, seen = Book(is_ready=lambda: True), job(LOGGED)
    book.states([seen], now=0.0)
    for at in (0.0, 11.0, 22.0):
        book.read(seen, step=int(at), samples=None, working=4, now=at, monotonic=at)
    (known,) = book.states([seen], now=0.0)
    assert known.memory.sizes[0].size == 4
    assert known.memory.sizes[0].rate == pytest.approx(4.0)
