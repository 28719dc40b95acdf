"""The node of all workers is silent for two minutes, and comes back with their state.

By default the replacements begin without the state. With `waitForLostStateSeconds` they wait for the node, and no step is lost.
"""

import pytest
import sim_time
from sim_jobs import job_of
from sim_pods import is_ready
from test_sim_drain import ENDS_WITHIN_S, JUST_2, KEEP, RUNS_BY_S, Drained

from elastic.api.kinds import KINDS

SILENT_S = 120.0


class Silenced(Drained):
    """All workers stand on one node, which is cut off for a while; then nothing else happens."""

    def __init__(self, *, seed: int, wait_s: int, restarts_server: bool) -> None:
        policy = {**JUST_2, "waitForLostStateSeconds": wait_s}
        job = job_of(KINDS["PyTorchJob"], {"Worker": 2}, policy=policy, run_policy=KEEP)
        super().__init__(job, seed=seed, is_quick=True, is_together=True)
        self.server.hears_steps = True
        self._restarts_server = restarts_server
        self.waited_for = ""
        self.reached = 0

    async def _storm(self) -> None:
        first, *others = self.cluster.nodes()
        for node in others:
            self.cluster.cordon(node)
        self.keep_controllers()
        self.api.create(self.resource, self.manifest, actor="user")
        await self._until(lambda: self._are_ready() and self._step > 5, within_s=RUNS_BY_S)
        for node in others:
            self.cluster.cordon(node, is_cordoned=False)
        self.note(f"{first} is silent at step {self._step}")
        self.cluster.cut_node(first, SILENT_S)
        if self._restarts_server:
            self.server.restart()
        await self._until(lambda: len(self._workers()) == 4, within_s=90)
        await self._until(lambda: bool(self._waits_for()) or bool(self.server.lost_steps), within_s=30)
        self.waited_for = self._waits_for()
        self.reached = self._step
        await self._until(lambda: self._are_ready() and self._step > self.reached, within_s=ENDS_WITHIN_S)

    def _waits_for(self) -> str:
        return str(((self.job or {}).get("status") or {}).get("elastic", {}).get("waitsFor", ""))

    @property
    def _step(self) -> int:
        return max(self.server.steps.values(), default=0)

    def _are_ready(self) -> bool:
        return len(self._workers()) == 2 and all(map(is_ready, self._workers()))


def silenced(*, seed: int, wait_s: int, restarts_server: bool = False) -> Silenced:
    made: list[Silenced] = []

    async def life() -> None:
        made.append(Silenced(seed=seed, wait_s=wait_s, restarts_server=restarts_server))
        await made[0].play()

    try:
        sim_time.run(life())
    except AssertionError as error:
        raise AssertionError(f"{error}\n" + "\n".join(made[0].history)) from error
    return made[0]


@pytest.mark.parametrize("restarts_server", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_job_that_waits_for_its_silent_node_loses_no_step(seed: int, restarts_server: bool) -> None:
    storm = silenced(seed=seed, wait_s=300, restarts_server=restarts_server)
    assert storm.server.lost_steps == []
    assert "waitForLostStateSeconds" in storm.waited_for


def test_by_default_the_replacements_begin_without_the_state() -> None:
    assert silenced(seed=1, wait_s=0).server.lost_steps
