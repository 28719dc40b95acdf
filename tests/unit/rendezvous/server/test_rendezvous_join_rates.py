"""How often members of one job may join: seldom enough to spare neighbours, often enough for all members of a large job at once."""

import asyncio

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer
from rendezvous_group import Group

from elastic.membership.bounds import MAX_MEMBERS
from elastic.membership.limits import MEMBER_MESSAGE
from elastic.membership.tokens import job_token
from elastic.membership.wire import Expectation
from elastic_training.rendezvous.engine.state.job import JobState
from elastic_training.rendezvous.server import metered
from elastic_training.rendezvous.server.access import Gate
from elastic_training.rendezvous.server.http import Face
from elastic_training.rendezvous.server.hub import Hub
from elastic_training.rendezvous.server.join_rates import FIRST_MINUTE_S, MOST_KEPT, PER_MEMBER_S, PER_S, SPARE, JoinRates

KEY = b"k" * 32


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def job_of(members: int) -> JobState:
    group = Group()
    group.expect(*(f"w{n}" for n in range(members)), max=MAX_MEMBERS)
    job: JobState = group.job
    return job


def joined(rates: JoinRates, uid: str, job: JobState | None, *, times: int) -> int:
    return sum(rates.allows(uid, job) for _ in range(times))


def test_a_job_that_joins_and_leaves_without_end_is_held_to_its_rate_and_its_neighbour_is_not(clock: Clock) -> None:
    """Twenty joins a second of one job made each neighbour wait for seconds."""
    rates, small = JoinRates(clock), job_of(1)
    assert joined(rates, "hostile", small, times=1000) == SPARE + 2
    taken = served = 0
    for tick in range(600):
        clock.now += 0.05
        taken += joined(rates, "hostile", small, times=1)
        served += joined(rates, "neighbour", small, times=1) if tick % 20 == 0 else 0
    assert abs(taken - 30 * (PER_S + PER_MEMBER_S)) <= 2
    assert served == 30


def test_every_member_of_a_large_job_may_join_twice_at_once(clock: Clock) -> None:
    rates = JoinRates(clock)
    clock.now += 10 * FIRST_MINUTE_S
    assert joined(rates, "large", job_of(8000), times=16_000) == 16_000


def test_a_new_server_takes_all_members_of_a_job_that_the_controller_has_not_spoken_about(clock: Clock) -> None:
    rates = JoinRates(clock)
    assert joined(rates, "large", None, times=MAX_MEMBERS) == MAX_MEMBERS
    assert joined(rates, "large", job_of(8000), times=7000) == 7000, "and again when the controller has spoken"
    clock.now += FIRST_MINUTE_S
    assert joined(rates, "nobody's", None, times=1000) == SPARE, "later the controller has spoken about every job"


def test_the_jobs_that_are_counted_are_bounded(clock: Clock) -> None:
    rates = JoinRates(clock)
    for number in range(MOST_KEPT + 100):
        rates.allows(f"job-{number}", None)
    assert len(rates._used) == MOST_KEPT


async def test_a_join_too_many_is_closed_in_words_and_its_introduction_is_not_read() -> None:
    """An agent that is denied by a status for 15 s ends, so the connection is opened and closed."""
    clock = Clock()
    hub = Hub(instance="s1", clock=clock)
    face = Face(hub=hub, gate=Gate(keys=lambda: [KEY], reviewer=None, accounts=()), clock=clock, metrics=lambda: (b"", ""))
    clock.now += FIRST_MINUTE_S
    hub.expect("hostile", Expectation(members=("w0",)))
    hub.expect("good", Expectation(members=("w0",)))
    async with TestClient(TestServer(face.application())) as client:

        async def join(uid: str, *, text: str = '{"t":"join","incarnation":"u/1"}') -> aiohttp.WSMessage:
            headers = {"Authorization": f"Bearer {job_token(KEY, uid)}"}
            async with client.ws_connect(f"/v1/jobs/{uid}/members/w0", headers=headers) as socket:
                await socket.send_str(text)
                return await socket.receive(60)

        for _ in range(SPARE + 2):
            assert (await join("hostile")).type is aiohttp.WSMsgType.TEXT
        end = await join("hostile")
        assert (end.type, end.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.TRY_AGAIN_LATER)
        assert "too many joins" in str(end.extra)
        assert (await join("good")).type is aiohttp.WSMsgType.TEXT
        assert hub.job("hostile") is not None
        arrivals = hub.job("hostile").membership.arrivals  # type: ignore[union-attr]
        with pytest.MonkeyPatch.context() as patch:
            read: list[int] = []
            allows = metered.Rate.allows_bytes

            def counted(rate: metered.Rate, length: int) -> bool:
                read.append(length)
                return allows(rate, length)

            patch.setattr(metered.Rate, "allows_bytes", counted)
            end = await join("hostile", text=" " * (MEMBER_MESSAGE // 2))
            assert end.type is not aiohttp.WSMsgType.TEXT
            await asyncio.sleep(0)
        assert sum(read) < MEMBER_MESSAGE // 4, "it is cut off when more comes than the answer to a good-bye"
        assert hub.job("hostile").membership.arrivals == arrivals  # type: ignore[union-attr]
        clock.now += 1.0
        assert (await join("hostile")).type is aiohttp.WSMsgType.TEXT
        for job in hub.jobs():
            hub.forget(job.uid)
