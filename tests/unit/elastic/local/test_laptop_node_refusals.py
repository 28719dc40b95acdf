"""A node that the API server does not take is refused, one that is killed while it begins is gone, and the others go on."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastic.kube.errors import KubeError
from elastic.local.agent import roster
from elastic.local.agent.control import Refused
from elastic.local.agent.fleet import Fleet as RealFleet
from elastic.local.agent.fleet import Place
from elastic.local.agent.node import NodeFacts, conditions
from elastic.local.agent.nodes import Nodes
from elastic.local.agent.roster import Member, Roster
from elastic.local.files import Layout
from elastic.local.kept_logs import KeptLogs

INVALID = KubeError(code=422, reason="Invalid", message='Node "one" is invalid: metadata.labels: Invalid value: "my team"')


class Fleet:
    """Plays nodes, but those with this label."""

    mode = SimpleNamespace(value="loopback")

    def __init__(self) -> None:
        self.ready: set[str] = set()
        self.vanished: list[str] = []
        self.beginning = asyncio.Event()
        self._changed = asyncio.Event()

    async def run_node(self, facts: NodeFacts) -> None:
        if facts.name == "slow":
            self.beginning.set()
            await asyncio.Event().wait()
        if facts.labels.get("team") == "my team":
            raise INVALID
        self.ready.add(facts.name)
        self._changed.set()
        await asyncio.Event().wait()

    async def wait_for(self, names: Collection[str]) -> None:
        while not self.ready.issuperset(names):
            self._changed.clear()
            await self._changed.wait()

    async def vanish(self, name: str) -> None:
        self.vanished.append(name)

    async def retire_others(self, names: Collection[str], *, labels: str) -> None: ...


def nodes(group: asyncio.TaskGroup, folder: Path, fleet: Any = None) -> Nodes:
    fleet = fleet or Fleet()
    return Nodes(group, fleet, port=1, folder=folder, holder="h", grace_s=50.0)


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (Member("one", labels={"team": "my team"}), "node one is refused: Node .* Invalid value"),
        (Member("One"), 'name is "One"; use lower-case letters'),
        (Member("../one"), 'name is "../one"; use lower-case letters'),
    ],
)
async def test_a_node_with_wrong_words_is_refused_and_not_remembered(tmp_path: Path, member: Member, words: str) -> None:
    """It ended all agents of the cluster, and again at each start, because it stood in nodes.json already."""
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        ours = nodes(group, tmp_path)
        await ours.start((Member("node-0"),))
        with pytest.raises(Refused, match=words):
            await ours.add(member)
        await ours.add(Member("spare"))
        for task in ours._tasks.values():
            task.cancel()
    assert [one.name for one in roster.read(Layout(tmp_path).roster).added] == ["spare"]


async def test_a_wrong_node_that_an_earlier_release_remembered_is_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = Member("one", labels={"team": "my team"})
    roster.write(Layout(tmp_path).roster, Roster("h").with_member(wrong).with_member(Member("spare")))
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        ours = nodes(group, tmp_path)
        with caplog.at_level(logging.ERROR):
            await ours.start((Member("node-0"),))
        assert sorted(ours._tasks) == ["node-0", "spare"]
        for task in ours._tasks.values():
            task.cancel()
    assert "node one is refused" in caplog.text
    assert [one.name for one in roster.read(Layout(tmp_path).roster).added] == ["spare"]


def test_a_heartbeat_does_not_say_that_a_sound_node_has_just_become_ready() -> None:
    """Every four minutes the node looked as if it had been away, so the end of a worker near that time was put down to the node."""
    first, later, back = "2026-01-01T00:00:00Z", "2026-01-01T00:04:00Z", "2026-01-01T00:08:00Z"
    known = conditions((), now=first)
    beaten = {one["type"]: one for one in conditions(known, now=later)}
    assert (beaten["Ready"]["lastTransitionTime"], beaten["Ready"]["lastHeartbeatTime"]) == (first, later)
    silent = [one | {"status": "Unknown", "lastTransitionTime": later} for one in known]
    assert {one["lastTransitionTime"] for one in conditions(silent, now=back)} == {back}


async def test_a_disk_that_is_full_refuses_a_node_and_ends_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended all agents of the cluster, which answered nothing."""

    def full(path: Path, changed: Roster) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        ours = nodes(group, tmp_path)
        await ours.start((Member("node-0"),))
        with monkeypatch.context() as patched:
            patched.setattr(roster, "write", full)
            for asked in (ours.add(Member("spare")), ours.kill("node-0")):
                with pytest.raises(Refused, match=r"nodes.json cannot be written: No space left on device; make room on the disk"):
                    await asked
        assert sorted(ours._tasks) == ["node-0"]
        await ours.add(Member("spare"))
        for task in ours._tasks.values():
            task.cancel()


async def test_a_node_that_is_killed_before_it_is_ready_is_gone(tmp_path: Path) -> None:
    """It was forgotten and played on: it could be neither killed nor added again, and came back with the next start."""
    fleet = Fleet()
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        ours = nodes(group, tmp_path, fleet)
        await ours.start((Member("node-0"),))
        adding = asyncio.create_task(ours.add(Member("slow")))
        await fleet.beginning.wait()
        playing = ours._tasks["slow"]
        await ours.kill("slow")
        assert (playing.cancelled(), fleet.vanished) == (True, ["slow"])
        with pytest.raises(Refused, match="node slow was killed before it was ready"):
            await adding
        with pytest.raises(Refused, match="no node slow runs here"):
            await ours.kill("slow")
        for task in ours._tasks.values():
            task.cancel()
    kept = roster.read(Layout(tmp_path).roster)
    assert (kept.added, kept.killed) == ((), ("slow",))


async def test_a_node_that_was_refused_after_its_caller_gave_up_can_be_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet()
    refuse = asyncio.Event()

    async def run_node(facts: NodeFacts) -> None:
        await refuse.wait()
        raise INVALID

    fleet.run_node = run_node  # type: ignore[method-assign]
    monkeypatch.setattr("elastic.local.agent.nodes.READY_S", 0.05)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        ours = nodes(group, tmp_path, fleet)
        await ours.start(())
        with pytest.raises(Refused, match="is not ready after"):
            await ours.add(Member("one"))
        refuse.set()
        await ours._tasks["one"]
        await ours.kill("one")
    assert roster.read(Layout(tmp_path).roster).added == ()


class Channel:
    """A holder with processes that end when they are told."""

    def __init__(self, *running: str) -> None:
        self.running, self.destroyed = list(running), list[str]()

    async def describe(self) -> dict[str, Any]:
        return {"running": list(self.running)}

    async def signal(self, run: str, number: int) -> None:
        assert number == signal.SIGKILL
        self.running.remove(run)

    async def destroy(self, uid: str) -> None:
        self.destroyed.append(uid)


async def test_processes_that_no_agent_has_taken_up_end_with_their_node(tmp_path: Path) -> None:
    """They ran on without a node: an agent that had only just begun did not know them yet."""
    channel = Channel("uid-1/main/0", "uid-2/main/0")
    (tmp_path / "one" / "uid-1").mkdir(parents=True)
    (tmp_path / "two" / "uid-2").mkdir(parents=True)
    kube: Any = None
    fleet = RealFleet(kube, channel, settings=kube, place=Place(tmp_path, KeptLogs(tmp_path), {}), pods=kube)  # type: ignore[arg-type]
    async with asyncio.timeout(10):
        await fleet.vanish("one")
    assert (channel.running, channel.destroyed) == (["uid-2/main/0"], ["uid-1"])
