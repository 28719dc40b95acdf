"""A server that is cut off hears no members. It must not take that for their loss, and must not miss that they are lost."""

import math
import socket
import time

import pytest
from rendezvous_group import BEAT_S, Group

from elastic.membership.wire import Beat, Budget, Expectation, Held
from elastic_training.rendezvous.engine.events import Tick
from elastic_training.rendezvous.engine.reach import DOUBT_S
from elastic_training.rendezvous.engine.views import summary
from elastic_training.rendezvous.server.hub import Hub
from elastic_training.rendezvous.server.signs import Signs
from elastic_training.rendezvous.server.tcp_info import answered_at


class Partition(Group):
    """A group whose server hears of its controller, and may be cut off from all the others but some members on its own node."""

    is_cut_off = False
    is_controller_there = True
    reached_at = -math.inf

    def apply(self, event: object) -> None:
        if isinstance(event, Tick):
            if self.is_controller_there and not self.is_cut_off:
                self.reached_at = self.now
            event = Tick(self.reached_at)
        super().apply(event)  # type: ignore[arg-type]

    def cut_off(self, *, but: tuple[str, ...] = ()) -> None:
        """Let nothing come from the agents, without breaking a connection."""
        self.is_cut_off = True
        for name, agent in self.agents.items():
            agent.is_linked = name in but

    def heal(self, *names: str) -> None:
        self.is_cut_off = False
        for name in names or tuple(self.agents):
            if not self.agents[name].is_linked:
                self.link(name)


def partition_of(size: int) -> Partition:
    group = Partition()
    group.expect(*(f"w{rank}" for rank in range(size)))
    for rank in range(size):
        group.start(f"w{rank}")
    assert len(group.world()) == size
    group.advance(3 * BEAT_S)
    return group


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("cut_s", [14.0, 18.0, 25.0, 50.0, 300.0])
@pytest.mark.parametrize("is_controller_late", [False, True])
def test_a_server_that_was_cut_off_ends_no_world_that_trains(size: int, cut_s: float, *, is_controller_late: bool) -> None:
    """It sealed a world of one as the first member came back, then one of three."""
    group = partition_of(size)
    group.cut_off()
    group.advance(cut_s)
    group.is_cut_off = is_controller_late
    for name in group.agents:
        group.advance(2.0)
        group.link(name)
    group.is_cut_off = False
    group.advance(60)
    assert len(group.sealed) == 1
    assert not any(agent.view.reform for agent in group.agents.values())
    assert not group.job.accounting.restarts
    assert not group.job.accounting.losses


@pytest.mark.parametrize("cut_s", [25.0, 50.0])
def test_members_on_the_node_that_was_cut_off_with_the_server_do_not_show_that_it_is_reached(cut_s: float) -> None:
    group = partition_of(3)
    group.cut_off(but=("w0",))
    group.advance(cut_s)
    assert not group.agents["w0"].view.reform
    group.heal()
    group.advance(60)
    assert len(group.sealed) == 1


@pytest.mark.parametrize("lost", [("w2",), ("w1", "w2"), ("w0", "w1", "w2")])
def test_members_of_a_lost_node_are_missed_in_time_if_the_controller_is_there(lost: tuple[str, ...]) -> None:
    group = partition_of(3)
    for name in lost:
        group.agents[name].is_linked = False
    group.advance(21)
    assert group.job.membership.members.keys() == {"w0", "w1", "w2"} - set(lost)
    if len(lost) < 3:
        for name in group.agents.keys() - set(lost):
            group.come(name)
        assert group.world().keys() == {"w0", "w1", "w2"} - set(lost)


def test_a_few_silent_members_are_missed_without_a_controller() -> None:
    group = partition_of(3)
    group.is_controller_there = False
    group.agents["w2"].is_linked = False
    group.advance(20.5)
    assert group.agents["w0"].view.reform == "w2 was silent for 19 s"


def test_half_of_a_job_is_missed_once_the_next_controller_leads() -> None:
    """The server cannot tell whether it is cut off until then, and gives them time to come back."""
    group = partition_of(2)
    group.is_controller_there = False
    group.agents["w1"].is_linked = False
    group.advance(40)
    assert not group.agents["w0"].view.reform
    group.is_controller_there = True
    group.advance(14)
    assert not group.agents["w0"].view.reform
    group.advance(4)
    assert group.agents["w0"].view.reform == "w1 was silent for 19 s"


DEAD_AT_MOST_S = 9.5 + DOUBT_S + 15.0 + 1.0


@pytest.mark.parametrize("sign_every_s", [math.inf, 60.0, 30.0, 12.0, 6.0])
@pytest.mark.parametrize("size", [2, 4])
def test_half_of_a_job_is_missed_in_bounded_time_though_the_controller_is_away_or_comes_and_goes(size: int, sign_every_s: float) -> None:
    group = partition_of(size)
    group.is_controller_there = False
    for rank in range(size // 2, size):
        group.agents[f"w{rank}"].is_linked = False
    began = group.now
    while not group.agents["w0"].view.reform:
        group.advance(1)
        if sign_every_s < math.inf and (group.now - began) % sign_every_s < 1:
            group.reached_at = group.now
        assert group.now - began <= DEAD_AT_MOST_S
    assert group.agents["w0"].view.reform == f"w{size // 2} was silent for 19 s"


@pytest.mark.parametrize("is_controller_there", [True, False])
def test_members_that_miss_beats_in_turn_keep_no_lost_member_in_the_world_for_ever(*, is_controller_there: bool) -> None:
    """Each is silent for nearly as long as it may, so that with the lost one half of the job always is."""
    group = partition_of(4)
    group.is_controller_there = is_controller_there
    for agent in group.agents.values():
        agent.is_linked = False
    for turn in range(40):
        group.agents[f"w{1 + turn % 3}"].is_linked = True
        group.say(f"w{1 + turn % 3}", Beat())
        group.agents[f"w{1 + turn % 3}"].is_linked = False
        group.advance(6)
        if "w0" not in group.job.membership.members:
            break
    assert 6 * turn <= (45 if is_controller_there else DEAD_AT_MOST_S + 19)


def test_after_a_doubt_that_was_wrong_the_next_one_lasts_as_long() -> None:
    group = partition_of(2)
    group.cut_off(but=("w0",))
    group.advance(100)
    group.heal()
    group.advance(30)
    assert group.job.timings.first_doubt_at is None
    group.cut_off(but=("w0",))
    group.advance(100)
    group.heal()
    group.advance(60)
    assert len(group.sealed) == 1


@pytest.mark.parametrize("lost", [1, 2])
def test_members_of_a_server_that_no_controller_listens_to_are_missed_in_time(lost: int) -> None:
    """Somebody uses the server by hand: the job was expected once, and nobody reads its worlds."""
    group = Group()
    group.expect("w0", "w1")
    for name in ("w0", "w1"):
        group.start(name)
    group.world()
    for name in ("w1", "w0")[:lost]:
        group.agents[name].is_linked = False
    group.advance(21)
    assert len(group.job.membership.members) == 2 - lost


def test_messages_while_the_server_was_cut_off_wait_for_the_controllers_next_message() -> None:
    """The job was suspended meanwhile: one worker had ended when the server was reached again, and two were still ending.

    The server called them into a world of two and counted a disruption, which a budget of none takes for the end of the job.
    """
    group = partition_of(3)
    group.expect("w0", "w1", "w2", budget=Budget(by_cause={"disruption": 0}))
    group.cut_off()
    group.advance(50)
    group.heal()
    group.leave("w0")
    group.advance(2)
    assert group.job.timings.doubt_since is None
    assert summary(group.job).asks
    assert not group.agents["w1"].view.reform
    group.advance(10)
    assert not group.job.accounting.restarts
    assert not group.job.accounting.closed


def test_the_controllers_message_after_a_doubt_lets_the_server_decide_at_once() -> None:
    group = partition_of(3)
    group.cut_off()
    group.advance(50)
    group.heal()
    group.leave("w0")
    group.advance(2)
    group.expect("w0", "w1", "w2", pending=("w0",))
    assert not summary(group.job).asks
    assert group.agents["w1"].view.reform == "w0 left: SIGTERM"
    for name in ("w1", "w2"):
        group.come(name)
    group.advance(6)
    assert group.world().keys() == {"w1", "w2"}
    assert group.job.accounting.restarts == {"disruption": 1}


def test_a_controller_that_does_not_answer_after_a_doubt_is_waited_for_as_long_as_members_are() -> None:
    """It may be of an older release, which does not know that it is asked."""
    group = partition_of(3)
    group.cut_off()
    group.advance(50)
    group.heal()
    group.leave("w0")
    group.advance(14)
    assert not group.agents["w1"].view.reform
    group.advance(3)
    assert group.agents["w1"].view.reform == "w0 left: SIGTERM"


def test_a_member_that_does_not_come_back_after_the_server_was_cut_off_is_missed() -> None:
    group = partition_of(3)
    group.cut_off()
    group.advance(50)
    group.heal("w0", "w1")
    group.advance(14)
    assert not group.agents["w0"].view.reform
    group.advance(10)
    assert group.agents["w0"].view.reform == "w2 was silent for 19 s"


def test_connections_that_break_after_they_were_silent_are_given_time_and_others_a_second() -> None:
    """A server that is reached again first hears that the connections are gone which its members gave up."""
    group = partition_of(3)
    group.cut_off()
    group.advance(50)
    group.is_cut_off = False
    for name in group.agents:
        group.cut(name)
    group.advance(5)
    group.heal()
    group.advance(60)
    assert len(group.sealed) == 1
    for name in ("w1", "w2"):
        group.cut(name)
    group.advance(1.5)
    assert group.agents["w0"].view.reform, "half of the job and more broke off, and the server hears that: it is reached"


def test_the_stream_of_a_controller_of_release_0_4_is_a_sign_of_it_as_it_was_there() -> None:
    now, answered = [100.0], [99.0]
    signs = Signs(lambda: now[0])
    signs.led(0)
    assert signs.last_at() == math.inf, "nobody has listened yet"
    with signs.listening(lambda: answered[0]):
        assert signs.last_at() == 100.0, "as its stream opened"
        now[0], answered[0] = 107.0, 105.0
        assert signs.last_at() == 105.0
        answered[0] = -math.inf
        assert signs.last_at() == 105.0
    with signs.listening(lambda: math.inf):
        now[0] = 120.0
        assert signs.last_at() == 120.0, "a transport that cannot tell counts while it is open"
    now[0] = 130.0
    assert signs.last_at() == 120.0


def test_only_a_controller_that_leads_in_the_newest_term_gives_signs() -> None:
    """A standby on the cut-off node kept its stream to the server open. The server took that for a sign that it was reached.

    It gave up the other half of the job, and formed a world of one while its successor formed a world of two.
    """
    now = [100.0]
    signs = Signs(lambda: now[0])
    with signs.listening(None):
        assert signs.led(7)
        now[0] = 110.0
        assert signs.last_at() == 100.0, "a standby listens"
        with signs.listening(None):
            assert signs.last_at() == 100.0, "a former leader started again, and listens"
        assert not signs.led(6), "a former leader speaks"
        assert signs.last_at() == 100.0
        assert signs.led(8)
        assert signs.last_at() == 110.0


async def test_an_expectation_is_a_sign_of_the_leader_unless_it_is_of_a_former_one() -> None:
    now = [100.0]
    hub = Hub(instance="s1", clock=lambda: now[0])
    with hub.signs.listening(None):
        hub.expect("job", Expectation(members=("w0",), min=1, max=1, term=3))
        now[0] = 107.0
        assert not hub.expect("job", Expectation(members=("w0",), min=1, max=1, term=2))
        hub.expect("other", Expectation(members=("w0",), min=1, max=1, term=2))
        assert hub.signs.last_at() == 100.0
        hub.expect("job", Expectation(members=("w0",), min=1, max=1, term=3))
        assert hub.signs.last_at() == 107.0
    hub.forget("job")
    hub.forget("other")


def test_the_kernel_knows_when_the_other_side_of_a_connection_answered_last() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        peer, _ = server.accept()
        with peer:
            time.sleep(0.3)
            before = time.monotonic()
            assert answered_at(client, now=before) < before - 0.2
            client.send(b"x")
            time.sleep(0.05)
            now = time.monotonic()
            assert before - 0.05 <= answered_at(client, now=now) <= now
    assert answered_at(client, now=now) == -math.inf
    assert answered_at(None, now=now) == math.inf


def test_a_server_whose_successor_formed_a_newer_world_decides_nothing_before_the_leader_gives_it_a_sign() -> None:
    """A worker comes back to a server that was cut off, with the world of the server that replaced it.

    The worker stops there, and stands at the barrier. Only the leader's sign shows which of the two servers is in use.
    """
    group = partition_of(2)
    group.is_controller_there = False
    agent = group.agents["w0"]
    group.cut("w0")
    agent.held = Held(id="successor-2", generation=2, rank=0, size=2)
    group.link("w0")
    assert agent.view.reform == "the world went on without this member"
    group.come("w0")
    group.advance(DOUBT_S - 10)
    assert (len(group.sealed), group.agents["w1"].view.reform) == (1, "")
    group.is_controller_there = True
    group.advance(2)
    assert summary(group.job).asks
    group.retell()
    group.advance(1)
    group.come_all()
    group.advance(6)
    assert [agent.generation for agent in group.agents.values()] == [3, 3]


def test_a_server_decides_in_bounded_time_though_no_leader_says_whether_it_has_a_successor() -> None:
    group = partition_of(2)
    group.is_controller_there = False
    group.cut("w0")
    group.agents["w0"].held = Held(id="successor-2", generation=2, rank=0, size=2)
    group.link("w0")
    group.come("w0")
    group.advance(DOUBT_S + 17)
    group.come_all()
    group.advance(6)
    assert len(group.sealed) == 2
