"""Check that messages about a job that meets in an etcd go there, and all others to the rendezvous server.

An etcd that is out of reach holds nothing up.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
from test_controller_link import Server, tell

from elastic.etcd.place import EtcdPlace
from elastic.membership import wire
from elastic.membership.phases import WorldPhase
from elastic_training.controller.acting.link import RendezvousLink
from elastic_training.controller.acting.links import Links

PLACE = EtcdPlace(endpoints=("etcd:2379",), prefix="/elastic-training/job/")


class Both:
    """A rendezvous server, the etcds, and the links to them."""

    def __init__(self) -> None:
        self.server, self.etcds = Server(), Server()
        self.places: dict[str, EtcdPlace] = {}
        self.changed: list[str] = []
        links = [RendezvousLink(each, errors=(RuntimeError,)) for each in (self.server, self.etcds)]
        self.links = Links(links[0], links[1], self)

    def meet_at(self, job_uid: str, place: EtcdPlace) -> None:
        self.places[job_uid] = place


@pytest.fixture
async def both() -> AsyncIterator[Both]:
    made = Both()
    running = asyncio.create_task(made.links.run(made.changed.append))
    await made.server.is_listened_to.wait()
    await made.etcds.is_listened_to.wait()
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def a_few_turns() -> None:
    """Let the links take what is queued. Nothing here waits for time or the outside."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_job_with_a_place_is_written_into_its_etcd(both: Both) -> None:
    both.links.tell("in-etcd", tell(place=PLACE), is_awaited=True)
    both.links.tell("at-server", tell(), is_awaited=True)
    assert (await both.etcds.said.get()).members == ("a",)
    assert (await both.server.said.get()).members == ("a",)
    assert (len(both.etcds.heard), len(both.server.heard)) == (1, 1)
    assert both.places == {"in-etcd": PLACE}


async def test_worlds_of_both_are_known_and_a_job_is_forgotten_where_it_was_known(both: Both) -> None:
    both.server.worlds_to_tell.put_nowait(wire.WorldReport(job="at-server", generation=1, phase="running"))
    both.etcds.worlds_to_tell.put_nowait(wire.WorldReport(job="in-etcd", generation=2, phase="running"))
    await a_few_turns()
    assert {uid: world.generation for uid, world in both.links.worlds.items()} == {"at-server": 1, "in-etcd": 2}
    both.links.forget("in-etcd")
    await a_few_turns()
    assert (both.etcds.forgotten, both.server.forgotten) == (["in-etcd"], [])


async def test_the_last_step_of_a_job_comes_with_the_answer_that_it_is_forgotten_and_stays_until_the_job_goes_or_is_told_of(
    both: Both,
) -> None:
    both.server.last_steps, both.etcds.last_steps = {"at-server": 70, "other": 60}, {"in-etcd": 80}
    for each in (both.server, both.etcds):
        for uid in each.last_steps:
            each.worlds_to_tell.put_nowait(wire.WorldReport(job=uid, generation=1, phase="running"))
    await a_few_turns()
    both.changed.clear()
    for uid in ("at-server", "in-etcd", "other"):
        both.links.forget(uid)
    await a_few_turns()
    assert dict(both.links.last_steps) == {"at-server": 70, "other": 60, "in-etcd": 80}
    assert sorted(both.changed) == ["at-server", "in-etcd", "other"], "their status is to be written"
    both.links.forget("other", is_awaited=True)
    await a_few_turns()
    assert both.links.last_steps["other"] == 60, "the server has nothing to add"
    both.links.drop("at-server")
    both.links.drop("in-etcd")
    both.links.tell("other", tell(), is_awaited=False)
    assert dict(both.links.last_steps) == {}


async def test_no_last_step_is_kept_of_a_job_that_goes_before_the_answer(both: Both) -> None:
    both.server.last_steps = {"job": 70}
    both.server.worlds_to_tell.put_nowait(wire.WorldReport(job="job", generation=1, phase="running"))
    await a_few_turns()
    both.changed.clear()
    both.links.drop("job")
    await a_few_turns()
    assert both.changed == ["job"], "what is known of a job that is gone is dropped when that is heard of"
    both.links.drop("job")
    assert dict(both.links.last_steps) == {}
    assert both.server.forgotten == ["job"]


async def test_a_suspended_job_is_forgotten_where_it_meets_also_if_this_controller_never_spoke_of_it(both: Both) -> None:
    both.links.forget("in-etcd", is_awaited=True, place=PLACE)
    both.links.forget("at-server", is_awaited=True)
    await a_few_turns()
    assert (both.etcds.forgotten, both.server.forgotten) == (["in-etcd"], ["at-server"])
    assert both.places["in-etcd"] == PLACE
    assert both.links.has_forgotten("in-etcd")
    assert both.links.has_forgotten("at-server")
    assert not both.links.has_forgotten("another")


async def test_an_etcd_that_is_out_of_reach_is_not_waited_for(both: Both) -> None:
    both.etcds.is_away = True
    assert not both.links.tell("in-etcd", tell(place=PLACE), is_awaited=True)
    both.etcds.worlds_to_tell.put_nowait(
        wire.WorldReport(job="in-etcd", generation=0, phase=WorldPhase.UNREACHED, reason="it does not answer")
    )
    await a_few_turns()
    assert both.links.worlds["in-etcd"].trouble == "it does not answer"
    assert both.links.tell("in-etcd", tell(place=PLACE), is_awaited=True)
