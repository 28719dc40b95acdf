"""Two jobs of one name and different kinds, in one namespace: neither uses what the other has, and each says what it waits for."""

import asyncio
import random
from collections.abc import Iterator

import pytest
import sim_time
from sim_api import Api, Write
from sim_client import Sky, Weather
from sim_cluster import Cluster
from sim_jobs import NAME, job_of
from sim_process import Controller
from sim_rendezvous import SimServer
from sim_storm import no_errors_logged

from elastic.api.job import Object
from elastic.api.kinds import KINDS
from elastic.api.owners import controller_uid
from elastic.kube.resources import CONFIG_MAPS, EVENTS, PODS, ROLE_BINDINGS, ROLES, SERVICE_ACCOUNTS, Resource
from elastic_training.controller.facts.keys import JOBS

MPI, TORCH = "MPIJob", "PyTorchJob"
LAUNCHER = f"{NAME}-launcher"


class Scene:
    """A controller for some kinds, and the order in which it makes things."""

    def __init__(self, *kinds: str) -> None:
        self.api, self.server = Api(), SimServer()
        self.cluster = Cluster(self.api, self.server, random.Random(1))
        self.made: list[tuple[str, str]] = []
        self.api.observers.append(self._note)
        self.controller = Controller(self.api, Sky(Weather()), self.server, random.Random(1), name="c", kinds=list(kinds))
        self.controller.start()
        self._ticking = asyncio.get_running_loop().create_task(self._tick())

    def _note(self, write: Write) -> None:
        if write.before is None and write.resource != EVENTS:
            self.made.append((write.resource.kind, write.name))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self.cluster.tick()
            self.api.collect()

    def create(self, kind: str) -> str:
        types = {"Launcher": 1, "Worker": 2} if kind == MPI else {"Worker": 1}
        return str(self.api.create(JOBS[kind], job_of(KINDS[kind], types, run_policy={}), actor="user")["metadata"]["uid"])

    def exec_names(self) -> Iterator[str]:
        for role in self.api.all(ROLES):
            for rule in role["rules"]:
                if "pods/exec" in rule["resources"]:
                    assert rule["resourceNames"], "a rule without names holds for all pods"
                    yield from rule["resourceNames"]

    def message(self, kind: str) -> str:
        job = self.api.get(JOBS[kind], NAME)
        return str(job["status"]["conditions"][-1]["message"])


def test_an_mpi_job_gets_no_right_to_another_jobs_pods() -> None:
    async def story() -> None:
        scene = Scene(MPI, TORCH)
        theirs = scene.create(TORCH)
        await asyncio.sleep(30.0)
        mine = scene.create(MPI)
        await asyncio.sleep(60.0)
        owners = {pod["metadata"]["name"]: controller_uid(pod["metadata"]) for pod in scene.api.all(PODS)}
        assert owners[f"{NAME}-worker-0"] == theirs
        assert list(scene.exec_names()) == [name for name, owner in sorted(owners.items()) if owner == mine and "worker" in name]
        assert f"pods {NAME}-worker-0 already exists; it belongs to PyTorchJob {NAME}" in scene.message(MPI)

    sim_time.run(story())


def test_role_then_binding_then_launcher() -> None:
    async def story() -> None:
        scene = Scene(MPI)
        scene.create(MPI)
        await asyncio.sleep(60.0)
        order = [made for made in scene.made if made in (("Role", LAUNCHER), ("RoleBinding", LAUNCHER), ("Pod", LAUNCHER))]
        assert order == [("Role", LAUNCHER), ("RoleBinding", LAUNCHER), ("Pod", LAUNCHER)]
        assert list(scene.exec_names()) == [f"{NAME}-worker-0", f"{NAME}-worker-1"]

    sim_time.run(story())


@pytest.mark.parametrize(
    ("resource", "name"),
    [(ROLES, LAUNCHER), (ROLE_BINDINGS, LAUNCHER), (SERVICE_ACCOUNTS, LAUNCHER), (CONFIG_MAPS, f"{NAME}-config")],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_an_object_of_another_by_a_name_that_the_launcher_needs_is_neither_used_nor_changed(resource: Resource, name: str) -> None:
    async def story() -> None:
        scene = Scene(MPI)
        owner = {"apiVersion": "kubeflow.org/v1", "kind": MPI, "name": "other", "uid": "other-uid", "controller": True}
        stranger: Object = {"metadata": {"name": name, "namespace": "team", "ownerReferences": [owner]}, "data": {"a": "b"}}
        scene.cluster.add_node()
        keeper = scene.api.create(JOBS[MPI], {"metadata": {"name": "other", "namespace": "team"}, "spec": {}}, actor="user")
        owner["uid"] = keeper["metadata"]["uid"]
        before = scene.api.create(resource, stranger, actor="user")
        scene.create(MPI)
        await asyncio.sleep(60.0)
        assert scene.api.get(resource, name) == before
        assert scene.api.find(PODS, LAUNCHER) is None
        assert f"{resource.plural} {name} already exists; it belongs to MPIJob other: rename this job or that MPIJob" in scene.message(MPI)
        scene.api.remove(resource, name)
        await asyncio.sleep(90.0)
        assert scene.api.find(PODS, LAUNCHER) is not None
        assert "It waits" not in scene.message(MPI)

    sim_time.run(story())


def test_pods_of_a_kind_that_is_left_to_another_operator_are_nobodys_concern() -> None:
    """Their label names a job of a kind that no cache was kept of, and each look at it was a KeyError, for ever."""

    async def story() -> None:
        scene = Scene(TORCH)
        labels = {"training.kubeflow.org/operator-name": "mpijob-controller", "training.kubeflow.org/job-name": NAME}
        pod = {"metadata": {"name": "theirs", "namespace": "team", "labels": labels}, "spec": {"containers": [{"name": "mpi"}]}}
        scene.api.create(PODS, pod, actor="other")
        await asyncio.sleep(10.0)
        assert len(scene.controller.queue) == 0
        assert scene.controller.broken is None
        scene.create(TORCH)
        await asyncio.sleep(30.0)
        assert scene.api.find(PODS, f"{NAME}-worker-0") is not None

    with no_errors_logged():
        sim_time.run(story())


@pytest.mark.parametrize("policy", [None, {"minReplicas": 1, "maxReplicas": 2}], ids=["static", "elastic"])
def test_a_job_whose_pod_lost_its_owner_says_which_and_what_to_do(policy: Object | None) -> None:
    async def story() -> None:
        scene = Scene(TORCH)
        scene.api.create(JOBS[TORCH], job_of(KINDS[TORCH], {"Worker": 2}, policy=policy, run_policy={}), actor="user")
        await asyncio.sleep(30.0)
        scene.api.change(PODS, f"{NAME}-worker-1", lambda pod: pod["metadata"].pop("ownerReferences"))
        await asyncio.sleep(30.0)
        words = f"It waits for a name: pods {NAME}-worker-1 already exists; it has no owner: delete it, or set its ownerReferences"
        assert words in scene.message(TORCH)
        scene.api.remove(PODS, f"{NAME}-worker-1")
        await asyncio.sleep(90.0)
        assert controller_uid(scene.api.get(PODS, f"{NAME}-worker-1")["metadata"]) == scene.api.get(JOBS[TORCH], NAME)["metadata"]["uid"]
        assert "It waits" not in scene.message(TORCH)

    sim_time.run(story())
