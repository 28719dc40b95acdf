"""Ranks of a real training are made slow: the rendezvous server names the rank, and what slows it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from throttled_group import NoGroup, limit, limited, python_in
from torch_agents import Agents, Server, serving, wait_until

from elastic.membership.wire import Budget, Expectation
from elastic_training.rendezvous.engine.messages.pace import Slowness, Straggler
from elastic_training.rendezvous.engine.pace_words import sentence

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(300)]
SCRIPT = Path(__file__).parent.parent / "fixtures" / "stragglers" / "train.py"
WINDOW_S = 0.4


class Slowed:
    """A job some of whose ranks are slow."""

    def __init__(self, server: Server, folder: Path, *members: str, pythons: Mapping[str, str], workers: int, **environment: str) -> None:
        self._server, self._folder = server, folder / "slow"
        self._folder.mkdir()
        self.agents = Agents(folder / "job", server, job="0d9f5b1e-job", script=SCRIPT.read_text())
        self.agents._arguments = [str(self._folder)]
        self._members = members
        self.expect(WINDOW_S)
        for name in members:
            self.agents._python = pythons.get(name, sys.executable)
            self.agents.start(name, workers=workers, **environment)

    def expect(self, window_s: float) -> None:
        """Let the ranks measure windows of so many seconds."""
        budget = Budget(max_restarts=3, pace_s=window_s)
        size = len(self._members)
        self._server.expect(self.agents.job, Expectation(members=self._members, min=size, max=size, budget=budget))

    def plant(self, member: str, kind: str, seconds: float) -> None:
        """Make the rank of this member slow."""
        new = self._folder / "new"
        new.write_text(f"{kind} {seconds}")
        new.rename(self._folder / member)

    def heal(self, member: str) -> None:
        (self._folder / member).unlink()

    def rank(self, member: str) -> int:
        return int((self._folder / f"steps-{member}").read_text().split()[1])

    def trains(self) -> bool:
        return all((self._folder / f"steps-{member}").exists() for member in self._members)

    def found(self) -> tuple[Straggler, ...] | None:
        world = self._server.world(self.agents.job)
        return world.stragglers if world is not None else None

    def until(self, what: str, wanted: set[tuple[str, Slowness]]) -> None:
        """Wait until these members are named, and no other one."""

        def is_so() -> bool:
            found = self.found()
            return found is not None and {(one.member, one.kind) for one in found} == wanted

        wait_until(is_so, what=lambda: f"{what}; found: {self.found()}\n{self.agents.describe()}")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as running:
        yield running


@contextlib.contextmanager
def slowed(
    server: Server, folder: Path, *members: str, pythons: Mapping[str, str] | None = None, workers: int = 1, **environment: str
) -> Iterator[Slowed]:
    made = Slowed(server, folder, *members, pythons=pythons or {}, workers=workers, **environment)
    try:
        wait_until(made.trains, what=lambda: f"all train\n{made.agents.describe()}")
        yield made
    finally:
        made.agents.stop()


def test_a_slow_rank_is_named_with_the_kind_of_its_slowness_until_it_is_fast_again(server: Server, tmp_path: Path) -> None:
    with slowed(server, tmp_path, "w0", "w1", "w2") as job:
        job.until("nobody is slow", set())
        job.plant("w1", "compute", 0.3)
        job.until("w1 computes slowly", {("w1", Slowness.COMPUTE)})
        wait_until(
            lambda: [one.among for one in job.found() or ()] == [3], what="it is compared with all ranks, not only with the punctual one"
        )
        (found,) = job.found() or ()
        assert (found.rank, found.local_rank) == (job.rank("w1"), 0)
        assert found.own_s > 0.3 > found.usual_s
        job.plant("w1", "data", 0.1)
        job.until("w1 loads slowly", {("w1", Slowness.DATA)})
        job.heal("w1")
        job.until("w1 is fast again", set())
        job.plant("w2", "outside", 0.3)
        job.until("w2 works between its steps", {("w2", Slowness.OUTSIDE)})
        job.heal("w2")
        job.until("w2 is fast again", set())
        job.plant("w0", "network", 1e6)
        job.until("w0 sends slowly", {("w0", Slowness.NETWORK)})
        job.expect(0.0)
        job.until("nobody measures any more", set())


def test_a_rank_whose_cpu_is_throttled_is_named_with_its_limit(server: Server, tmp_path: Path) -> None:
    with contextlib.ExitStack() as opened:
        try:
            group = opened.enter_context(limited(f"elastic-test-{os.getpid()}"))
        except NoGroup as error:
            pytest.skip(f"no control group with a limit can be made here: {error}")
        job = opened.enter_context(slowed(server, tmp_path, "w0", "w1", "w2", pythons={"w2": python_in(group, tmp_path)}))
        limit(group, 0.05)  # a loaded machine gives a process little more than that
        job.until("w2 is throttled", {("w2", Slowness.THROTTLED)})
        (found,) = job.found() or ()
        assert (found.milli_cpus, found.throttled >= 25) == (50, True)
        assert "it uses up its limit of 0.05 CPUs in" in sentence(found)


def test_all_shards_of_a_slow_pod_are_named(server: Server, tmp_path: Path) -> None:
    """The shards of a pod wait for each other in every layer, so their peers wait for both."""
    with slowed(server, tmp_path, "w0", "w1", workers=2, SHARDED="1", WIDTH="64") as job:
        job.until("nobody is slow", set())
        job.plant("w1", "compute", 0.6)
        both = {("w1", 0, Slowness.COMPUTE), ("w1", 1, Slowness.COMPUTE)}
        wait_until(
            lambda: {(one.member, one.local_rank, one.kind) for one in job.found() or ()} == both,
            what=lambda: f"both shards of w1 compute slowly; found: {job.found()}\n{job.agents.describe()}",
        )
