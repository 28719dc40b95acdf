"""Simulate lives of jobs whose agents meet at c10d's store by torch's own rules.

Under any faults the agents that are there train together, and the job fails only if its workers have used up their restarts. `SEEDS`,
`FROM` and `SEED` choose the lives, as in test_sim_lives.
"""

import asyncio
import random
from collections.abc import Callable

import pytest
import sim_time
from sim_c10d import Stores
from sim_client import Weather
from sim_jobs import job_of
from sim_scene import Options
from sim_storm import Storm, no_errors_logged
from test_sim_lives import CALM_SEEDS

from elastic.api.job import Object
from elastic.api.kinds import KINDS, WORKER
from elastic.api.names import REPLICA_TYPE

ENDLESS = 1000
"""More restarts than any agent uses up in one life."""


def c10d_job(draw: random.Random) -> Object:
    least = draw.randint(1, 3)
    policy = {
        "minReplicas": least,
        "maxReplicas": draw.randint(least, 5),
        "rdzvBackend": "c10d",
        "scaleInGraceSeconds": draw.choice([0, 5]),
    }
    policy["maxRestarts"] = draw.choice([0, 3, ENDLESS])
    workers = draw.randint(least, policy["maxReplicas"])
    restart = draw.choice(["OnFailure", "OnFailure", "ExitCode", "Never"])
    return job_of(KINDS["PyTorchJob"], {WORKER: workers}, restart=restart, policy=policy, run_policy={"cleanPodPolicy": "None"})


class AtStore(Storm):
    def __init__(self, seed: int, options: Options, manifest: Object | None = None) -> None:
        super().__init__(seed, options, manifest or c10d_job(random.Random(f"c10d {seed}")))
        self.stores = self.cluster.kubelets.stores = Stores(self.api)

    def _pauses(self) -> bool:
        """Return whether changes come after a pause. A finished agent waits for its peers."""
        return super()._pauses() or self.stores.is_waiting()

    async def _settled(self) -> None:
        await super()._settled()
        if self.job is None:
            return
        true = {c["type"] for c in self.job["status"]["conditions"] if c["status"] == "True"}
        if not true & {"Succeeded", "Failed", "Suspended"}:
            workers = {p["metadata"]["name"] for p in self.cluster.running() if p["metadata"]["labels"].get(REPLICA_TYPE) == WORKER.lower()}
            if found := list(self.stores.wrongs(workers)):
                raise AssertionError("\n".join(found))
        if "Failed" in true and self._cannot_fail():
            raise AssertionError(f"no worker used up its restarts, and the job failed: {self.job['status']['conditions'][-1]['message']}")

    def _cannot_fail(self) -> bool:
        """Return whether the job has no reason to fail.

        If containers restart in place, the agents' restarts must be used up. Otherwise one failure of a program is enough.
        """
        policy, replica = self.manifest["spec"]["elasticPolicy"], self.manifest["spec"]["pytorchReplicaSpecs"][WORKER]
        has_failed = self.cluster.user_failures > 0
        return not has_failed or (replica["restartPolicy"] == "OnFailure" and policy["maxRestarts"] == ENDLESS)


class NoRoomForLong(AtStore):
    """A cluster with four places for a job that needs five pods with its store, for longer than torch's agents wait by themselves."""

    async def _storm(self) -> None:
        for name in self.cluster.nodes()[1:]:
            self.cluster.cordon(name)
        self.keep_controllers()
        self.api.create(self.resource, self.manifest, actor="user")
        await asyncio.sleep(700.0)


def test_a_job_that_finds_room_after_a_long_time_trains() -> None:
    policy = {"minReplicas": 4, "maxReplicas": 4, "maxRestarts": 3, "rdzvBackend": "c10d"}
    manifest = job_of(KINDS["PyTorchJob"], {WORKER: 4}, policy=policy, run_policy={"cleanPodPolicy": "None"})
    quiet = Options(steps=0, kills=False, weather=Weather())
    play_at_store(lambda: NoRoomForLong(1, quiet, manifest))


@pytest.mark.parametrize("seed", CALM_SEEDS)
def test_a_job_at_a_c10d_store_trains_under_any_faults(seed: int) -> None:
    play_at_store(lambda: AtStore(seed, Options()))


@pytest.mark.parametrize("seed", CALM_SEEDS)
def test_a_job_at_a_c10d_store_whose_program_never_fails_does_not_fail(seed: int) -> None:
    """The first end of an agent that counts as the program's failure ends a job with restartPolicy Never or ExitCode."""
    play_at_store(lambda: AtStore(seed, Options(programs_fail=False)))


def play_at_store(make: Callable[[], AtStore]) -> None:
    storms: list[AtStore] = []

    async def life() -> None:
        storms.append(make())
        await storms[0].play()

    try:
        with no_errors_logged():
            sim_time.run(life())
    except AssertionError as error:
        story = "\n".join([f"seed {storms[0].seed}", *storms[0].history]) if storms else ""
        raise AssertionError(f"{error}\n{story}") from error
