"""Check which connections make room for others at the webhook, and the order in which reviews are judged."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

import pytest
from aiohttp import web

from elastic.runtime import listener
from elastic.runtime.connection import Connection
from elastic_training.controller.webhook.judges import Busy, Turns, _Asking
from elastic_training.controller.webhook.server import BOUNDS, Room

MOST, MOST_OF_ONE_ADDRESS = BOUNDS.most, BOUNDS.of_one_address


def connections(address: str, count: int, *, since: float = 0.0, answers: bool = False) -> list[Connection]:
    made = []
    for i in range(count):
        one = Connection(cast("socket.socket", None), address, asyncio.Protocol(), gone=lambda _: None, now=since + i)
        one.request = cast("web.Request", object()) if answers else None
        made.append(one)
    return made


def must_go(there: list[Connection], address: str) -> Connection | None:
    return listener.must_go(there, address, BOUNDS)


def test_no_connection_goes_if_there_is_room():
    assert must_go(connections("a", MOST_OF_ONE_ADDRESS - 1), "a") is None
    assert must_go([one for address in "abc" for one in connections(address, 40)], "d") is None


def test_the_longest_waiting_connection_of_an_address_with_many_goes():
    there = connections("a", MOST_OF_ONE_ADDRESS, since=5) + connections("b", 3)
    assert must_go(there, "a") is there[0]
    assert must_go(there, "b") is None


def test_the_address_with_most_connections_makes_room_if_there_are_many():
    few = connections("a", 50)
    most = connections("b", MOST - 50, since=100)
    assert must_go(few + most, "c") is most[0]


def test_connections_that_are_being_answered_go_last():
    there = connections("a", 5, answers=True) + connections("a", MOST_OF_ONE_ADDRESS - 5, since=100)
    assert must_go(there, "a") is there[5]


def test_one_address_gets_half_of_the_room_for_bodies():
    room = Room(100)
    assert room.take("a", 50)
    assert not room.take("a", 1)
    assert room.take("b", 30)
    assert not room.take("c", 30)
    room.give_back("a", 50)
    assert room.take("a", 20)
    assert room.take("c", 50)


def asking(body: bytes) -> _Asking:
    return _Asking(body, asyncio.Event(), asyncio.get_running_loop().create_future())


async def test_addresses_are_judged_in_turns_and_reviews_of_one_in_order():
    turns = Turns(100)
    for body in (b"a1", b"a2", b"a3"):
        turns.add("a", asking(body))
    turns.add("b", asking(b"b1"))
    turns.add("c", asking(b"c1"))
    assert [(await turns.next()).body for _ in range(5)] == [b"a1", b"b1", b"c1", b"a2", b"a3"]


async def test_a_review_that_nobody_waits_for_is_not_judged():
    turns = Turns(100)
    gone = asking(b"gone")
    turns.add("a", gone)
    turns.add("a", asking(b"there"))
    gone.answer.cancel()
    assert (await turns.next()).body == b"there"


async def test_the_number_that_waits_is_bounded_in_total_and_to_half_for_one_address():
    turns = Turns(4)
    for address in "aab":
        turns.add(address, asking(b""))
    with pytest.raises(Busy):
        turns.add("a", asking(b""))
    turns.add("c", asking(b""))
    with pytest.raises(Busy):
        turns.add("d", asking(b""))
