"""An autoscaler hears of the training of all jobs in one stream."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from elastic.local.installation import ensure_installation
from elastic.membership.client import RendezvousClient, RendezvousError
from elastic.membership.tokens import autoscaler_token, load_keys
from elastic.membership.training import Report, TrainingProgress
from elastic.membership.wire import Expectation, Join
from elastic_training.rendezvous.server.access import Gate
from elastic_training.rendezvous.server.credentials import Credentials
from elastic_training.rendezvous.server.http import Face
from elastic_training.rendezvous.server.hub import Hub
from elastic_training.rendezvous.server.progress_feed import LEAST_GAP_S, MOST_A_SECOND, ProgressFeed


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Wire:
    def send(self, view: object) -> None: ...

    def end(self, reason: str) -> None: ...

    def close(self) -> None: ...


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def training(clock: Clock, *members: str) -> Hub:
    """Return a hub with one job that trains with these members."""
    hub = Hub(instance="s1", clock=clock)
    hub.expect("job", Expectation(members=members, min=1, max=8))
    for name in members:
        hub.attach("job", name=name, link=Wire(), message=Join(incarnation=f"{name}/1", store=f"{name}:1"))
    await turn()
    return hub


async def test_the_report_with_the_highest_step_of_the_world_that_stands_is_sent() -> None:
    clock = Clock()
    hub = await training(clock, "w0", "w1")
    hub.report("job", Report(member="w0", generation=1, step=7, values={"samples": 70.0}))
    clock.now += 2
    hub.report("job", Report(member="w1", generation=1, step=5, values={"samples": 50.0}))
    hub.report("job", Report(member="stranger", generation=1, step=99))
    await turn()
    (progress,) = hub.progress_since(-1)
    assert progress == TrainingProgress(
        job="job",
        generation=1,
        phase="running",
        size=2,
        step=7,
        age_s=2.0,
        highest=7,
        values={"samples": 70.0},
        rank_zero="w0",
    )


async def test_a_report_of_a_former_world_says_nothing_of_this_one() -> None:
    hub = await training(Clock(), "w0")
    hub.report("job", Report(member="w0", generation=9, step=7))
    await turn()
    (progress,) = hub.progress_since(-1)
    assert (progress.step, progress.size) == (None, 1)


async def test_steps_are_sent_now_and_then_and_a_change_of_the_world_at_once() -> None:
    clock = Clock()
    hub = await training(clock, "w0")
    hub.report("job", Report(member="w0", generation=1, step=1))
    await turn()
    seen = hub.progress.version
    clock.now += 1
    hub.report("job", Report(member="w0", generation=1, step=2))
    await turn()
    assert hub.progress_since(seen) == []
    clock.now += LEAST_GAP_S
    hub.report("job", Report(member="w0", generation=1, step=6))
    await turn()
    assert [progress.step for progress in hub.progress_since(seen)] == [6]
    seen = hub.progress.version
    hub.expect("job", Expectation(members=("w0", "w1"), min=1, max=8))
    hub.attach("job", name="w1", link=Wire(), message=Join(incarnation="w1/1", store="w1:1"))
    await turn()
    assert [progress.phase for progress in hub.progress_since(seen)] == ["re-forming"]


async def test_a_forgotten_job_is_named_once_and_only_to_listeners() -> None:
    hub = await training(Clock(), "w0")
    seen = hub.progress.version
    hub.forget("job")
    assert [(progress.job, progress.forgotten) for progress in hub.progress_since(seen)] == [("job", True)]
    assert hub.progress_since(hub.progress.version) == []
    assert hub.progress_since(-1) == []


def test_with_very_many_jobs_each_has_fewer_lines() -> None:
    clock = Clock()
    feed = ProgressFeed(clock=clock, most_forgotten=10)
    jobs = [f"job-{index}" for index in range(4000)]
    for uid in jobs:
        feed.world_changed(uid)
    before, seconds = feed.version, 60
    for _ in range(seconds):
        clock.now += 1
        for uid in jobs:
            feed.stepped(uid)
    assert feed.version - before <= (seconds + len(jobs) / MOST_A_SECOND) * MOST_A_SECOND
    for uid in jobs:
        feed.forget(uid)
    assert len(feed.since(0)[1]) == 10


@contextlib.asynccontextmanager
async def served(folder: Path, hub: Hub) -> AsyncIterator[str]:
    ensure_installation(folder, addresses=())
    credentials = Credentials(folder)
    face = Face(
        hub=hub,
        gate=Gate(keys=lambda: credentials.keys, reviewer=None, accounts=()),
        clock=asyncio.get_running_loop().time,
        metrics=lambda: (b"", "text/plain"),
    )
    runner = web.AppRunner(face.application())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=credentials.tls)
    await site.start()
    try:
        yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await face.close()
        await runner.cleanup()


async def test_an_autoscaler_reads_the_stream_and_changes_nothing(tmp_path: Path) -> None:
    hub = await training(Clock(), "w0")
    hub.report("job", Report(member="w0", generation=1, step=3))
    async with served(tmp_path, hub) as url:
        token = autoscaler_token(load_keys(tmp_path)[0])

        async def given() -> str:
            return token

        async with RendezvousClient(url, token=given, ca=(tmp_path / "ca.crt").read_text()) as client:
            progress = await anext(client.progress())
            assert (progress.job, progress.step) == ("job", 3)
            with pytest.raises(RendezvousError, match="only the control plane may do this"):
                await client.expect("job", Expectation())
            with pytest.raises(RendezvousError, match="only the control plane may do this"):
                await client.world("job")
        tls = ssl.create_default_context(cafile=tmp_path / "ca.crt")
        async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/progress", ssl=tls) as refused:
            assert refused.status == 401


async def test_the_last_step_before_a_standstill_is_sent_a_little_later() -> None:
    """The first step of a job that hung seconds later was shown as its last one, and for how long it had hung was wrong."""
    clock = Clock()
    hub = await training(clock, "w0")
    for step in (1, 2, 3):
        hub.report("job", Report(member="w0", generation=1, step=step))
        await turn()
        clock.now += 0.5
    before = hub.progress.version
    hub.progress.publish_due()
    assert hub.progress.version == before, "steps are sent only now and then"
    clock.now += LEAST_GAP_S
    hub.progress.publish_due()
    (progress,) = hub.progress_since(before)
    assert (progress.step, progress.age_s) == (3, 0.5 + LEAST_GAP_S)
    hub.progress.publish_due()
    assert hub.progress.version == before + 1
