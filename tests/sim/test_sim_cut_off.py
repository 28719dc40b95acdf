"""The rendezvous server's node is cut off together with half of a job's workers and a controller: the server decides nothing.

On real nodes a server that was 16 s old formed a world of one there while its successor formed a world of two: the stream of a standby on
the same node showed it a controller. The leader on the other node had begun 9 s before.
"""

import asyncio

import pytest
import sim_time
from sim_agent import Agent
from sim_client import CALM
from sim_jobs import job_of
from sim_pods import is_ready
from sim_process import Controller
from sim_scene import Options
from sim_storm import Storm
from test_sim_drain import KEEP

from elastic.api.kinds import KINDS

OPTIONS = Options(kills=False, elects=True, programs_fail=False, weather=CALM)


class CutOff(Storm):
    """The life of a job of two workers, one of which is on the node that is cut off."""

    def __init__(self, seed: int, *, cut_s: float, worker: int, is_leader_beside: bool) -> None:
        manifest = job_of(KINDS["PyTorchJob"], {"Worker": 2}, policy={"minReplicas": 1, "maxReplicas": 2}, run_policy=KEEP)
        super().__init__(seed, OPTIONS, manifest)
        self._cut_s, self._worker, self._is_leader_beside = cut_s, worker, is_leader_beside
        self.server.dies_when_closing = False

    async def _storm(self) -> None:
        self.keep_controllers()
        self.api.create(self.resource, self.manifest, actor="user")
        await self._until_trains()
        self.note("the server is new, and so is the leader")
        self.server.restart()
        await asyncio.sleep(3.0)
        self._leader().stop()
        self.keep_controllers()
        await asyncio.sleep(9.0)
        await self._until_trains()
        await self._cut()

    async def _cut(self) -> None:
        loop = asyncio.get_running_loop()
        began, leader = loop.time(), self._leader()
        beside = next(one for one in self.controllers if (one is leader) == self._is_leader_beside)
        worker = sorted(agent.name for agent in self._training())[self._worker]
        self.note(f"{worker}, {beside.name} and the server are cut off")
        self.server.isolate(self._cut_s, beside={worker, beside.name})
        beside.cut_off(self._cut_s)
        before = self._world()
        while (left_s := began + self._cut_s - loop.time()) > 0:
            await asyncio.sleep(min(0.5, left_s))
            assert self._world() == before, f"{loop.time() - began:.1f} s after the cut the server decided: {self._world()}"
            if not beside.is_alive:  # it lost its Lease, and its container starts again on the same node
                self.keep_controllers()
                beside = self.controllers[-1]
                beside.cut_off(left_s)
                self.server.beside |= {beside.name}
        await self._until_trains()

    def _world(self) -> tuple[object, ...]:
        group = self.server.hub.jobs()[0].membership
        return group.world and group.world.id, group.generation, group.round

    def _leader(self) -> Controller:
        return next(one for one in self.controllers if one.leads)

    def _training(self) -> list[Agent]:
        return [link.agent for link in self.server.links if link.agent.held is not None and not link.agent.is_ready]

    async def _until_trains(self) -> None:
        for _ in range(600):
            jobs, workers = self.server.hub.jobs(), self.cluster.running()
            world = jobs[0].membership.world if jobs else None
            if world is not None and world.size == len(self._training()) == sum(map(is_ready, workers)) == 2:
                return
            await asyncio.sleep(0.5)
        raise AssertionError("the job trains with two workers")


@pytest.mark.parametrize("is_leader_beside", [False, True], ids=["standby beside", "leader beside"])
@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.parametrize("cut_s", [30.0, 110.0])
def test_a_server_that_is_cut_off_with_half_of_a_job_and_a_controller_decides_nothing(
    cut_s: float, worker: int, *, is_leader_beside: bool
) -> None:
    for seed in range(3):
        made: list[CutOff] = []

        async def life(seed: int = seed, made: list[CutOff] = made) -> None:
            made.append(CutOff(seed, cut_s=cut_s, worker=worker, is_leader_beside=is_leader_beside))
            await made[0].play()

        try:
            sim_time.run(life())
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}\n" + "\n".join(made[0].history)) from error
