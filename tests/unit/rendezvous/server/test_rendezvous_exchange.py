"""Values that workers give each other through the server while they form a world."""

import asyncio
from dataclasses import replace

import msgspec
import pytest
from rendezvous_group import Group, group_of

from elastic.membership.wire import View
from elastic_training.rendezvous.engine.messages.in_place import VALUE_LENGTH, Put, Stage
from elastic_training.rendezvous.server.active_job import ActiveJob
from elastic_training.rendezvous.server.exchange import MOST_LENGTH, MOST_VALUES, Exchange
from elastic_training.rendezvous.server.members import Connection


def forming(workers: int) -> Group:
    group = group_of(2)
    for name in group.agents:
        group.hello(name, workers=workers)
    return group


def put(exchange: Exchange, group: Group, name: str, key: str, value: str) -> bool:
    return exchange.put(group.job, name, Put(round=group.job.in_place.round, key=key, value=value))


def values(exchange: Exchange) -> dict[str, str]:
    found: dict[str, str] = {}
    number, keys = exchange.after(exchange.round, 0)
    while keys is not None:
        found |= keys.keys.items
        number, keys = exchange.after(exchange.round, number)
    return found


def test_the_addresses_of_all_workers_of_a_large_member_have_room() -> None:
    group, exchange = forming(64), Exchange()
    given = {f"0//cpu//0/{rank}": str(rank % 10) * VALUE_LENGTH for rank in range(128)}
    for rank, (key, value) in enumerate(given.items()):
        assert put(exchange, group, f"w{rank // 64}", key, value)
    assert values(exchange) == given


def test_values_that_an_agent_repeats_on_a_new_connection_count_once_and_are_sent_once() -> None:
    group, exchange = forming(1), Exchange()
    assert put(exchange, group, "w0", "a", "1")
    for _ in range(2 * MOST_VALUES):
        assert not put(exchange, group, "w0", "a", "1")
    assert exchange.after(exchange.round, 0)[0] == 1
    assert put(exchange, group, "w0", "b", "2")


def test_a_member_and_a_job_may_give_so_much_for_one_round() -> None:
    group, exchange = forming(2), Exchange()
    assert [put(exchange, group, "w0", f"k{number}", "v") for number in range(2 * MOST_VALUES + 1)][-2:] == [True, False]
    assert put(exchange, group, "w1", "mine", "v")
    large, whole = Exchange(), forming(1024)
    taken = [put(large, whole, f"w{number % 2}", f"k{number}", "v" * VALUE_LENGTH) for number in range(MOST_LENGTH // VALUE_LENGTH)]
    assert (taken[0], taken[-1]) == (True, False)


@pytest.mark.parametrize("stage", [Stage.RUN, Stage.HOLD, Stage.STOP, Stage.ABORT])
def test_the_exchange_of_a_world_goes_on_until_its_members_leave_it(stage: Stage) -> None:
    """A program forms a group of its own in the step before a change. Its ranks waited for each other's addresses in vain."""
    group, exchange = forming(1), Exchange()
    group.obey_all()
    world = group.job.in_place.world_round
    known = replace(group.job.in_place, stage=stage, round=world + (stage is not Stage.RUN))
    assert exchange.put(replace(group.job, in_place=known), "w0", Put(round=world, key="k", value="v")) is (stage is not Stage.ABORT)


class Link:
    """A connection that counts how often it is told of the exchange."""

    def __init__(self) -> None:
        self.told = 0

    def give(self, exchange: Exchange) -> None:
        self.told += 1


async def test_values_that_come_together_are_passed_on_together() -> None:
    """Each of a thousand members was told of each of a thousand values by itself."""
    group = forming(2)
    active = ActiveJob(group.job)
    links = {name: Link() for name in group.agents}
    active.links = {name: (group.agents[name].incarnation, link) for name, link in links.items()}  # type: ignore[misc]
    for number in range(MOST_VALUES):
        active.put("w0", group.agents["w0"].incarnation, Put(round=group.job.in_place.round, key=f"k{number}", value="v"))
    assert active.put("w0", group.agents["w0"].incarnation, Put(round=group.job.in_place.round, key="k0", value="v")), "it is repeated"
    assert not active.put("w0", group.agents["w0"].incarnation, Put(round=7, key="k0", value="v"))
    assert active.gives_soon
    active._give()
    assert ({link.told for link in links.values()}, active.gives_soon) == ({1}, False)


class Socket:
    def __init__(self) -> None:
        self.sent: list[str] = []

    async def send_str(self, text: str) -> None:
        self.sent.append(text)


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_member_gets_values_only_after_the_view_that_names_their_round(is_late: bool) -> None:
    """On a new connection it dropped the values of a round of which it had not heard, and never got them again."""
    group, exchange, socket = forming(1), Exchange(), Socket()
    put(exchange, group, "w0", "a", "1")
    connection = Connection(socket, None)  # type: ignore[arg-type]
    connection.give(exchange)
    if is_late:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert socket.sent == []
    connection.send(View(generation=1))
    for _ in range(5):
        await asyncio.sleep(0)
    assert [list(msgspec.json.decode(text)) for text in socket.sent] == [["generation"], ["keys"]]
