"""Elections in virtual time: how long a Lease stays without a holder, what a slow API server costs, and what is logged of it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import sim_time
from sim_api import Api
from sim_client import or_none

from elastic.kube.errors import KubeError
from elastic.kube.resources import LEASES, Object, Resource
from elastic.runtime.election import Election

NEVER_S = 1e6


class SlowKube:
    """A client whose requests and answers take a while each; what is cancelled on its way arrives all the same."""

    def __init__(self, api: Api, name: str) -> None:
        self.one_way_s = 0.01
        self.is_cut_off = False
        self.losing: list[str] = []
        """Methods whose next answer never comes."""
        self._api, self._name = api, name

    async def find(self, resource: Resource, name: str, *, namespace: str) -> Object | None:
        return await or_none(self._call("get", lambda: self._api.get(resource, name)))

    async def create(self, resource: Resource, body: Object, *, namespace: str) -> Object:
        return await self._call("create", lambda: self._api.create(resource, body, actor=self._name))

    async def replace(self, resource: Resource, body: Object, *, name: str, namespace: str) -> Object:
        return await self._call("replace", lambda: self._api.replace(resource, name, body, actor=self._name))

    async def _call(self, method: str, act: Any) -> Object:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Object] = loop.create_future()

        def arrive() -> None:
            try:
                loop.call_later(self.one_way_s, _settle, answer.set_result, act(), answer)
            except KubeError as error:
                loop.call_later(self.one_way_s, _settle, answer.set_exception, error, answer)

        if self.is_cut_off:
            await asyncio.sleep(NEVER_S)
        loop.call_later(self.one_way_s, arrive)
        if method in self.losing:
            self.losing.remove(method)
            await asyncio.sleep(NEVER_S)
        return await answer


def _settle(setting: Callable[[Any], None], outcome: object, answer: "asyncio.Future[Object]") -> None:
    if not answer.done():
        setting(outcome)


class Candidate:
    """Works while the Lease is its own, and remembers when that was."""

    def __init__(self, api: Api, name: str, *, one_way_s: float = 0.01) -> None:
        self.kube = SlowKube(api, name)
        self.kube.one_way_s = one_way_s
        self.began_at: float | None = None
        clock = asyncio.get_running_loop().time
        self.election = Election(self.kube, namespace="system", name="lease", me=name, clock=clock)  # type: ignore[arg-type]
        self.task = asyncio.create_task(self.election.lead(self._work))

    async def _work(self) -> None:
        self.began_at = asyncio.get_running_loop().time()
        await asyncio.Event().wait()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    def kill(self) -> None:
        self.kube.is_cut_off = True
        self.task.cancel()


def played(story: Coroutine[Any, Any, None]) -> None:
    sim_time.run(story)


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("after_s", [20.0, 20.3, 20.77, 21.9])
def test_a_lease_that_is_given_back_is_taken_within_a_second(after_s: float) -> None:
    async def story() -> None:
        api = Api()
        first = Candidate(api, "first")
        await asyncio.sleep(1)
        second = Candidate(api, "second")
        await asyncio.sleep(after_s)
        await first.stop()
        stopped_at = now()
        await asyncio.sleep(10)
        assert second.began_at is not None
        assert second.began_at - stopped_at < 1.0

    played(story())


@pytest.mark.parametrize("after_s", [20.0, 20.3, 20.77, 21.9])
def test_after_a_kill_the_lease_is_taken_when_it_has_lasted_and_not_later(after_s: float) -> None:
    async def story() -> None:
        api = Api()
        first = Candidate(api, "first")
        await asyncio.sleep(1)
        second = Candidate(api, "second")
        await asyncio.sleep(after_s)
        first.kill()
        killed_at, left_s = now(), first.election.left_s()
        await asyncio.sleep(30)
        assert second.began_at is not None
        assert second.began_at - killed_at <= 15.0 + 1.0
        assert second.began_at - killed_at > left_s, "the first one, were it alive, had stopped before"

    played(story())


def logged(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= level]


def test_a_leader_keeps_its_lease_while_requests_take_1_5_s_each_way_and_says_once_that_renewals_are_slow(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "elastic.runtime.election")

    async def story() -> None:
        api = Api()
        first, second = Candidate(api, "first"), None
        await asyncio.sleep(5)
        first.kube.one_way_s = 1.5
        second = Candidate(api, "second")
        await asyncio.sleep(600)
        assert not first.task.done()
        assert second.began_at is None
        assert first.election.left_s() > 0
        first.kube.one_way_s = 0.01
        await asyncio.sleep(20)
        await second.stop()

    played(story())
    said = logged(caplog)
    assert said.count("renewals of the lease are slow") == 1
    assert said.count("requests about the lease are fast again") == 1
    assert len(said) <= 5, said


def test_a_lease_is_won_and_kept_through_a_proxy_with_1_2_s_a_round_trip() -> None:
    async def story() -> None:
        first = Candidate(Api(), "first", one_way_s=0.6)
        await asyncio.sleep(10)
        assert first.began_at is not None
        await asyncio.sleep(600)
        assert not first.task.done()

    played(story())


def test_a_renewal_whose_answer_is_lost_counts_from_when_it_was_sent() -> None:
    """The API server took it; that the answer did not come must not cost the Lease, and another write is not needed to know it."""

    async def story() -> None:
        api = Api()
        first = Candidate(api, "first")
        await asyncio.sleep(5)
        first.kube.losing = ["replace"]
        await asyncio.sleep(2.0)
        sent_version = api.get(LEASES, "lease")["metadata"]["resourceVersion"]
        await asyncio.sleep(5.4)
        assert first.election.left_s() > 5.0 - 0.6
        assert not first.task.done()
        assert int(api.get(LEASES, "lease")["metadata"]["resourceVersion"]) <= int(sent_version) + 2
        first.kube.losing = ["replace"] * 3 + ["get"] * 3
        await asyncio.sleep(60)
        assert first.task.done(), "who hears no answer at all must stop"

    played(story())


def test_a_standby_says_once_which_holder_it_waits_for_and_a_broken_api_server_costs_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "elastic.runtime.election")

    async def story() -> None:
        api = Api()
        first = Candidate(api, "first")
        await asyncio.sleep(1)
        second = Candidate(api, "second")
        await asyncio.sleep(600)
        waits = [record for record in caplog.records if record.message == "waits for the lease"]
        assert [record.__dict__["holder"] for record in waits] == ["first"]
        second.kube.is_cut_off = True
        await asyncio.sleep(600)
        second.kube.is_cut_off = False
        await asyncio.sleep(60)
        await second.stop()
        await first.stop()

    played(story())
    assert len(logged(caplog)) <= 5, logged(caplog)
