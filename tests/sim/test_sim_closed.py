"""A job whose budget is spent fails with that reason, also where the rendezvous server dies that alone knew it."""

import asyncio

import pytest
import sim_time
from sim_api import Write
from sim_client import Weather
from sim_jobs import job_of
from sim_scene import Options
from sim_storm import Storm

from elastic.api.job import Object
from elastic.api.kinds import KINDS

QUIET = Options(steps=0, kills=False, weather=Weather())
POLICY = {"minReplicas": 1, "maxReplicas": 4, "maxRestarts": 0, "scaleInGraceSeconds": 5}
JOB = job_of(KINDS["PyTorchJob"], {"Worker": 2}, policy=POLICY, run_policy={"cleanPodPolicy": "All"})


class Spent(Storm):
    """A worker fails and there is no budget for it.

    Once the status says so, the server is gone, and, if asked, the controller too; and, if asked, the server dies also before that, with
    its word on the tip of its tongue.
    """

    def __init__(self, seed: int, *, kills: bool, is_silent: bool) -> None:
        super().__init__(seed, QUIET, JOB)
        self.kills, self.end = kills, ""
        self.server.dies_when_closing = is_silent
        self.api.observers.append(self._see)

    def _see(self, write: Write) -> None:
        if write.resource != self.resource or write.after is None:
            return
        before, after = _closed(write.before), _closed(write.after)
        if after and not before:
            self.server.restart()
            if self.kills:
                self.controllers[0].kill()

    async def _storm(self) -> None:
        self.keep_controllers()
        self.api.create(self.resource, self.manifest, actor="user")
        await asyncio.sleep(20.0)
        self.cluster.fail_worker(self.cluster.running()[0])
        for _ in range(30):
            await asyncio.sleep(2.0)
            self.keep_controllers()
            self.check()
        conditions = (self.job or {})["status"]["conditions"]
        self.end = next((c["message"] for c in conditions if c["type"] == "Failed"), "")


def _closed(job: Object | None) -> str:
    return str((((job or {}).get("status") or {}).get("elastic") or {}).get("closed") or "")


@pytest.mark.parametrize("is_silent", [False, True])
@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_spent_budget_outlives_the_server_that_knew_it(seed: int, *, kills: bool, is_silent: bool) -> None:
    storms: list[Spent] = []

    async def life() -> None:
        storms.append(Spent(seed, kills=kills, is_silent=is_silent))
        await storms[0].play()

    sim_time.run(life())
    assert storms[0].end.endswith("ended with status 1. Restarts used: 0 of 0.")
