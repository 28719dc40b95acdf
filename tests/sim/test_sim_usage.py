"""Check the restarts of agents that cannot start. A wrong command uses up the job's restarts, and an absent rendezvous uses none."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import sim_time
from sim_c10d import Stores
from sim_client import Weather
from sim_jobs import job_of
from sim_scene import Options
from sim_storm import Storm

from elastic.api.kinds import KINDS
from elastic.kube.resources import PODS

QUIET = Options(steps=0, kills=False, weather=Weather())
ETCD = {"rdzvBackend": "etcd", "rdzvHost": "etcd"}
C10D = {"rdzvBackend": "c10d"}
EACH = pytest.mark.parametrize("rendezvous", [{}, ETCD, C10D], ids=["elastic", "etcd", "c10d"])


def job(*, workers: int, most_restarts: int, **policy: Any) -> Any:
    bounds = {"minReplicas": workers, "maxReplicas": 4, "maxRestarts": most_restarts, "scaleInGraceSeconds": 5, **policy}
    return job_of(KINDS["PyTorchJob"], {"Worker": workers}, policy=bounds, run_policy={"cleanPodPolicy": "None"})


class Told(Storm):
    """A life that keeps the job's status from its end."""

    end = ""
    said: frozenset[str] = frozenset()
    """The messages of its conditions before the end."""
    restarts: dict[str, int]
    ended: Sequence[int] = ()
    """The last exit codes of workers."""

    def __init__(self, seed: int, manifest: Any) -> None:
        super().__init__(seed, QUIET, manifest)
        if manifest["spec"]["elasticPolicy"].get("rdzvBackend") == "c10d":
            self.cluster.kubelets.stores = Stores(self.api)

    async def _storm(self) -> None:
        self.keep_controllers()
        await self._story()
        self.check()
        status = (self.job or {})["status"]
        self.end = next((c["message"] for c in status["conditions"] if c["type"] == "Failed"), "")
        self.restarts = status["elastic"].get("restarts", {})

    async def _story(self) -> None:
        raise NotImplementedError


class WrongFromTheStart(Told):
    """The command is wrong. If asked, the server and the controller restart again and again."""

    kills = False

    async def _story(self) -> None:
        self.cluster.kubelets.is_command_wrong = True
        self.api.create(self.resource, self.manifest, actor="user")
        for _ in range(60):
            await asyncio.sleep(2.0)
            self.said |= {c["message"] for c in (self.job or {}).get("status", {}).get("conditions", ()) if c["type"] == "Running"}
            if self.kills:
                self.server.restart()
                self.controllers[0].kill()
                self.keep_controllers()


class WrongAfterAWorld(Told):
    """A worker is lost, and its command is wrong when it comes back."""

    async def _story(self) -> None:
        self.api.create(self.resource, self.manifest, actor="user")
        await asyncio.sleep(40.0)
        self.cluster.kubelets.is_command_wrong = True
        self.cluster.vanish(self.cluster.running()[0])
        await asyncio.sleep(120.0)


class ServerAway(Told):
    """The rendezvous is away for so long that agents give up more than once."""

    async def _story(self) -> None:
        self.server.go_down()
        self.server.etcds.is_away = True
        self.api.create(self.resource, self.manifest, actor="user")
        await asyncio.sleep(2000.0)
        self.server.come_up()
        self.server.etcds.is_away = False
        await asyncio.sleep(60.0)


class StoreAway(Told):
    """The node of the store is silent for so long that agents give up."""

    async def _story(self) -> None:
        stores = self.cluster.kubelets.stores
        assert stores is not None
        self.api.create(self.resource, self.manifest, actor="user")
        await asyncio.sleep(40.0)
        stores.silent.add(self.api.get(PODS, "train-rdzv")["metadata"]["uid"])
        await asyncio.sleep(200.0)
        last = [pod["status"]["containerStatuses"][0].get("lastState", {}) for pod in self.cluster.running()]
        self.ended = [state["terminated"]["exitCode"] for state in last if state]
        stores.silent.clear()
        await asyncio.sleep(400.0)


def played(kind: type[Told], manifest: Any, **choices: Any) -> Told:
    storms: list[Told] = []

    async def life() -> None:
        storm = kind(0, manifest)
        for name, value in choices.items():
            setattr(storm, name, value)
        storms.append(storm)
        await storm.play()

    sim_time.run(life())
    return storms[0]


@pytest.mark.parametrize("kills", [False, True])
@EACH
@pytest.mark.parametrize("most", [0, 3])
def test_a_wrong_command_ends_the_job_once_its_restarts_are_used_up(most: int, rendezvous: dict[str, str], *, kills: bool) -> None:
    storm = played(WrongFromTheStart, job(workers=1, most_restarts=most, **rendezvous), kills=kills)
    said, used = "train-worker-0 could not start: torchrun: error: unrecognized arguments: --nonsense.", f"estarts used: {most} of {most}."
    assert said in storm.end
    assert used in storm.end
    assert storm.end.startswith(said) != (rendezvous == C10D), "the library's rendezvous puts the cause first"
    assert storm.restarts["user"] >= most + 1
    if not kills:
        assert storm.restarts["user"] == most + 1
        missing = "Missing 1 of 1 workers: train-worker-0 could not start: torchrun: error: unrecognized arguments: --nonsense."
        assert most == 0 or any(words.endswith(missing) for words in storm.said), "said at the first failure already"


@EACH
def test_a_wrong_command_ends_a_job_that_has_trained(rendezvous: dict[str, str]) -> None:
    storm = played(WrongAfterAWorld, job(workers=2, most_restarts=3, **rendezvous))
    assert storm.restarts["user"] == 4
    assert "could not start: torchrun: error: unrecognized arguments: --nonsense." in storm.end


@pytest.mark.parametrize("restart", ["OnFailure", "Never", "ExitCode"])
@pytest.mark.parametrize("rendezvous", [{}, ETCD], ids=["elastic", "etcd"])
def test_a_rendezvous_that_is_away_is_never_charged(rendezvous: dict[str, str], restart: str) -> None:
    manifest = job(workers=2, most_restarts=0, **rendezvous)
    manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] = restart
    storm = played(ServerAway, manifest)
    assert storm.cluster.kubelets.turned_away >= 2, "agents gave up"
    assert not storm.end
    assert "user" not in storm.restarts


@pytest.mark.parametrize("restart", ["OnFailure", "Always"])
def test_a_store_that_is_away_is_never_charged(restart: str) -> None:
    manifest = job(workers=2, most_restarts=3, **C10D)
    manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] = restart
    storm = played(StoreAway, manifest)
    assert 1 in storm.ended, "agents gave up"
    assert not storm.end
    assert "user" not in storm.restarts
