"""Check the laws of the rendezvous in etcd with real presences.

Deaths, pauses, cuts, deaf watches, compactions and lost answers come in any order.
"""

from typing import Any

import pytest
from etcd_agents import Job
from etcd_store import PREFIX
from hypothesis import HealthCheck, settings
from hypothesis import Phase as HypothesisPhase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from elastic_worker.etcd.records import EXPECTED, MEMBERS, PROGRESS, WORLD, Leaving

pytestmark = pytest.mark.timeout(600)  # many examples, which a busy machine makes slow

NAMES = tuple(f"w{index}" for index in range(5))
some = st.sampled_from(NAMES)


class Membership(RuleBasedStateMachine):
    """Agents come, go, fail and lose etcd in any order; they must never believe in different worlds, and always get on."""

    @initialize(least=st.integers(1, 3), sizes=st.sampled_from([(), (), (1, 2, 4), (2, 3)]))
    def begin(self, least: int, sizes: tuple[int, ...]) -> None:
        least = min(least, min(sizes, default=least))
        self.job = self.make_job(min=least, max=4, sizes=sizes, grace_s=5.0, hang_s=120.0)
        self.seen = self.steps = 0
        self.job.hosts.are_there = least % 2 == 1
        self.has_finished = False

    def make_job(self, **rules: Any) -> Job:
        return Job(**rules)

    def teardown(self) -> None:
        if hasattr(self, "job"):
            for agent in [*self.job.agents.values(), *self.job.ended]:
                agent.presence.close()

    @rule(name=some)
    def an_agent_starts(self, name: str) -> None:
        if name in self.job.agents:
            self.job.end(name)
        self.job.start(name)

    @precondition(lambda self: self.job.agents)
    @rule(
        data=st.data(),
        what=st.sampled_from(
            [
                "kill",
                "leave",
                "freeze",
                "thaw",
                "cut",
                "mend",
                "deaf",
                "hears",
                "loses-answers",
                "come",
                "fail",
                "finish",
                "turn",
                "watch-ends",
                "step",
            ]
        ),
    )
    def something_happens_to_an_agent(self, data: st.DataObject, what: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.job.agents)))
        agent = self.job.agents[name]
        match what:
            case "kill" | "leave":
                self.job.end(name, politely=what == "leave")
            case "freeze" | "thaw":
                agent.is_frozen = what == "freeze"
            case "cut" | "mend":
                agent.link.is_cut = what == "cut"
            case "deaf" | "hears":
                agent.link.is_deaf = what == "deaf"
            case "loses-answers":
                agent.link.loses_answers = True
            case "watch-ends":
                for watch in agent.link.watches:
                    watch.is_broken = True
            case "come" if agent.is_working:
                agent.come(data.draw(st.sampled_from(["", "the store could not be reached"])))
            case "fail" if agent.is_working and not agent.has_failed:
                agent.fail()
            case "finish" if agent.is_working and not agent.has_failed:
                agent.presence.report_state("finished", generation=agent.generation)
                self.has_finished = True
            case "step" if agent.is_working:
                self.steps += 1
                agent.step(self.steps)
            case "turn" if not agent.is_frozen:
                agent.turn()

    @rule()
    def everybody_has_a_turn(self) -> None:
        self.job.turn(2)
        self.job.come_all()

    @rule(seconds=st.sampled_from([0.1, 1.1, 2.1, 6.0, 17.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.job.etcd.advance(seconds)

    @rule()
    def history_is_compacted(self) -> None:
        self.job.etcd.compacted = self.job.etcd.revision

    @rule(members=st.sets(some, min_size=1), going=st.sets(some, max_size=2), new=st.sets(some), floor=st.integers(0, 9))
    def a_controller_speaks(self, members: set[str], going: set[str], new: set[str], floor: int) -> None:
        rules = self.job.rules
        leaving = tuple(Leaving(name, "disruption", when_replaced=index > 0) for index, name in enumerate(sorted(going)))
        self.job.expect(
            *sorted(members), sizes=rules.sizes, leaving=leaving, floor=floor, grace_s=5.0, state_s=5.0, newcomers=tuple(sorted(new))
        )

    @rule()
    def the_controller_goes(self) -> None:
        self.job.etcd.remove(EXPECTED)

    @rule(
        where=st.sampled_from([WORLD, EXPECTED, PROGRESS, "members/w0", "members/w9", "x"]),
        what=st.sampled_from([b"", b"{}", b"\x80\x04.", None]),
    )
    def somebody_without_the_token_writes(self, where: str, what: bytes | None) -> None:
        for agent in self.job.agents.values():  # until a member has written that it entered, the world's own key alone knows of it
            agent.is_frozen = agent.link.is_cut = agent.link.is_deaf = False
        self.job.turn(8)
        if what is None:
            self.job.etcd.remove(where)
        else:
            self.job.etcd.write(where, what)

    @rule()
    def calm_follows(self) -> None:
        """Check that after any history, with good links, all agents that may work soon do, and that nothing is written then."""
        for name, agent in list(self.job.agents.items()):
            agent.is_frozen = agent.link.is_cut = agent.link.is_deaf = False
            agent.turn()
            if agent.presence.refused:
                self.job.end(name)
        for _ in range(35):
            self.job.live(2, step_s=1.0)
            self.everybody_steps()
        self.job.live(10, step_s=1.0)
        written = self.job.etcd.writes
        self.job.live(20, step_s=1.0)
        assert self.job.etcd.writes == written, "at rest nothing is written"
        if self.has_finished:
            return
        expected = self.job.etcd.open(EXPECTED)
        away = {one.member for one in expected.leaving} if expected is not None else set()
        count = len([n for n in self.job.agents if n not in away and (expected is None or n in expected.members)])
        if expected is not None:
            kept = [one for one in expected.leaving if one.when_replaced and one.member in self.job.agents]
            count += min(len(kept), max(0, len(expected.members) - count))
        allowed = [size for size in self.job.rules.sizes or range(1, 5) if self.job.rules.min <= size <= min(4, count)]
        if allowed:
            working = [agent for agent in self.job.agents.values() if agent.is_working and not agent.view.reform]
            assert len(self.job.names()) == max(allowed), self.describe()
            assert {agent.name for agent in working} == set(self.job.names()), self.describe()

    def everybody_steps(self) -> None:
        """Make a step if the training has ever reported one."""
        self.steps += bool(self.steps)
        for agent in self.job.agents.values():
            if self.steps and agent.is_working:
                agent.step(self.steps)

    def describe(self) -> Any:
        return self.job.world(), {agent.name: vars(agent.view) for agent in self.job.agents.values()}

    @invariant()
    def a_new_world_keeps_to_the_rules(self) -> None:
        if not hasattr(self, "job"):
            return
        worlds = self.job.etcd.worlds
        for (world, _), (before, _) in zip(worlds[1:], worlds, strict=False):
            assert world.generation > before.generation, "generations strictly grow"
        for world, expected in worlds[self.seen :]:
            rules = self.job.rules
            assert rules.min <= len(world.seats) <= rules.max
            assert not rules.sizes or len(world.seats) in rules.sizes
            assert len({seat.name for seat in world.seats}) == len(world.seats)
            assert expected is None or world.generation > expected.floor
        self.seen = len(worlds)

    @invariant()
    def every_belief_is_a_world_that_was_sealed(self) -> None:
        if not hasattr(self, "job"):
            return
        sealed = {world.generation: world for world, _ in self.job.etcd.worlds}
        for agent in [*self.job.agents.values(), *self.job.ended]:
            assert agent.entered == sorted(set(agent.entered)), "an agent's generations strictly increase"
            if agent.entered:
                world = sealed[agent.held.generation]
                assert world.seats[agent.held.rank].name == agent.name
                assert (len(world.seats), world.store) == (agent.held.size, agent.held.store)

    @invariant()
    def what_lies_in_etcd_is_bounded(self) -> None:
        if hasattr(self, "job"):
            assert len([name for name in self.job.etcd.keys if name.startswith(PREFIX + MEMBERS)]) <= len(NAMES) + 1


LAWS = settings(
    max_examples=30,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(HypothesisPhase.explicit, HypothesisPhase.reuse, HypothesisPhase.generate, HypothesisPhase.shrink),
)
TestMembership = Membership.TestCase
TestMembership.settings = LAWS
