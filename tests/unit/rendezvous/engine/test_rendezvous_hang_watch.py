"""A job whose steps stop coming: its agents look at their workers, and the rendezvous names the ranks that hold up the others."""

import pytest
from rendezvous_group import Group

from elastic.membership.wire import Budget, Decoder, Finished, Started, WorldReport, encode
from elastic_training.rendezvous.engine.doing_words import sentence
from elastic_training.rendezvous.engine.events import Stepped
from elastic_training.rendezvous.engine.messages.doing import LOOK_S, Doing, DoingKind, Doings, Hang, HangState, Watch
from elastic_training.rendezvous.engine.views import summary

IN_ALL_REDUCE = Doing(kind=DoingKind.COLLECTIVE, does="waits in all_reduce", place="train.py:44", code="dist.all_reduce(g)")
ASLEEP = Doing(kind=DoingKind.OTHER, does="sleeps", place="train.py:41", code="time.sleep(1e6)")
BUSY = Doing(kind=DoingKind.OTHER, does="computes", place="eval.py:7", code="score(batch)", cpu=1.0)


class Watched(Group):
    """A group whose agents look at their workers when they are asked to. `does`: what each member's workers do."""

    def __init__(self, size: int, *, budget: Budget | None = None) -> None:
        super().__init__()
        names = [f"w{number}" for number in range(size)]
        self.expect(*names, max=size, budget=budget or Budget())
        for name in names:
            self.start(name)
        for name in names:
            self.say(name, Started(generation=self.agents[name].generation))
        self.does: dict[str, tuple[Doing, ...]] = {}
        self.looks = 0

    def stepped(self, *steps: int, every_s: float = 1.0) -> None:
        for step in steps:
            self.advance(every_s)
            self.apply(Stepped(self.job.membership.generation, step))

    def look(self, seconds: float) -> None:
        """Let time pass in which the agents look."""
        for _ in range(round(seconds / LOOK_S)):
            self.advance(LOOK_S)
            watched = [name for name, agent in self.agents.items() if agent.view.watch]
            self.looks += bool(watched)
            for name in watched:
                told = tuple(self._now(doing) for doing in self.does.get(name, ()))
                self.say(name, Doings(generation=self.agents[name].generation, workers=told))
            self.advance(0.01)

    def _now(self, doing: Doing) -> Doing:
        if doing in (BUSY, LOOPS):
            return doing
        return Doing(
            kind=doing.kind,
            looks=self.looks,
            for_s=LOOK_S * (self.looks - 1),
            cpu=doing.cpu,
            does=doing.does,
            place=doing.place,
            code=doing.code,
        )

    @property
    def hang(self) -> Hang | None:
        return summary(self.job).hang

    @property
    def words(self) -> str:
        return sentence(self.hang, place_of=lambda pod: f"{pod} on node-7") if self.hang is not None else ""

    @property
    def watches(self) -> set[Watch]:
        return {agent.view.watch for agent in self.agents.values()}


def test_a_rank_that_sleeps_while_the_others_wait_for_it_is_named() -> None:
    group = Watched(4)
    group.does = {f"w{rank}": (IN_ALL_REDUCE,) for rank in range(3)} | {"w3": (ASLEEP,)}
    group.stepped(1, 2, 3)
    group.look(30)
    assert group.watches == {Watch.NOT}, "steps came until then"
    group.look(20)
    assert (group.watches, group.hang and group.hang.state) == ({Watch.LOOK}, HangState.WAITING)
    group.look(40)
    assert group.hang is not None
    assert group.hang.state is HangState.SUSPECTED
    assert group.watches == {Watch.WRITE}
    assert group.words.endswith(
        ": rank 3 (w3 on node-7) has been at train.py:41, `time.sleep(1e6)`, for at least 30 s: it sleeps; "
        "ranks 0 to 2 wait in all_reduce at train.py:44"
    )
    before = group.hang
    group.look(60)
    assert group.hang is not None
    assert group.hang.groups == before.groups, (
        "its times are of the moment in which it was found, so that nobody hears of it again and again"
    )
    group.stepped(4)
    group.look(10)
    assert (group.watches, group.hang) == ({Watch.NOT}, None)
    assert len(group.sealed) == 1, "without hangTimeoutSeconds nothing restarts"


@pytest.mark.parametrize("how", ["busy", "silent", "unreadable"])
def test_a_job_waits_and_is_not_suspected_as_long_as_a_rank_may_be_at_work(how: str) -> None:
    group = Watched(3)
    group.does = {"w0": (IN_ALL_REDUCE,), "w1": (IN_ALL_REDUCE,)}
    if how == "busy":
        group.does["w2"] = (BUSY,)
    elif how == "unreadable":
        group.does["w2"] = (Doing(kind=DoingKind.UNKNOWN, does="cannot be read"),)
    group.stepped(1)
    group.look(300)
    assert group.hang is not None
    assert group.hang.state is HangState.WAITING
    assert ("rank 2 (w2 on node-7) computes at eval.py:7, `score(batch)`" in group.words) == (how == "busy")
    assert group.watches == {Watch.LOOK}


def test_a_slow_step_is_no_reason_to_wait_if_all_steps_are_slow() -> None:
    group = Watched(2)
    group.stepped(1, 2, 3, 4, every_s=20)
    group.look(190)
    assert (group.watches, group.hang) == ({Watch.NOT}, None)
    group.look(20)
    assert group.watches == {Watch.LOOK}


def test_a_program_that_reports_seldom_does_not_wait_between_its_reports() -> None:
    group = Watched(2)
    group.stepped(100, 200, 300, 400, every_s=120)
    group.look(230)
    assert (group.watches, group.hang) == ({Watch.NOT}, None), "its steps take 1.2 s each, and its reports come every two minutes"
    group.look(20)
    assert group.watches == {Watch.LOOK}


def test_ranks_that_wait_for_each_other_are_told_apart() -> None:
    group = Watched(3)
    other = Doing(kind=DoingKind.COLLECTIVE, does="waits in broadcast", place="train.py:60")
    group.does = {"w0": (IN_ALL_REDUCE,), "w1": (other,), "w2": (IN_ALL_REDUCE,)}
    group.stepped(1)
    group.look(90)
    assert group.hang is not None
    assert group.hang.state is HangState.SUSPECTED
    assert (
        "all ranks wait for each other: rank 1 (w1 on node-7) waits in broadcast at train.py:60; ranks 0 and 2 wait in all_reduce"
        in group.words
    )


@pytest.mark.parametrize("steps", [range(1, 11), ()], ids=["steps", "no steps"])
def test_ranks_that_wait_for_one_that_has_ended_hang(steps: range) -> None:
    """A script whose rank 0 left its loop early trained on for ever, with NCCL, and nothing said why."""
    group = Watched(3, budget=Budget(first_step_s=60, hang_s=300))
    group.stepped(*steps)
    group.does = dict.fromkeys(("w1", "w2"), (IN_ALL_REDUCE,))
    group.say("w0", Finished(generation=1))
    group.look(200)
    hang = group.hang
    assert hang is not None
    assert hang.state is HangState.SUSPECTED
    words = sentence(hang, later_s=None)
    assert "rank 0 (w0) is finished (status 0); ranks 1 and 2 wait in all_reduce at train.py:44" in words
    assert "rank 0 (w0) has been finished (status 0) for at least" in sentence(hang)
    group.look(600)
    assert group.job.membership.generation == 1, "a world in which a member has finished is left alone"


def test_a_rank_that_saves_after_the_others_have_finished_is_no_hang() -> None:
    group = Watched(3)
    group.stepped(*range(1, 11))
    group.does = {"w0": (ASLEEP,)}
    for name in ("w1", "w2"):
        group.say(name, Finished(generation=1))
    group.look(200)
    assert group.hang is None


def test_a_stopped_process_is_the_culprit_before_all_others() -> None:
    group = Watched(2)
    group.does = {"w0": (ASLEEP,), "w1": (Doing(kind=DoingKind.STOPPED, does="is stopped by a signal"),)}
    group.stepped(1)
    group.look(90)
    assert group.words.partition(": ")[2].startswith("rank 1 (w1 on node-7) has been stopped by a signal for at least ")


def test_several_workers_of_a_member_have_their_own_ranks() -> None:
    group = Watched(2)
    group.does = {"w0": (IN_ALL_REDUCE, IN_ALL_REDUCE), "w1": (IN_ALL_REDUCE, ASLEEP)}
    group.stepped(1)
    group.look(90)
    assert "rank 3 (w1 on node-7) has been" in group.words
    assert "ranks 0 to 2 wait" in group.words


def test_a_job_without_steps_is_looked_at_after_the_time_for_its_first_step() -> None:
    """Nothing had moved for ten minutes, and the words said: for at least 34 s. The agents had begun to look only then."""
    group = Watched(2, budget=Budget(first_step_s=600))
    group.does = {"w0": (IN_ALL_REDUCE,), "w1": (ASLEEP,)}
    group.look(50)
    assert group.watches == {Watch.NOT}
    group.look(540)
    assert (group.watches, group.hang) == ({Watch.LOOK}, None), "it may take its time until its first step"
    group.look(20)
    assert group.hang is not None
    assert group.hang.state is HangState.SUSPECTED
    assert group.words.startswith("it reports no steps, and nothing has moved for at least 5")
    assert group.hang.since_s > 500
    assert ": rank 1 (w1 on node-7) has been at train.py:41" in group.words


def test_the_stacks_are_written_before_a_restart_whose_time_is_over_when_the_hang_is_found() -> None:
    group = Watched(2, budget=Budget(max_restarts=1, first_step_s=600, hang_s=60))
    group.does = {"w0": (IN_ALL_REDUCE,), "w1": (ASLEEP,)}
    group.look(590)
    asked = set()
    while not group.agents["w0"].view.reform:
        asked |= group.watches
        group.look(10)
    assert Watch.WRITE in asked
    assert group.agents["w0"].view.reform.startswith("nothing has moved for 60 s: rank 1 (w1) ")


def test_a_job_without_steps_that_computes_is_not_reported_at_all() -> None:
    """Its ranks may be seen in the same collective at each look, because they spend most of their time there."""
    group = Watched(2, budget=Budget(first_step_s=60, hang_s=60))
    trains = Doing(kind=DoingKind.COLLECTIVE, does="waits in backward", place="train.py:30", cpu=0.9)
    group.does = {"w0": (trains,), "w1": (trains,)}
    group.look(300)
    assert (group.hang, len(group.sealed)) == (None, 1)


LOOPS = Doing(kind=DoingKind.OTHER, does="runs Python", place="train.py:41-50", cpu=1.0)


LOOP_AND_OTHERS = "runs Python at train.py:41-50; ranks 0, 1 and 3 wait in all_reduce at train.py:44"


def looping(size: int = 4, **changes: Doing) -> dict[str, tuple[Doing, ...]]:
    """Return what the members do while one of them runs in a loop of Python."""
    does = {f"w{rank}": IN_ALL_REDUCE for rank in range(size)} | {"w2": LOOPS} | changes
    return {name: (doing,) for name, doing in does.items()}


def test_a_rank_in_a_loop_is_named_and_not_suspected() -> None:
    group = Watched(4)
    group.does = looping()
    group.stepped(1, 2, 3)
    group.look(300)
    assert group.hang is not None
    assert group.hang.state is HangState.WAITING
    assert group.words.endswith(
        " s: rank 2 (w2 on node-7) runs Python at train.py:41-50; ranks 0, 1 and 3 wait in all_reduce at train.py:44"
    )


def test_all_ranks_that_wait_for_one_are_restarted_after_the_limit_although_no_steps_are_reported() -> None:
    """An endless loop of Python looks like a long evaluation. The user says with the limit how long an evaluation may take."""
    group = Watched(4, budget=Budget(max_restarts=1, first_step_s=60, hang_s=120))
    group.does = looping()
    group.look(110)
    assert group.hang is not None
    assert group.hang.state is HangState.WAITING
    assert group.words.startswith("it reports no steps, and every rank except one has waited for at least 30 s: rank 2 (w2 on node-7) runs")
    group.look(70)
    assert (group.watches, group.agents["w0"].view.reform) == ({Watch.WRITE}, ""), "the stacks are written before the processes end"
    group.look(30)
    assert group.agents["w0"].view.reform.startswith(
        "every rank except one has waited for 120 s: rank 2 (w2) runs Python at train.py:41-50; "
    )
    assert summary(group.job).restarts == {"hang": 1}


@pytest.mark.parametrize(
    "others",
    [
        {"w3": LOOPS},
        {"w3": Doing(kind=DoingKind.COLLECTIVE, does="waits in barrier", place="train.py:60")},
        {"w3": Doing(kind=DoingKind.COLLECTIVE, does="waits in all_reduce", place="train.py:44", cpu=0.9)},
        {"w2": Doing(kind=DoingKind.UNKNOWN, does="computes", cpu=1.0)},
        {"w3": BUSY},
    ],
)
def test_ranks_that_may_be_at_work_are_not_restarted_without_reports(others: dict[str, Doing]) -> None:
    group = Watched(4, budget=Budget(max_restarts=1, first_step_s=60, hang_s=120))
    group.does = looping(**others)
    group.look(600)
    assert (group.hang, len(group.sealed)) == (None, 1)


def test_the_restart_of_a_hang_says_which_rank_hung() -> None:
    group = Watched(2, budget=Budget(max_restarts=1, hang_s=30))
    group.does = {"w0": (IN_ALL_REDUCE,), "w1": (ASLEEP,)}
    group.stepped(1)
    group.look(20)
    assert group.watches == {Watch.LOOK}
    assert group.hang is None, "it is not long enough for any other words"
    group.look(20)
    assert group.agents["w0"].view.reform.startswith("training reported no further step for 30 s: rank 1 (w1) ")
    assert "sleeps" in group.agents["w0"].view.reform
    assert summary(group.job).hang is None


def test_a_hang_without_steps_is_restarted_once_it_has_been_suspected_for_long() -> None:
    group = Watched(2, budget=Budget(max_restarts=1, first_step_s=60, hang_s=60))
    group.does = {"w0": (IN_ALL_REDUCE,), "w1": (ASLEEP,)}
    group.look(110)
    assert group.hang is not None
    assert not group.agents["w0"].view.reform
    group.look(40)
    assert group.agents["w0"].view.reform.startswith("nothing has moved for 60 s: rank 1 (w1) ")


def test_words_about_another_world_do_not_count() -> None:
    group = Watched(2)
    group.does = {"w0": (IN_ALL_REDUCE,), "w1": (ASLEEP,)}
    group.stepped(1)
    group.look(90)
    assert group.hang is not None
    group.come("w1")
    group.advance(2)
    assert group.hang is None
    group.come("w0")
    group.say("w0", Doings(generation=1, workers=(IN_ALL_REDUCE,)))
    assert not group.job.hang_watch.told


def test_words_of_a_program_are_escaped_before_anybody_prints_them() -> None:
    group = Watched(2)
    group.does = {"w0": (IN_ALL_REDUCE,), "w1": (Doing(kind=DoingKind.OTHER, does="sleeps", place="a\x1b[2J.py:1", code="x = '\u202e'"),)}
    group.stepped(1)
    group.look(90)
    assert "a\\x1b[2J.py:1, `x = '\\u202e'`" in group.words


def test_the_longest_words_still_fit_into_a_message_to_the_controller() -> None:
    """Escapes make them longer, and the controller could not have read the job's world any more."""
    group = Watched(1)
    group.does = {"w0": (Doing(kind=DoingKind.STOPPED, does="\u202e" * 160, place="\x1b" * 160, code="\U000e0001" * 80),)}
    group.stepped(1)
    group.look(90)
    world = summary(group.job)
    assert world.hang is not None
    assert Decoder[WorldReport](WorldReport).decode(encode(world)) == world


def test_words_that_nobody_asked_for_are_not_kept() -> None:
    group = Watched(2)
    group.stepped(1)
    group.say("w0", Doings(generation=1, workers=(ASLEEP,)))
    assert not group.job.hang_watch.told
