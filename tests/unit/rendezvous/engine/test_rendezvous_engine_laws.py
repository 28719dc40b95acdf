"""Laws of the membership engine, against any order, loss, repetition and delay of events, and restarts of the server."""

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import Phase as HypothesisPhase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from rendezvous_group import Group

from elastic.membership.wire import Budget, LeaveOrder, Ready
from elastic_training.rendezvous.engine.choose import leave_notice
from elastic_training.rendezvous.engine.events import Said, Stepped, Tick
from elastic_training.rendezvous.engine.messages.in_place import Formed, Stage, Unable, Unformed
from elastic_training.rendezvous.engine.state.membership import MemberPhase

NAMES = tuple(f"w{index}" for index in range(5))
some = st.sampled_from(NAMES)


class Membership(RuleBasedStateMachine):
    """Agents come, go, fail and lose their links in any order; the engine must never lie and always get on."""

    @initialize(least=st.integers(1, 3), sizes=st.sampled_from([(), (), (1, 2, 4), (2, 3)]), hang_s=st.sampled_from([None, 30.0]))
    def begin(self, least: int, sizes: tuple[int, ...], hang_s: float | None) -> None:
        self.group = Group()
        self.late: list[Said] = []
        least = min(least, min(sizes, default=least))
        self.group.expect(*NAMES[:3], min=least, max=4, sizes=sizes, budget=Budget(hang_s=hang_s))

    @rule(members=st.sets(some, min_size=1), going=st.sets(some, max_size=2))
    def the_controller_speaks(self, members: set[str], going: set[str]) -> None:
        assert self.group.expectation is not None
        leave = tuple(LeaveOrder(member=name, by_s=30) for name in sorted(going))
        self.group.expectation = replace(self.group.expectation, members=tuple(sorted(members)), leaving=leave)
        self.group.retell()

    @rule(name=some)
    def an_agent_starts(self, name: str) -> None:
        self.group.start(name)

    @precondition(lambda self: self.group.agents)
    @rule(
        data=st.data(),
        what=st.sampled_from(["kill", "leave", "cut", "cut unnoticed", "link", "come", "come asked", "fail", "finish", "late"]),
    )
    def something_happens_to_an_agent(self, data: st.DataObject, what: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.group.agents)))
        agent = self.group.agents[name]
        match what:
            case "kill":
                self.group.kill(name)
            case "leave" if agent.is_linked:
                self.group.leave(name)
            case "cut":
                self.group.cut(name)
            case "cut unnoticed":
                self.group.cut(name, noticed=False)
            case "link":
                self.group.link(name)
            case "come" if agent.is_working:
                self.group.come(name)
            case "come asked" if agent.is_working and agent.view.reform:
                self.group.come(name)
            case "fail" if agent.is_working and agent.is_linked:
                self.group.fail(name)
            case "late":
                self.late.append(Said(name, agent.incarnation, Ready(after=agent.generation, store="late:1")))

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def a_message_comes_late_or_again(self, data: st.DataObject) -> None:
        """Repeat a message about a world that its agent has left, as if the network had held it up."""
        said = data.draw(st.sampled_from(self.late))
        agent = self.group.agents.get(said.member)
        if agent is None or agent.incarnation != said.incarnation or agent.generation > said.message.after or agent.is_ready:
            self.group.apply(said)

    @rule(step=st.integers(0, 9), is_now=st.booleans())
    def training_reports_a_step(self, step: int, is_now: bool) -> None:
        self.group.started(*(name for name, agent in self.group.agents.items() if agent.is_working))
        self.group.apply(Stepped(self.group.job.membership.generation if is_now else 1, step))

    @rule()
    def the_server_restarts(self) -> None:
        self.group.start_server()

    @rule()
    def the_controller_repeats_itself(self) -> None:
        self.group.retell()

    @rule(seconds=st.sampled_from([0.1, 1.1, 6.0, 17.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.group.advance(seconds)

    @rule(seconds=st.sampled_from([-5000.0, -1.0, 3600.0]))
    def the_clock_jumps(self, seconds: float) -> None:
        """Jump backwards, which must not matter, or forwards, like a machine that slept."""
        now = self.group.now
        self.group.now += seconds
        self.group.apply(Tick())
        self.group.now = max(now, self.group.now)

    @rule()
    def calm_follows(self) -> None:
        """Keep all links and let asked members come: all members that may work soon do, after any history."""
        group = self.group
        group.retell()
        for name in list(group.agents):
            if group.agents[name].is_refused:
                del group.agents[name]
            elif not group.agents[name].is_linked:
                group.link(name)
        for _ in range(8):
            self.answer()
            group.come_all()
            group.advance(20)
        assert group.expectation is not None
        staying = [n for n in group.agents if leave_notice(group.job.membership, n, now=group.now) is None and not self._is_finished(n)]
        allowed = [size for size in group.expectation.sizes or range(1, 5) if group.expectation.min <= size <= min(4, len(staying))]
        finished = any(m.phase is MemberPhase.FINISHED for m in group.job.membership.members.values())
        if allowed and not finished:
            assert len(group.world()) == max(allowed), (group.job, group.agents)

    def answer(self) -> None:
        """Let the processes of the members answer; without changes in process nobody asks them anything."""

    def _is_finished(self, name: str) -> bool:
        member = self.group.job.membership.members.get(name)
        return member is not None and member.phase is MemberPhase.FINISHED

    @invariant()
    def every_belief_is_a_world_that_was_sealed(self) -> None:
        if not hasattr(self, "group"):
            return
        for agent in self.group.agents.values():
            if agent.held is not None:
                seats = self.group.sealed[agent.held.id]
                assert seats[agent.held.rank] == agent.name
                assert len(seats) == agent.held.size
            assert agent.entered == sorted(set(agent.entered)), "an agent's generations strictly increase"

    @invariant()
    def a_new_world_keeps_to_the_rules(self) -> None:
        if not hasattr(self, "group"):
            return
        for seats, expectation in self.group.new_worlds:
            assert len(set(seats)) == len(seats)
            if expectation is not None:
                assert expectation.min <= len(seats) <= expectation.max
                assert not expectation.sizes or len(seats) in expectation.sizes
        self.group.new_worlds.clear()


class Living(Membership):
    """The same members, most of which have processes that live on when the world changes."""

    @precondition(lambda self: self.group.agents)
    @rule(
        data=st.data(),
        what=st.sampled_from(["hello", "obey", "obey", "train", "complain", "die", "is replaced", "end loop", "unformed", "stale"]),
    )
    def something_happens_to_processes(self, data: st.DataObject, what: str) -> None:
        group = self.group
        name = data.draw(st.sampled_from(sorted(group.agents)))
        agent = group.agents[name]
        is_here = agent.is_linked and not agent.is_refused
        match what:
            case "hello" if is_here and not agent.workers and (agent.is_working or agent.is_provisional):
                group.hello(name)
            case "obey" if is_here:
                group.obey(name)
            case "train" if is_here and agent.workers and agent.is_working and agent.formed == agent.round:
                group.train(name, step=(agent.trained or 0) + 1)
            case "complain" if is_here and agent.workers:
                group.complain(name)
            case "die" if is_here and agent.workers and agent.held is not None:
                group.fail(name)
                group.come(name)
            case "is replaced" if is_here and agent.workers and agent.held is not None:
                group.fail(name, replaced=True)
            case "end loop" if is_here and agent.workers and agent.is_working:
                agent.workers = 0
                group.say(name, Unable(words="the loop has ended"))
            case "unformed" if is_here and agent.workers:
                group.say(name, Unformed(round=agent.round, words="Connection refused"))
            case "stale" if is_here and agent.workers:
                group.say(name, Formed(round=data.draw(st.integers(0, agent.round))))

    @rule()
    def calm_follows(self) -> None:
        """Keep all links and let processes answer: all members that may train soon do, in one world, after any history."""
        group = self.group
        for _ in range(4):
            self.answer()
            group.come_all()
            group.advance(1)
        super().calm_follows()
        group.obey_all()
        stages = {agent.view.change.stage for agent in group.agents.values() if agent.view.change is not None and agent.is_working}
        assert stages <= {Stage.RUN, Stage.PLAIN}, (group.job, group.agents)

    def answer(self) -> None:
        """Let new processes say hello, and all processes answer."""
        group = self.group
        for name, agent in group.agents.items():
            if agent.is_linked and not agent.is_refused and not agent.workers and (agent.is_working or agent.is_provisional):
                group.hello(name)
        group.obey_all()

    @invariant()
    def the_donors_of_a_world_hold_its_state(self) -> None:
        if not hasattr(self, "group"):
            return
        change, world = self.group.job.in_place, self.group.job.membership.world
        if change.stage is not Stage.FORM or change.is_adopted or world is None:
            return
        donors = [self.group.agents.get(str(world.by_rank[rank])) for rank in change.donors]
        assert all(donor is None or not donor.workers or donor.trained in (change.step, None) for donor in donors), (change, donors)
        if change.step:
            assert any(donor is None or not donor.workers or donor.trained is not None for donor in donors), (change, donors)

    @invariant()
    def a_world_that_trains_has_one_state(self) -> None:
        if not hasattr(self, "group"):
            return
        change = self.group.job.in_place
        if change.stage is not Stage.RUN:
            return
        world = self.group.job.membership.world
        assert world is not None
        inside = [self.group.agents[name] for name in world.ranks if name in self.group.agents]
        assert all(agent.formed == change.round or not agent.workers or not agent.is_linked for agent in inside), inside


class TwoServers(RuleBasedStateMachine):
    """Two servers serve one job by mistake: worlds may come twice, but nobody is led to believe in another's."""

    @initialize()
    def begin(self) -> None:
        self.groups = (Group(), Group())
        self.groups[1].starts = 1000
        self.groups[1].start_server(up_for_s=100)
        for group in self.groups:
            group.expect(*NAMES[:3], min=1, max=3)

    @rule(name=some, server=st.integers(0, 1))
    def an_agent_starts(self, name: str, server: int) -> None:
        if name not in self.groups[1 - server].agents:
            self.groups[server].start(name)

    @precondition(lambda self: any(group.agents for group in self.groups))
    @rule(data=st.data())
    def an_agent_turns_to_the_other_server(self, data: st.DataObject) -> None:
        server = data.draw(st.sampled_from([index for index in (0, 1) if self.groups[index].agents]))
        name = data.draw(st.sampled_from(sorted(self.groups[server].agents)))
        agent = self.groups[server].agents[name]
        self.groups[server].kill(name)
        self.groups[1 - server].agents[name] = agent
        self.groups[1 - server].link(name)

    @rule(seconds=st.sampled_from([0.1, 1.1, 6.0, 17.0]))
    def time_passes(self, seconds: float) -> None:
        for group in self.groups:
            group.come_all()
            group.advance(seconds)

    @invariant()
    def every_belief_is_a_world_that_was_sealed(self) -> None:
        if not hasattr(self, "groups"):
            return
        sealed = {**self.groups[0].sealed, **self.groups[1].sealed}
        assert len(sealed) == len(self.groups[0].sealed) + len(self.groups[1].sealed), "no two worlds share an id"
        for agent in (agent for group in self.groups for agent in group.agents.values()):
            assert agent.entered == sorted(set(agent.entered))
            if agent.held is not None:
                assert sealed[agent.held.id][agent.held.rank] == agent.name


LAWS = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(HypothesisPhase.explicit, HypothesisPhase.reuse, HypothesisPhase.generate, HypothesisPhase.shrink),
)
TestTwoServers = TwoServers.TestCase
TestTwoServers.settings = LAWS
TestLiving = Living.TestCase
TestLiving.settings = LAWS
TestMembership = Membership.TestCase
TestMembership.settings = LAWS
