"""Kill each writer after each of its writes during a change in process in an etcd, and lose each answer: the others always get on."""

from collections.abc import Callable

import pytest
from etcd_living import LivingJob
from etcd_store import Body

from elastic_worker.etcd.gateway import Unreachable
from elastic_worker.etcd.records import Leaving

NAMES = ("w0", "w1", "w2")
Trigger = Callable[[LivingJob], None]


def shrink(job: LivingJob) -> None:
    job.expect("w0", "w1", leaving=(Leaving("w2", "plan", 600.0),))


def grow(job: LivingJob) -> None:
    job.expect(*NAMES, "w3")
    job.start("w3")


def lose(job: LivingJob) -> None:
    job.end("w2")


def break_off(job: LivingJob) -> None:
    job.agents["w1"].complain()


class Interruption:
    """Something that happens to the agent that writes, at the write of this number."""

    def __init__(self, job: LivingJob, number: int, *, kills: bool) -> None:
        self.job = job
        self.number = number
        self.kills = kills
        self.writes = 0
        self.dead: set[str] = set()

    def watch(self) -> None:
        for agent in self.job.agents.values():
            if not hasattr(agent.link, "is_watched"):
                agent.link.is_watched = True
                agent.link.call = self._calling(agent.name, agent.link.call)

    def _calling(self, name: str, call: Callable[[str, Body], Body]) -> Callable[[str, Body], Body]:
        def watched(path: str, body: Body) -> Body:
            if name in self.dead:
                raise Unreachable("this agent is dead")
            answer = call(path, body)
            if path == "kv/put" or answer.get("succeeded"):
                self.writes += 1
                if self.writes == self.number:
                    if self.kills:
                        self.dead.add(name)
                    raise Unreachable("no whole answer within 2 s")
            return answer

        return watched

    def bury(self) -> None:
        for name in self.dead & self.job.agents.keys():
            self.job.end(name)


def changed(trigger: Trigger, number: int, *, kills: bool) -> tuple[LivingJob, Interruption]:
    """Let this change happen with an interruption at this write, and then let time pass."""
    job = LivingJob(max=4, grace_s=5.0)
    job.hosts.are_there = True
    job.start(*NAMES)
    job.expect(*NAMES)
    job.live(3)
    assert job.change().stage == "run"
    job.turn()
    job.train()
    interruption = Interruption(job, number, kills=kills)
    interruption.watch()
    trigger(job)
    interruption.watch()
    for _ in range(50):
        job.etcd.advance(0.5)
        job.turn(1)
        job.come_all()
        interruption.bury()
    return job, interruption


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [True, False], ids=["killed", "answer lost"])
@pytest.mark.parametrize("trigger", [shrink, grow, lose, break_off])
def test_a_change_gets_on_whatever_becomes_of_the_writer_at_any_write(trigger: Trigger, kills: bool) -> None:
    number, is_reached = 0, True
    while is_reached:
        number += 1
        job, interruption = changed(trigger, number, kills=kills)
        try:
            is_reached = interruption.writes >= number
            staying = {name for name in job.agents if not (trigger is shrink and name == "w2" and job.agents.keys() - {"w2"})}
            told = f"write {number}: {job.world()} {[(a.name, vars(a.view)) for a in job.agents.values()]}"
            assert job.in_world() == staying, told
            assert (set(job.names()), job.change().stage) == (staying, "run"), told
            assert {job.agents[name].worker.is_training for name in staying} == {True}, told
            assert len({job.agents[name].worker.step for name in staying}) == 1, told
            assert {job.agents[name].starts for name in staying} == {1}, told
        finally:
            job.close()
    assert number > 8
