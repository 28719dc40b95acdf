"""Ranks say how long they need for their steps: the rendezvous names those that the others wait for, and what slows them."""

import msgspec
import pytest
from rendezvous_group import Group

from elastic.membership.codec import Decoder, encode
from elastic.membership.wire import Budget, FromMember, WorldReport
from elastic_training.rendezvous.engine.messages.pace import MOST_STRAGGLERS, Pace, Paces, Slowness, Straggler
from elastic_training.rendezvous.engine.pace_words import sentence
from elastic_training.rendezvous.engine.step import begin
from elastic_training.rendezvous.engine.stragglers import CALM_WINDOWS, STALE_S, WINDOWS, window_s
from elastic_training.rendezvous.engine.values import replace
from elastic_training.rendezvous.engine.views import summary

WINDOW_S = 10.0
FAST = {"compute": 0.2, "data": 0.01}


class Measured(Group):
    """A group whose ranks measure their steps. `needs`: the seconds a step of each member's ranks, by part."""

    def __init__(self, size: int, *, workers: int = 1) -> None:
        super().__init__()
        self.names = [f"w{number}" for number in range(size)]
        self.expect(*self.names, max=size, budget=Budget(pace_s=WINDOW_S))
        for name in self.names:
            self.start(name)
        self.needs: dict[str, list[dict[str, float]]] = {name: [dict(FAST) for _ in range(workers)] for name in self.names}
        self.throttled: dict[str, int] = {}
        self.published: list[tuple[Straggler, ...] | None] = []

    def slow(self, member: str, local_rank: int = 0, **parts: float) -> None:
        self.needs[member][local_rank] |= parts

    def heal(self, member: str) -> None:
        self.needs[member] = [dict(FAST) for _ in self.needs[member]]

    def windows(self, count: int, *, silent: tuple[str, ...] = (), waits: bool = True) -> None:
        """Let each rank measure so many windows."""
        for _ in range(count):
            self.advance(WINDOW_S)
            step_s = max(sum(rank.values()) for ranks in self.needs.values() for rank in ranks)
            for name, ranks in self.needs.items():
                if name in silent or name not in self.agents:
                    continue
                paces = tuple(pace(**rank, wait=step_s - sum(rank.values()) if waits else 0.0) for rank in ranks)
                told = Paces(
                    generation=self.job.membership.generation, workers=paces, throttled=self.throttled.get(name, 0), milli_cpus=1000
                )
                self.say(name, told)
            self.published.append(self.found)

    @property
    def found(self) -> tuple[Straggler, ...] | None:
        return summary(self.job).stragglers

    @property
    def named(self) -> list[tuple[int, Slowness]]:
        return [(one.rank, one.kind) for one in self.found or ()]

    def rank(self, member: str) -> int:
        world = self.job.membership.world
        assert world is not None
        return world.ranks[member]


def pace(*, compute: float = 0.0, data: float = 0.0, outside: float = 0.0, wait: float = 0.0) -> Pace:
    values = {f"{name}_us": round(1e6 * seconds) for name, seconds in locals().items()}
    return Pace(steps=max(1, round(WINDOW_S / (compute + data + outside + wait))), **values)


def test_a_rank_that_computes_slowly_is_named_after_several_windows_until_it_is_fast_again() -> None:
    group = Measured(4)
    group.windows(WINDOWS)
    assert group.found == ()
    group.slow("w3", compute=0.45)
    group.windows(WINDOWS - 1)
    assert group.found == (), "it was slow for too short a time"
    group.windows(1)
    (found,) = group.found or ()
    assert (found.rank, found.member, found.kind, found.percent, found.among) == (group.rank("w3"), "w3", Slowness.COMPUTE, 219, 4)
    assert sentence(found, place_of=lambda pod: f"{pod} on node-7") == (
        "rank 3 (w3 on node-7) needs 2.2 times the median of 0.21 s a step: it computes for 0.45 s a step, and the median is 0.2 s; "
        "compare its node with the others, and its share of the work"
    )
    group.windows(10)
    assert group.found == (found,), "its figures are of the time at which it was found, so that nobody hears of it again and again"
    group.heal("w3")
    group.windows(CALM_WINDOWS - 1)
    assert group.found == (found,)
    group.windows(1)
    assert group.found == ()


def test_the_figures_of_a_rank_are_those_against_the_most_ranks_it_was_compared_with() -> None:
    """A rank whose windows come late is missing from the first comparisons."""
    group = Measured(3)
    group.slow("w1", compute=0.6)
    group.windows(WINDOWS + 1, silent=("w2",))
    assert [one.among for one in group.found or ()] == [2]
    group.windows(2)
    (found,) = group.found or ()
    assert (found.member, found.among) == ("w1", 3)
    group.windows(2, silent=("w2",))
    assert group.found == (found,)


@pytest.mark.parametrize(
    ("parts", "throttled", "kind", "words"),
    [
        ({"data": 0.4}, 0, Slowness.DATA, "it waits for samples for 0.4 s a step, and the median is 10 ms"),
        ({"outside": 0.4}, 0, Slowness.OUTSIDE, "it works between steps for 0.4 s a step, and the median is 0 ms"),
        ({"compute": 0.6, "data": 0.2}, 0, Slowness.COMPUTE, "it computes for 0.6 s a step"),
        (
            {"compute": 0.6},
            87,
            Slowness.THROTTLED,
            "because it uses up its limit of 1 CPU in 87 % of the periods; raise",
        ),
        ({"data": 0.6}, 30, Slowness.THROTTLED, "in 30 % of the periods"),
    ],
)
def test_the_part_in_which_a_rank_is_slowest_is_the_kind_of_its_slowness(
    parts: dict[str, float], throttled: int, kind: Slowness, words: str
) -> None:
    group = Measured(3)
    group.slow("w1", **parts)
    group.throttled = {"w1": throttled}
    group.windows(WINDOWS)
    assert group.named == [(1, kind)]
    assert words in sentence((group.found or ())[0])


def sends(group: Measured, member: str, *, send: float, usual: float, step: float) -> None:
    """Let all ranks compute alike, and one need so long to send."""
    for _ in range(WINDOWS):
        group.advance(WINDOW_S)
        for name in group.names:
            send_us = round(1e6 * (send if name == member else usual))
            told = Pace(steps=50, compute_us=100_000, wait_us=round(1e6 * step) - 100_000, send_us=send_us)
            group.say(name, Paces(generation=group.job.membership.generation, workers=(told,), throttled=90))


def test_a_rank_that_sends_slowly_while_all_compute_alike_is_named_with_its_network() -> None:
    group = Measured(4)
    sends(group, "w2", send=0.08, usual=0.016, step=0.2)
    assert sentence((group.found or ())[0]) == (
        "rank 2 (w2) needs 5.0 times the median of 16 ms a step to send: the network of its node is slow, or that of the rank to which it "
        "sends; compare the network of these nodes with that of the others"
    )


@pytest.mark.parametrize(("send", "usual", "step"), [(0.08, 0.05, 0.2), (0.08, 0.001, 0.4), (0.0, 0.0, 0.2)])
def test_sending_that_is_usual_or_short_names_nobody(send: float, usual: float, step: float) -> None:
    group = Measured(4)
    sends(group, "w2", send=send, usual=usual, step=step)
    assert group.found == ()


def test_a_rank_that_computes_slowly_has_no_slow_network_because_of_it() -> None:
    group = Measured(3)
    for _ in range(WINDOWS):
        group.advance(WINDOW_S)
        for name in group.names:
            slow = Pace(steps=20, compute_us=400_000, wait_us=50_000, send_us=300_000)
            told = slow if name == "w1" else Pace(steps=20, compute_us=100_000, wait_us=350_000, send_us=1)
            group.say(name, Paces(generation=group.job.membership.generation, workers=(told,)))
    assert group.named == [(1, Slowness.COMPUTE)]


def test_throttling_that_all_ranks_have_explains_no_slow_rank() -> None:
    group = Measured(3)
    group.slow("w1", compute=0.6)
    group.throttled = {"w0": 60, "w1": 70, "w2": 60}
    group.windows(WINDOWS)
    assert group.named == [(1, Slowness.COMPUTE)]


def test_another_kind_replaces_the_first_one_once_it_lasts() -> None:
    group = Measured(3)
    group.slow("w1", compute=0.6)
    group.windows(WINDOWS)
    group.heal("w1")
    group.slow("w1", data=0.6)
    group.windows(WINDOWS - 1)
    assert group.named == [(1, Slowness.COMPUTE)]
    group.windows(1)
    assert group.named == [(1, Slowness.DATA)]


def test_the_slower_one_of_two_ranks_must_need_twice_the_time_of_the_other() -> None:
    group = Measured(2)
    group.slow("w1", compute=0.38)
    group.windows(2 * WINDOWS)
    assert group.found == ()
    group.slow("w1", compute=0.45)
    group.windows(WINDOWS)
    assert sentence((group.found or ())[0]).startswith(
        "rank 1 (w1) needs 2.2 times the 0.21 s of the other rank a step: it computes for 0.45 s a step, and the other rank for 0.2 s"
    )


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0, "0 ms"), (0.00312, "3.1 ms"), (0.0996, "100 ms"), (0.1, "0.1 s"), (0.2149, "0.21 s"), (9.97, "10 s"), (86400, "86400 s")],
)
def test_durations_are_short_and_plain(seconds: float, words: str) -> None:
    one = Straggler(rank=0, member="w0", local_rank=0, kind=Slowness.COMPUTE, percent=200, own_s=1.0, usual_s=0.5, part_s=seconds, among=3)
    assert f"it computes for {words} a step, and the median is" in sentence(one)


def test_a_rank_about_the_limit_is_told_at_most_once() -> None:
    group = Measured(4)
    for _ in range(20):
        group.slow("w3", compute=0.33)
        group.windows(2)
        group.slow("w3", compute=0.29)
        group.windows(2)
    assert not any(group.published), "it was never slow in enough windows in a row"
    group.slow("w3", compute=0.33)
    group.windows(WINDOWS)
    for _ in range(10):
        group.slow("w3", compute=0.29)
        group.windows(2)
        group.slow("w3", compute=0.33)
        group.windows(2)
    assert group.named == [(3, Slowness.COMPUTE)]
    assert len([1 for old, new in zip(group.published, group.published[1:], strict=False) if old != new]) <= 2


def test_nobody_is_named_if_the_others_do_not_wait_for_it() -> None:
    """Ranks that average their gradients now and then do steps of their own length in between."""
    group = Measured(4)
    group.slow("w3", compute=0.9)
    group.windows(2 * WINDOWS, waits=False)
    assert group.found == ()


def test_a_rank_that_is_slow_in_a_small_part_of_a_step_is_not_named() -> None:
    group = Measured(4)
    for name in group.names:
        group.needs[name] = [{"compute": 0.001}]
    group.needs["w0"] = [{"compute": 0.002}]
    for _ in range(2 * WINDOWS):
        group.advance(WINDOW_S)
        for name, (parts,) in group.needs.items():
            told = pace(compute=parts["compute"], wait=0.1 - parts["compute"])
            group.say(name, Paces(generation=group.job.membership.generation, workers=(told,)))
    assert group.found == ()


def test_ranks_of_one_member_are_told_apart() -> None:
    group = Measured(3, workers=2)
    group.slow("w2", 1, compute=0.9)
    group.windows(WINDOWS)
    assert [(one.rank, one.member, one.local_rank) for one in group.found or ()] == [(5, "w2", 1)]


def test_all_ranks_of_one_of_two_members_are_named() -> None:
    """The shards of a pod wait for each other, so all of them are slow."""
    group = Measured(2, workers=2)
    for local_rank in range(2):
        group.slow("w1", local_rank, compute=0.35)
    group.windows(WINDOWS)
    assert sorted(one.rank for one in group.found or ()) == [2, 3]


def test_a_straggler_keeps_its_name_over_a_change_of_the_world() -> None:
    group = Measured(3)
    group.slow("w2", compute=0.9)
    group.windows(WINDOWS)
    before = group.found
    group.expect("w0", "w1", "w2", "w3", max=4, budget=Budget(pace_s=WINDOW_S))
    group.start("w3")
    group.needs["w3"] = [dict(FAST)]
    group.advance(10)
    group.come_all()
    assert group.job.membership.world is not None
    assert group.job.membership.world.size == 4
    assert group.found == before
    group.windows(3)
    assert [(one.rank, one.member) for one in group.found or ()] == [(group.rank("w2"), "w2")]


def test_a_straggler_is_forgotten_with_its_pod() -> None:
    group = Measured(3)
    group.slow("w2", compute=0.9)
    group.windows(WINDOWS)
    assert group.named
    group.kill("w2")
    group.advance(30)
    assert group.found == ()


def test_nobody_is_named_any_more_if_ranks_stop_measuring_or_must_not() -> None:
    group = Measured(3)
    group.slow("w2", compute=0.9)
    group.windows(WINDOWS)
    assert group.named
    group.advance(STALE_S + 4 * WINDOW_S)
    assert group.found == ()
    group.windows(WINDOWS)
    assert group.named
    group.expect(*group.names, max=3, budget=Budget())
    group.advance(1)
    assert (group.found, {agent.view.pace_s for agent in group.agents.values()}) == ((), {0.0})
    group.windows(2 * WINDOWS)
    assert group.found == (), "what comes late is not heard"


def test_a_new_server_says_nothing_before_it_has_compared_enough() -> None:
    group = Measured(3)
    group.slow("w2", compute=0.9)
    assert summary(begin("job", instance="s2", up_since=0.0, now=1.0)).stragglers is None, "the controller has not spoken yet"
    group.windows(WINDOWS - 1)
    assert group.found is None
    group.windows(1)
    assert group.named == [(2, Slowness.COMPUTE)]


def test_a_member_that_says_nothing_does_not_keep_the_others_from_being_compared() -> None:
    group = Measured(4)
    group.slow("w3", compute=0.9)
    group.windows(WINDOWS + 1, silent=("w0",))
    assert group.named == [(3, Slowness.COMPUTE)]


def test_one_rank_has_nobody_to_be_compared_with() -> None:
    group = Measured(1)
    group.windows(3 * WINDOWS)
    assert group.found is None


def test_windows_of_another_world_or_a_stranger_are_not_heard() -> None:
    group = Measured(3)
    before = group.job.paces
    group.say("w0", Paces(generation=99, workers=(pace(compute=9.0),)))
    assert group.job.paces == before


@pytest.mark.parametrize(("size", "seconds"), [(2, 10.0), (1000, 10.0), (1999, 10.0), (2000, 20.0), (8192, 80.0)])
def test_a_large_world_measures_over_longer_windows(size: int, seconds: float) -> None:
    group = Measured(2)
    world = group.job.membership.world
    assert world is not None
    large = replace(world, by_rank=(*world.by_rank, *([None] * (size - 2))))
    assert window_s(replace(group.job, membership=replace(group.job.membership, world=large))) == seconds


def test_liars_name_nobody_but_themselves() -> None:
    """A majority that tells the truth decides what is usual."""
    group = Measured(5)
    group.needs["w3"] = [{"compute": 0.0}]
    group.needs["w4"] = [{"compute": 0.000001}]
    group.windows(3 * WINDOWS)
    assert group.found == ()


@pytest.mark.parametrize("field", ["compute_us", "data_us", "outside_us", "wait_us", "steps"])
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1", "1e400", "null", '"1"', "true", str(2**80), "0.5"])
def test_numbers_that_are_none_never_come_in(field: str, value: str) -> None:
    line = f'{{"t":"paces","generation":1,"workers":[{{"steps":1,"{field}":{value}}}]}}'
    with pytest.raises(msgspec.MsgspecError):
        Decoder(FromMember).decode(line)


def test_the_largest_numbers_make_a_message_that_the_controller_can_read() -> None:
    group = Measured(3)
    most = 86400 * 10**6
    for _ in range(2 * WINDOWS):
        group.advance(WINDOW_S)
        for name, own in (("w0", 0), ("w1", 0), ("w2", most)):
            told = Pace(steps=10**6, compute_us=own, data_us=own, outside_us=own, wait_us=3 * (most - own) // 4 if own == 0 else 0)
            told = replace(told, wait_us=min(told.wait_us, most))
            group.say(name, Paces(generation=group.job.membership.generation, workers=(told,), throttled=100, milli_cpus=10**6))
    world = summary(group.job)
    assert Decoder(WorldReport).decode(encode(world)) == world


def test_a_row_of_many_stragglers_is_cut() -> None:
    group = Measured(30)
    for number in range(12):
        group.slow(f"w{number}", compute=0.9 + number / 100)
    group.windows(WINDOWS)
    assert len(group.found or ()) == MOST_STRAGGLERS
    assert (group.found or ())[0].member == "w11", "the slowest first"
