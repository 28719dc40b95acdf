"""One of several controllers works: a Lease in an API server decides, which is a dict with versions here."""

import asyncio

import pytest
from aiohttp import web
from served_api import refusal, served

from elastic.kube.client import Kube
from elastic.kube.resources import Object
from elastic.runtime.election import Election, LeaseLost, LeaseSeen, Terms, free_in_s


class OneLease:
    """A collection that holds one object and refuses stale versions."""

    def __init__(self) -> None:
        self.object: Object | None = None
        self.version = 0

    async def answer(self, request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response(self.object) if self.object else refusal(404, "NotFound")
        body = await request.json()
        if request.method == "POST" and self.object is not None:
            return refusal(409, "AlreadyExists")
        if self.object is not None and body["metadata"]["resourceVersion"] != self.object["metadata"]["resourceVersion"]:
            return refusal(409, "Conflict")
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.object = body
        return web.json_response(body)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Quick(Terms):
    """The times of the default, without long pauses between looks."""

    poll_s = 0.01


QUICK = Quick()


def candidate(kube: Kube, me: str, clock: Clock) -> Election:
    return Election(kube, namespace="n", name="lease", me=me, clock=clock, terms=QUICK)


@pytest.mark.parametrize(("holder", "age", "free"), [("", 0, True), ("me", 0, True), ("other", 14.9, False), ("other", 15, True)])
def test_a_lease_is_free_when_it_is_ours_or_nobodys_or_has_run_out(holder: str, age: float, free: bool) -> None:
    assert (free_in_s(LeaseSeen(holder, "t", 15, at=0), me="me", now=age) <= 0) is free


def test_the_default_times_are_those_of_client_go() -> None:
    terms = Terms()
    assert (terms.duration_s, terms.give_up_s, terms.renew_s) == (15, 10, 2)
    assert terms.give_up_s + terms.renew_s < terms.duration_s, "one that hangs in its last try ends before the next one begins"


async def test_the_second_waits_until_the_first_has_been_silent_for_the_time_it_said() -> None:
    lease, clock = OneLease(), Clock()
    async with served(lease.answer) as kube:
        first, second = candidate(kube, "first", clock), candidate(kube, "second", clock)
        await first.win()
        waiting = asyncio.create_task(second.win())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        clock.now = 15.0
        await waiting
        assert (first.term, second.term) == (1, 2)
        assert lease.object is not None
        assert lease.object["spec"]["holderIdentity"] == "second"


async def test_after_a_clean_stop_the_next_one_need_not_wait() -> None:
    lease, clock = OneLease(), Clock()
    async with served(lease.answer) as kube:
        first, second = candidate(kube, "first", clock), candidate(kube, "second", clock)
        await first.win()
        await first.give_back()
        await second.win()
        assert second.term == 2


@pytest.mark.parametrize("is_standby", [False, True])
async def test_a_lease_that_is_made_again_goes_on_with_the_terms(is_standby: bool) -> None:
    """The Lease was deleted, and the terms began again at 1. The rendezvous server refused the leader's signs and expectations."""
    lease, clock = OneLease(), Clock()
    async with served(lease.answer) as kube:
        first, second, third = (candidate(kube, name, clock) for name in ("first", "second", "third"))
        for one in (first, second):
            await one.win()
            await one.give_back()
        assert await third._look() is False
        lease.object = None
        next_one = third if is_standby else second
        await next_one.win()
        assert next_one.term == 3


async def test_one_of_two_that_find_it_free_at_the_same_moment_gets_it() -> None:
    lease, clock = OneLease(), Clock()
    async with served(lease.answer) as kube:
        candidates = [candidate(kube, f"c{i}", clock) for i in range(4)]
        won = [asyncio.create_task(c.win()) for c in candidates]
        done, pending = await asyncio.wait(won, timeout=0.5)
        assert len(done) == 1
        for task in pending:
            task.cancel()


async def test_a_holder_that_finds_another_in_the_lease_stops_holding() -> None:
    lease, clock = OneLease(), Clock()
    async with served(lease.answer) as kube:
        first, second = candidate(kube, "first", clock), candidate(kube, "second", clock)
        await first.win()
        clock.now = 0.5
        holding = asyncio.create_task(first.hold())
        assert lease.object is not None
        lease.object["spec"]["holderIdentity"] = ""
        await second.win()
        async with asyncio.timeout(10):
            await holding


async def test_the_rest_of_the_lease_counts_from_the_time_of_the_write() -> None:
    lease, clock = OneLease(), Clock()

    async def slowly(request: web.Request) -> web.Response:
        clock.now += 1.0
        return await lease.answer(request)

    async with served(slowly) as kube:
        election = candidate(kube, "first", clock)
        assert election.left_s() < 0
        await election.win()
        assert election.left_s() == QUICK.give_up_s - 1.0, "one request to read it, one to write it, and the second counts"
        clock.now += QUICK.give_up_s
        assert election.left_s() < 0
        await election.give_back()
        assert election.left_s() < 0


async def test_a_process_that_stood_still_until_another_took_the_lease_stops_its_work() -> None:
    lease, clock = OneLease(), Clock()
    working = asyncio.Event()

    async def work() -> None:
        working.set()
        await asyncio.Event().wait()

    async with served(lease.answer) as kube:
        first, second = candidate(kube, "first", clock), candidate(kube, "second", clock)
        leading = asyncio.create_task(first.lead(work))
        await working.wait()
        clock.now += QUICK.duration_s
        assert lease.object is not None
        lease.object["spec"]["holderIdentity"] = ""
        await second.win()
        with pytest.raises(LeaseLost):
            async with asyncio.timeout(60):
                await leading
        assert lease.object["spec"]["holderIdentity"] == "second", "nobody gives back what is another's"


async def test_work_that_is_stopped_gives_the_lease_back_and_work_that_breaks_does_too() -> None:
    lease, clock = OneLease(), Clock()
    working = asyncio.Event()

    async def endless() -> None:
        working.set()
        await asyncio.Event().wait()

    async def broken() -> None:
        raise ValueError("a part is broken")

    async with served(lease.answer) as kube:
        leading = asyncio.create_task(candidate(kube, "first", clock).lead(endless))
        await working.wait()
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        assert lease.object is not None
        assert lease.object["spec"]["holderIdentity"] == ""
        with pytest.raises(ValueError, match="a part is broken"):
            await candidate(kube, "second", clock).lead(broken)
        assert lease.object["spec"]["holderIdentity"] == ""


async def test_an_api_server_that_answers_late_or_refuses_once_costs_nobody_the_lease() -> None:
    lease, clock, refusals, renewed = OneLease(), Clock(), iter([500, 409, 503, 409]), asyncio.Event()

    async def moody(request: web.Request) -> web.Response:
        code = next(refusals, None) if request.method == "PUT" else None
        if code is not None:
            return refusal(code, "NotNow")
        answer = await lease.answer(request)
        if request.method == "PUT":
            renewed.set()
        return answer

    async with served(moody) as kube:
        election = candidate(kube, "first", clock)
        await election.win()
        holding = asyncio.create_task(election.hold())
        async with asyncio.timeout(60):
            await renewed.wait()
        assert not holding.done()
        holding.cancel()
