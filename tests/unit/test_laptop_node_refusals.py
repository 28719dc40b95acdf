"""A node that the API server does not take is refused, and the others go on."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastic.kube.errors import KubeError
from elastic.local.agent import roster
from elastic.local.agent.control import Refused
from elastic.local.agent.node import NodeFacts
from elastic.local.agent.nodes import Nodes
from elastic.local.agent.roster import Member, Roster
from elastic.local.files import Layout

INVALID = KubeError(code=422, reason="Invalid", message='Node "one" is invalid: metadata.labels: Invalid value: "my team"')


class Fleet:
    """Plays nodes, but those with this label."""

    mode = SimpleNamespace(value="loopback")

    def __init__(self) -> None:
        self.ready: set[str] = set()
        self._changed = asyncio.Event()

    async def run_node(self, facts: NodeFacts) -> None:
        if facts.labels.get("team") == "my team":
            raise INVALID
        self.ready.add(facts.name)
        self._changed.set()
        await asyncio.Event().wait()

    async def wait_for(self, names: Collection[str]) -> None:
        while not self.ready.issuperset(names):
            self._changed.clear()
            await self._changed.wait()

    def agent(self, name: str) -> object:
        return object()

    async def retire_others(self, names: Collection[str], *, labels: str) -> None: ...


def nodes(group: asyncio.TaskGroup, folder: Path) -> Nodes:
    fleet: Any = Fleet()
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
    """It ended all agents of the cluster, and again at each start, for it stood in nodes.json already."""
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
