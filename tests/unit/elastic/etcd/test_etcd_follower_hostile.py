"""The controller's side of a rendezvous in an etcd in which somebody writes nonsense, too much, or too often."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from etcd_store import InMemory
from etcd_town import Town, play

from elastic.etcd import follower, room
from elastic.etcd.follower import PATIENCE_S
from elastic.etcd.store import Entry
from elastic.membership.phases import WorldPhase


def test_an_invalid_record_is_ignored_and_too_many_end_the_visit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "MOST_BYTES", 2**21)

    async def story() -> None:
        town = Town()
        town.job.start("w0")
        await town.expect("w0")
        town.job.etcd.write("members/evil", b"\x80\x04pickle")
        town.job.etcd.write("nonsense", b"x")
        await town.live(3)
        assert [member.name for member in town.world.members] == ["w0"]
        for number in range(3):
            town.job.etcd.write(f"members/x{number}", b"x" * 2**20)
        await town.live(PATIENCE_S + 20)
        assert town.world.phase == WorldPhase.UNREACHED
        assert "too much" in town.world.reason

    play(story())


def test_a_flood_of_changes_is_read_no_quicker_than_its_share() -> None:
    """20,000 of them come every few milliseconds; each costs the thread of all etcds some of its time."""
    taken = []

    class Flooding(InMemory):
        async def watch(self, prefix: str, since: int) -> AsyncIterator[tuple[Entry, ...]]:
            while True:
                taken.append(prefix)
                await asyncio.sleep(0.001)
                yield (Entry("nonsense", b"", 1),) * 20_000

    async def story() -> None:
        town = Town()
        town.way = Flooding(town.job.etcd)
        town.job.start("w0")
        await town.expect("w0")
        await town.live(20)
        assert [member.name for member in town.world.members] == ["w0"]
        assert 2 < len(taken) < 10

    play(story())


def test_the_records_of_one_job_take_no_room_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST_OF_ALL", 2**21)

    async def story() -> None:
        town = Town()
        town.job.start("w0")
        await town.expect("w0")
        await town.live(2)
        for number in range(3):
            town.job.etcd.write(f"members/x{number}", b"x" * 2**20)
        await town.live(PATIENCE_S + 20)
        assert "too much" in town.world.reason
        town.worlds.clear()
        for number in range(3):
            town.job.etcd.remove(f"members/x{number}")
        await town.live(20)
        assert [member.name for member in town.world.members] == ["w0"]

    play(story())
