"""A job that meets in an etcd says what its workers do, as a job at the rendezvous server does."""

from collections.abc import Iterator
from typing import Any

import pytest
from etcd_living import LivingJob
from etcd_town import Town, play

from elastic.membership.wire import Budget
from elastic_training.rendezvous.engine.doing_words import sentence
from elastic_training.rendezvous.engine.messages.doing import HangState
from elastic_training.rendezvous.engine.messages.pace import Slowness
from elastic_training.rendezvous.engine.messages.saves import FailedSave, FailingRank
from elastic_worker.etcd.group import Rules
from elastic_worker.etcd.hosting import job_of
from elastic_worker.etcd.local_news import LocalNews
from elastic_worker.etcd.records import Expected, Records, Seat, World

SAVE = {"local_rank": 0, "step": 40, "failures": 1, "words": "No space left on device", "last": 30}


def test_failing_saves_are_told_until_a_save_succeeds_and_through_a_change_of_the_world() -> None:
    async def story() -> None:
        town = Town()
        await town.expect("w0", "w1", "w2")
        town.job.start("w0", "w1", "w2")
        await town.live(3)
        agent = town.job.agents["w1"]
        agent.presence.send({"t": "saves", "workers": 1, "failed": [SAVE]})
        await town.live(3)
        rank = agent.held.rank
        save = FailedSave(local_rank=0, step=40, words="No space left on device", last=30)
        assert town.world.failing_saves == (FailingRank(rank=rank, member="w1", save=save),)
        agent.presence.send({"t": "saves", "workers": 1, "failed": []})
        await town.live(3)
        assert town.world.failing_saves == ()

    play(story())


def test_a_worker_that_ended_with_status_0_before_another_one_failed_is_told() -> None:
    async def story() -> None:
        town = Town(min=2)
        await town.expect("w0", "w1", min=2)
        town.job.start("w0", "w1")
        await town.live(3)
        one, other = town.job.agents["w0"], town.job.agents["w1"]
        one.presence.report_state("finished", generation=one.generation)
        await town.live(1)
        other.fail("RuntimeError: collective timed out", rank=1)
        await town.live(5)
        told = "w0 ended with status 0, and then a worker of w1 ended with status 1 (rank 1: RuntimeError: collective timed out)"
        assert town.world.ended_early == told
        assert dict(town.world.restarts) == {}

    play(story())


def writes(members: int, seconds: float) -> int:
    """Count the records of a member whose worker does something else at each look, while its windows of paces come as well."""
    news, found, now = LocalNews("w0"), 0, 0.0
    while now < seconds:
        news.take({"t": "doings", "generation": 1, "workers": [{"kind": "other", "place": f"train.py:{now}"}]})
        news.take({"t": "paces", "generation": 1, "workers": [{"steps": 1}]})
        due = news.due(now, incarnation="a", members=members)
        if due.news is not None:
            news.note_written(due.news, now)
            found += 1
        now += 0.5
    return found


@pytest.mark.parametrize("members", [1, 64, 1000, 8192])
def test_the_news_of_a_job_cost_few_writes_a_second_however_large_it_is(members: int) -> None:
    seconds = 10_000.0
    assert 1 <= writes(members, seconds) <= 1 + seconds * min(1.0, 6.5 / members)


def test_news_that_stay_true_are_written_when_they_begin_once_they_last_and_then_once_a_minute() -> None:
    news, at = LocalNews("w0"), []
    for look in range(1, 31):
        news.take({"t": "doings", "generation": 1, "workers": [{"kind": "other", "looks": look, "for_s": 10.0 * (look - 1)}]})
        due = news.due(10.0 * look, incarnation="a", members=3)
        if due.news is not None:
            news.note_written(due.news, 10.0 * look)
            at.append(look)
    assert at == [1, 4, 10, 16, 22, 28]


ASLEEP = {"kind": "other", "does": "sleeps", "place": "train.py:41", "code": "time.sleep(1e6)"}
IN_ALL_REDUCE = {"kind": "collective", "does": "waits in all_reduce", "place": "train.py:44"}
LOOPS = {"kind": "other", "does": "runs Python", "place": "eval.py:7", "looks": 1, "cpu": 1.0}


class Watched(Town):
    """A town whose agents look at their workers when they are asked to. `does`: what each member's worker does."""

    def __init__(self, **rules: Any) -> None:
        super().__init__(**rules)
        self.does: dict[str, dict[str, Any]] = {}
        self.looks = 0

    async def train(self, *names: str, steps: int = 40, **fields: Any) -> None:
        """Let these members form a world, and make a step a second."""
        await self.expect(*names, **fields)
        self.job.start(*names)
        await self.live(3)
        for step in range(steps):
            self.step(step)
            await self.live(1)

    def step(self, step: int) -> None:
        for agent in self.job.agents.values():
            agent.step(step)

    async def stand(self, seconds: int) -> None:
        """Let time pass without a step, while the agents look."""
        for _ in range(seconds // 10):
            asked = [agent for agent in self.job.agents.values() if getattr(agent.presence.view, "watch", "") and agent.is_working]
            self.looks += bool(asked)
            for agent in asked if self.does else ():
                doing = {"looks": self.looks, "for_s": 10.0 * (self.looks - 1), **self.does[agent.name]}
                agent.presence.send({"t": "doings", "generation": agent.generation, "workers": [doing]})
            await self.live(10)

    @property
    def words(self) -> str:
        return sentence(self.world.hang) if self.world.hang is not None else ""


def test_a_rank_that_sleeps_is_named_and_forgotten_once_steps_come() -> None:
    async def story() -> None:
        town = Watched()
        await town.train("w0", "w1", "w2")
        town.does = {"w0": IN_ALL_REDUCE, "w1": ASLEEP, "w2": IN_ALL_REDUCE}
        await town.stand(30)
        assert town.world.hang is None
        await town.stand(20)
        assert town.world.hang is not None
        assert town.world.hang.state is HangState.WAITING
        await town.stand(40)
        hang, rank = town.world.hang, town.job.agents["w1"].held.rank
        assert hang is not None
        assert hang.state is HangState.SUSPECTED
        assert f"rank {rank} (w1) has been at train.py:41, `time.sleep(1e6)`, for at least 30 s: it sleeps; " in town.words
        assert "wait in all_reduce" in town.words
        assert {agent.presence.view.watch for agent in town.job.agents.values()} == {"write"}
        town.step(100)
        await town.live(10)
        assert town.world.hang is None
        assert {agent.presence.view.watch for agent in town.job.agents.values()} == {""}

    play(story())


def test_a_restart_for_a_hang_names_the_rank() -> None:
    """It said that no step had come, and named nobody."""

    async def story() -> None:
        town = Watched()
        await town.train("w0", "w1", budget=Budget(hang_s=60.0))
        town.does = {"w0": IN_ALL_REDUCE, "w1": ASLEEP}
        await town.stand(80)
        rank = town.job.agents["w1"].held.rank
        reason = town.world.rescale.reason if town.world.rescale is not None else ""
        assert reason.startswith(f"training reported no further step for 60 s: rank {rank} (w1) ")
        assert dict(town.world.restarts) == {"hang": 1}

    play(story())


def test_a_member_that_begins_to_watch_in_the_middle_of_a_hang_takes_nothing_back() -> None:
    async def story() -> None:
        town = Watched()
        await town.train("w0", "w1", "w2")
        town.does = {"w0": IN_ALL_REDUCE, "w1": ASLEEP, "w2": IN_ALL_REDUCE}
        await town.stand(90)
        told = len(town.worlds)
        first = min(town.job.agents.values(), key=lambda agent: agent.held.rank)
        first.link.watches[0].is_broken = True
        await town.stand(60)
        assert all(world.hang is not None and world.hang.state is HangState.SUSPECTED for world in town.worlds[told - 1 :])
        town.step(100)
        await town.live(10)
        assert town.world.hang is None

    play(story())


def test_a_rank_in_a_loop_is_waited_for_and_never_suspected() -> None:
    async def story() -> None:
        town = Watched()
        await town.train("w0", "w1", "w2")
        town.does = {"w0": IN_ALL_REDUCE, "w1": LOOPS, "w2": IN_ALL_REDUCE}
        await town.stand(200)
        assert town.world.hang is not None
        assert town.world.hang.state is HangState.WAITING
        assert "runs Python at eval.py:7" in town.words

    play(story())


def test_a_script_without_steps_is_told_after_its_first_step_timeout_if_nothing_moves() -> None:
    async def story() -> None:
        town = Watched()
        await town.train("w0", "w1", steps=0, budget=Budget(first_step_s=120.0))
        town.does = {"w0": IN_ALL_REDUCE, "w1": ASLEEP}
        await town.stand(110)
        assert town.world.hang is None
        await town.stand(30)
        assert town.world.hang is not None
        assert town.words.startswith("it reports no steps, and nothing has moved for at least ")

    play(story())


FAST = {"steps": 50, "compute_us": 200_000, "data_us": 10_000}


class Measured(Watched):
    """A town whose agents tell how long their workers need, in windows of 10 s. `slow`: by member."""

    def __init__(self, **rules: Any) -> None:
        super().__init__(**rules)
        self.slow: dict[str, dict[str, int]] = {}

    async def windows(self, count: int) -> None:
        for _ in range(count):
            needs = {name: {**FAST, **self.slow.get(name, {})} for name in self.job.agents}
            longest = max(own["compute_us"] + own["data_us"] for own in needs.values())
            for name, own in needs.items():
                agent = self.job.agents[name]
                assert agent.presence.view.pace_s == 10.0
                wait_us = longest - own["compute_us"] - own["data_us"]
                agent.presence.send({"t": "paces", "generation": agent.generation, "workers": [{**own, "wait_us": wait_us}]})
            self.step(self.job.agents[next(iter(needs))].presence._steps._step + 50)
            await self.live(10)


def test_a_slow_rank_is_named_until_it_is_fast_again() -> None:
    async def story() -> None:
        town = Measured()
        await town.train("w0", "w1", "w2", steps=1, budget=Budget(pace_s=10.0))
        await town.windows(6)
        assert not town.world.stragglers
        town.slow = {"w1": {"data_us": 300_000}}
        await town.windows(4)
        assert not town.world.stragglers
        await town.windows(2)
        (found,) = town.world.stragglers or ()
        assert (found.member, found.rank, found.kind) == ("w1", town.job.agents["w1"].held.rank, Slowness.DATA)
        first = min(town.job.agents.values(), key=lambda agent: agent.held.rank)
        first.link.watches[0].is_broken = True  # it lists all records again, and has not compared anything yet
        await town.windows(1)
        assert town.world.stragglers == (found,)
        town.slow = {}
        await town.windows(8)
        assert town.world.stragglers == ()

    play(story())


def test_a_window_that_is_only_written_again_counts_once() -> None:
    async def story() -> None:
        town = Measured()
        await town.train("w0", "w1", "w2", steps=1, budget=Budget(pace_s=10.0))
        town.slow = {"w1": {"data_us": 300_000}}
        await town.windows(3)
        for _ in range(30):
            for failures in (1, 0):
                failed = [SAVE] * failures
                town.job.agents["w1"].presence.send({"t": "saves", "workers": 1, "failed": failed})
                await town.live(2)
        assert not town.world.stragglers

    play(story())


def test_nobody_measures_unless_the_controller_asks() -> None:
    async def story() -> None:
        town = Watched()
        await town.train("w0", "w1", steps=1)
        assert {agent.presence.view.pace_s for agent in town.job.agents.values()} == {0.0}

    play(story())


@pytest.mark.parametrize(("members", "window_s"), [(3, 10.0), (10, 10.0), (64, 64.0)])
def test_windows_are_longer_in_a_large_world(members: int, window_s: float) -> None:
    names = [f"w{number}" for number in range(members)]
    world = World(1, tuple(Seat(name, name) for name in names), "h:1", "", "start")
    expected = Expected(tuple(names), 1, members, pace_s=10.0)
    job = job_of(Records({}, world=world, expected=expected), Rules(1, members), before=None, now=0.0)
    assert job.budget.pace_s == window_s


@pytest.fixture
def job() -> Iterator[LivingJob]:
    made = LivingJob(max=4, grace_s=5.0)
    made.hosts.are_there = True
    yield made
    made.close()


LEFT = {"t": "unable", "words": "the program of rank 1 left its training loop early", "early": True, "rank": 1}


def trained(job: LivingJob, *names: str) -> None:
    """Let these members form a world in process, and make a step."""
    job.start(*names)
    job.expect(*names)
    job.live(10)
    assert (job.in_world(), job.change().stage) == (set(names), "run")
    job.train()
    job.turn()


def test_a_worker_that_ends_with_status_0_in_the_middle_of_the_training_is_told_and_charged(job: LivingJob) -> None:
    """The job counted as done, and nobody heard that a program had ended early."""
    trained(job, "w0", "w1", "w2")
    leaver = job.agents["w1"]
    leaver.presence.send(LEFT)
    job.agents["w0"].complain()
    leaver.presence.report_state("finished", generation=leaver.generation)
    leaver.worker = None
    job.live(10)
    world = job.world()
    assert world is not None
    assert world.reason == "a worker of w1 ended with status 0 (rank 1: its program ended in the middle of the training); 2 members"
    assert (job.names(), dict(world.restarts), job.starts()) == (("w0", "w2"), {"user": 1}, {"w0": 1, "w1": 1, "w2": 1})


def test_a_change_waits_for_the_end_of_a_process_whose_program_raised(job: LivingJob) -> None:
    trained(job, "w0", "w1", "w2")
    leaver = job.agents["w1"]
    leaver.presence.send({**LEFT, "error": "ValueError: bad batch"})
    leaver.worker.is_training = False
    job.agents["w0"].complain()
    job.live(3)
    assert job.change().stage == "run"
    leaver.fail("ValueError: bad batch", rank=1)
    job.live(10)
    world = job.world()
    assert world is not None
    assert dict(world.restarts) == {"user": 1}
    assert "(rank 1: ValueError: bad batch)" in world.reason or world.reason.startswith("w1 joined")
