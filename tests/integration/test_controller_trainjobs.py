"""A controller serves TrainJobs at an API server without nodes: it creates and changes jobs, with the rights of its roles.

Next to Kubeflow Trainer's own controller it serves only the TrainJobs that ask for it; in its place, it takes its Lease first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from control_plane import RIGHTS, SYSTEM, api_server, controller, controller_account, install_crds
from rights_used import granted, used
from train_job_builders import initializer, runtime, train_job

from elastic.api import webhook
from elastic.api.names import WAITS_FOR
from elastic.api.rights import as_objects, train_job_roles, trainer_lease_roles
from elastic.api.trainer.crd import definitions
from elastic.api.trainer.modes import LABEL, TRAINER_LEASE, VALUE, holder_of_trainer
from elastic.api.trainer.shipped import NAMESPACE, objects
from elastic.api.trainer.train_job import MULTI_KUEUE
from elastic.kube import connect
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import (
    CLUSTER_TRAINING_RUNTIMES,
    CUSTOM_RESOURCE_DEFINITIONS,
    EVENTS,
    LEASES,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    TRAIN_JOBS,
    TRAINING_RUNTIMES,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Object,
    Resource,
)
from elastic.local.ports import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(500)]
PATIENCE_S = 120
PYTORCH_JOBS = Resource("kubeflow.org", "v1", "pytorchjobs", kind="PyTorchJob")
MPI_JOBS = Resource("kubeflow.org", "v1", "mpijobs", kind="MPIJob")


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    with api_server(tmp_path, "--enable-admission-plugins", "OwnerReferencesPermissionEnforcement") as path:
        asyncio.run(install_crds(path))
        yield path


async def until(kube: Kube, resource: Resource, name: str, holds: Callable[[Any], object]) -> Any:
    """Return the object, or None if it does not exist, once it is as wanted."""
    found = None
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    found = await kube.get(resource, name, namespace="default")
                except KubeError as error:
                    if error.code != 404:
                        raise
                    found = None
                if holds(found):
                    return found
                await asyncio.sleep(0.2)
    except TimeoutError:
        pytest.fail(f"{resource.plural} {name} is never as wanted: {found}")


def conditions(found: Object | None) -> list[tuple[str, str, str]]:
    assert found is not None
    return [(c["type"], c["status"], c["reason"]) for c in (found.get("status") or {}).get("conditions", ())]


def named(name: str, **spec: Any) -> Object:
    made = train_job(**spec)
    return {"apiVersion": made["apiVersion"], "kind": made["kind"], "metadata": {"name": name}, "spec": made["spec"]}


CHECKED = {"checked": "yes"}
CLAIM: Object = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "initializer-loads"},
    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
}
REFUSED = [("Failed", "True", "TrainingRuntimeNotSupported")]


async def test_train_jobs_are_served_with_the_rights_of_their_roles_and_no_others(kubeconfig: Path, tmp_path: Path) -> None:
    async with connect(kubeconfig) as kube:
        account, port = await account_for_train_jobs(kubeconfig, kube, tmp_path), free_port()
        asked = webhook.train_job_configuration({"url": f"https://127.0.0.1:{port}{webhook.PATH}"})
        asked["webhooks"][0]["objectSelector"] = {"matchLabels": CHECKED}
        await kube.create(VALIDATING_WEBHOOK_CONFIGURATIONS, asked)
        flags = ["--leader-elect", "--lease-namespace", SYSTEM, "--webhook-port", str(port)]
        with controller(account, "--trainjobs", "instead", *flags, folder=tmp_path):
            await define(kube)  # only now: the controller finds them
            await _without_a_runtime(kube)
            await _suspended_and_resumed(kube)
            await _beside_another_job(kube)
            await _after_an_initializer(kube)
            await _of_mpi(kube)
            await _asked_about_it(kube)
        audit, roles = tmp_path / "audit.jsonl", [*train_job_roles(), *trainer_lease_roles()]
        assert used(audit, allowed=False) == set()
        assert granted(roles) - used(audit) == set()


async def account_for_train_jobs(kubeconfig: Path, kube: Kube, folder: Path) -> Path:
    """Return a kubeconfig of the controller's account with the rights to serve TrainJobs."""
    account = await controller_account(kubeconfig, folder)
    await kube.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    for role in (*train_job_roles(), *trainer_lease_roles()):
        for item in as_objects(role, home=SYSTEM):
            await kube.create(RIGHTS[item["kind"]], item, namespace=item["metadata"].get("namespace"))
    return account


async def define(kube: Kube) -> None:
    for definition in definitions():
        await kube.create(CUSTOM_RESOURCE_DEFINITIONS, definition)


async def _asked_about_it(kube: Kube) -> None:
    """Check that the API server asks the webhook, and the webhook the controller for the runtime."""

    def labelled(item: Object) -> Object:
        return item | {"metadata": item["metadata"] | {"labels": CHECKED}}

    with pytest.raises(KubeError, match="ClusterTrainingRuntime none does not exist; create it or name another"):
        await kube.create(TRAIN_JOBS, labelled(named("refused", runtimeRef={"name": "none"})), namespace="default")
    two = runtime() | {"kind": TRAINING_RUNTIMES.kind, "metadata": {"name": "two"}}
    two["spec"]["template"]["spec"]["replicatedJobs"][0]["replicas"] = 2
    with pytest.raises(KubeError, match=r"replicatedJobs\[0\].replicas: replicas is 2, but"):
        await kube.create(TRAINING_RUNTIMES, labelled(two), namespace="default")
    await kube.create(TRAIN_JOBS, labelled(named("taken-in")), namespace="default")
    await until(kube, PYTORCH_JOBS, "taken-in", lambda found: found is not None)


async def test_in_the_place_of_kubeflow_trainer_it_serves_none_before_it_has_its_lease(kubeconfig: Path, tmp_path: Path) -> None:
    async with connect(kubeconfig) as kube:
        account = await account_for_train_jobs(kubeconfig, kube, tmp_path)
        spec = {"holderIdentity": "trainer_1", "leaseDurationSeconds": 3600, "renewTime": "2026-01-01T00:00:00.000000Z"}
        await kube.create(LEASES, {"metadata": {"name": TRAINER_LEASE}, "spec": spec}, namespace=NAMESPACE)
        await define(kube)
        await _create_early(kube, CLUSTER_TRAINING_RUNTIMES, runtime())
        await _create_early(kube, TRAIN_JOBS, named("patient"))
        with controller(account, "--trainjobs", "instead", "--leader-elect", "--lease-namespace", SYSTEM, folder=tmp_path) as log:
            async with asyncio.timeout(PATIENCE_S):
                while "trainer_1" not in log.read_text():  # noqa: ASYNC110 - a line in a file wakes nobody
                    await asyncio.sleep(0.2)
            # A PyTorchJob that a user makes is served meanwhile.
            await kube.create(PYTORCH_JOBS, foreign("own"), namespace="default")
            await until(kube, PYTORCH_JOBS, "own", lambda found: bool((found.get("status") or {}).get("conditions")))
            assert await until(kube, PYTORCH_JOBS, "patient", lambda found: True) is None
            await kube.delete(LEASES, TRAINER_LEASE, namespace=NAMESPACE)
            await until(kube, PYTORCH_JOBS, "patient", lambda found: found is not None)
            held = (await kube.get(LEASES, TRAINER_LEASE, namespace=NAMESPACE))["spec"]["holderIdentity"]
            assert held == holder_of_trainer(SYSTEM)
            await _gives_way(kube)
        assert "holderIdentity" not in (await kube.get(LEASES, TRAINER_LEASE, namespace=NAMESPACE))["spec"], "it is given back"


async def _gives_way(kube: Kube) -> None:
    """Check that a process that takes Kubeflow Trainer's Lease gets all TrainJobs, and that other jobs are served meanwhile."""
    taken = {"holderIdentity": "trainer_2", "leaseDurationSeconds": 3600, "renewTime": "2026-01-01T00:00:01.000000Z"}
    await kube.patch(LEASES, TRAINER_LEASE, {"spec": taken}, namespace=NAMESPACE)
    event = await _event_about_the_lease(kube, NAMESPACE)
    assert "another process has taken Kubeflow Trainer's Lease, so this controller serves no TrainJobs" in event["message"]
    await kube.create(TRAIN_JOBS, named("later"), namespace="default")
    await kube.create(PYTORCH_JOBS, foreign("own-2"), namespace="default")
    await until(kube, PYTORCH_JOBS, "own-2", lambda found: bool((found.get("status") or {}).get("conditions")))
    assert await until(kube, PYTORCH_JOBS, "later", lambda found: True) is None
    await kube.delete(LEASES, TRAINER_LEASE, namespace=NAMESPACE)
    await until(kube, PYTORCH_JOBS, "later", lambda found: found is not None)


async def _event_about_the_lease(kube: Kube, namespace: str) -> Object:
    seen: list[Object] = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                seen = list((await kube.list(EVENTS, namespace=namespace)).items)
                if found := [event for event in seen if event["reason"] == "TrainJobsNotServed"]:
                    return found[0]
                await asyncio.sleep(0.2)
    except TimeoutError:
        pytest.fail(f"no Event says that TrainJobs are not served: {seen}")


async def test_a_kubeflow_trainer_of_another_namespace_is_given_way(kubeconfig: Path, tmp_path: Path) -> None:
    async with connect(kubeconfig) as kube:
        account = await account_for_train_jobs(kubeconfig, kube, tmp_path)
        await kube.create(NAMESPACES, {"metadata": {"name": "kubeflow"}})
        await define(kube)
        await _create_early(kube, CLUSTER_TRAINING_RUNTIMES, runtime())
        await _create_early(kube, TRAIN_JOBS, named("patient"))
        spec = {"holderIdentity": "trainer_1", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}
        await kube.create(LEASES, {"metadata": {"name": TRAINER_LEASE}, "spec": spec}, namespace="kubeflow")
        stop = asyncio.Event()
        renewing = asyncio.create_task(_renew(kube, stop))
        try:
            with controller(account, "--trainjobs", "instead", "--leader-elect", "--lease-namespace", SYSTEM, folder=tmp_path):
                event = await _event_about_the_lease(kube, "kubeflow")
                assert "Kubeflow Trainer runs in namespace kubeflow (trainer_1 holds its Lease there)" in event["message"]
                assert await until(kube, PYTORCH_JOBS, "patient", lambda found: True) is None
                stop.set()
                await until(kube, PYTORCH_JOBS, "patient", lambda found: found is not None)
        finally:
            stop.set()
            await renewing


async def _renew(kube: Kube, stop: asyncio.Event) -> None:
    """Hold Kubeflow Trainer's Lease in another namespace until told to stop, and leave it as a process that was killed does."""
    seconds = 0
    while not stop.is_set():
        seconds += 1
        renewed = {"spec": {"renewTime": f"2026-01-01T00:{seconds // 60:02}:{seconds % 60:02}.000000Z"}}
        await kube.patch(LEASES, TRAINER_LEASE, renewed, namespace="kubeflow")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), timeout=1)


async def test_next_to_kubeflow_trainer_it_serves_only_those_that_ask_for_it(kubeconfig: Path, tmp_path: Path) -> None:
    async with connect(kubeconfig) as kube:
        account = await account_for_train_jobs(kubeconfig, kube, tmp_path)
        await define(kube)
        await _create_early(kube, CLUSTER_TRAINING_RUNTIMES, runtime())
        for name, labels, facts in (
            ("theirs", {}, {}),
            ("only-labelled", {LABEL: VALUE}, {}),
            ("elsewhere", {}, {"managedBy": MULTI_KUEUE}),
            ("ours", {LABEL: VALUE}, {"managedBy": MULTI_KUEUE}),
        ):
            item = named(name, **facts)
            await _create_early(kube, TRAIN_JOBS, item | {"metadata": {"name": name, "labels": labels}})
        flags = ["--leader-elect", "--lease-namespace", SYSTEM]
        with controller(account, "--trainjobs", "beside", *flags, folder=tmp_path):
            await until(kube, PYTORCH_JOBS, "ours", lambda found: found is not None)
            await kube.patch(TRAIN_JOBS, "ours", {"spec": {"suspend": True}}, namespace="default")
            await until(kube, TRAIN_JOBS, "ours", lambda found: conditions(found) == [("Suspended", "True", "Suspended")])
            assert [item["metadata"]["name"] for item in (await kube.list(PYTORCH_JOBS, namespace="default")).items] == ["ours"]
            others = [item for item in (await kube.list(TRAIN_JOBS, namespace="default")).items if item["metadata"]["name"] != "ours"]
            assert [item.get("status") for item in others] == [None, None, None]
            assert (await kube.list(LEASES, namespace=NAMESPACE)).items == []


async def _without_a_runtime(kube: Kube) -> None:
    """Check that a TrainJob whose runtime does not exist says so, and starts once it does."""
    await _create_early(kube, TRAIN_JOBS, named("early"))
    await kube.create(TRAIN_JOBS, named("lost", runtimeRef={"kind": "TrainingRuntime", "name": "none"}), namespace="default")
    await until(kube, TRAIN_JOBS, "early", lambda found: conditions(found) == REFUSED)
    await until(kube, TRAIN_JOBS, "lost", lambda found: conditions(found) == REFUSED)
    assert await until(kube, PYTORCH_JOBS, "early", lambda found: True) is None
    await kube.create(CLUSTER_TRAINING_RUNTIMES, runtime())
    await until(kube, PYTORCH_JOBS, "early", lambda found: found is not None)
    await until(kube, TRAIN_JOBS, "early", lambda found: conditions(found) == [])


async def _create_early(kube: Kube, resource: Resource, item: Object) -> None:
    """Create an object of a kind that the server begins to serve."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await kube.create(resource, item, namespace="default")
            except KubeError as error:
                if error.code != 404:
                    raise
                await asyncio.sleep(0.2)
            else:
                return


async def _suspended_and_resumed(kube: Kube) -> None:
    def is_suspended(found: Any) -> bool:
        return bool(found["spec"]["runPolicy"]["suspend"])

    await kube.patch(TRAIN_JOBS, "early", {"spec": {"suspend": True}}, namespace="default")
    await until(kube, PYTORCH_JOBS, "early", is_suspended)
    await until(kube, TRAIN_JOBS, "early", lambda found: conditions(found) == [("Suspended", "True", "Suspended")])
    await kube.patch(TRAIN_JOBS, "early", {"spec": {"suspend": False}}, namespace="default")
    await until(kube, PYTORCH_JOBS, "early", lambda found: not is_suspended(found))
    await until(kube, TRAIN_JOBS, "early", lambda found: conditions(found) == [("Suspended", "False", "Resumed")])
    await kube.delete(TRAIN_JOBS, "early", namespace="default")
    await until(kube, PYTORCH_JOBS, "early", lambda found: found is None)


def foreign(name: str) -> Object:
    """Return a PyTorchJob that belongs to no TrainJob."""
    spec = {"containers": [{"name": "pytorch", "image": "any", "command": ["true"]}]}
    job: Object = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name}}
    return job | {"spec": {"pytorchReplicaSpecs": {"Worker": {"template": {"spec": spec}}}}}


async def _beside_another_job(kube: Kube) -> None:
    """Check that a PyTorchJob of this name that somebody else made blocks the TrainJob until it is gone."""
    await kube.create(PYTORCH_JOBS, foreign("taken"), namespace="default")
    namespaced = runtime() | {"kind": TRAINING_RUNTIMES.kind}
    await kube.create(TRAINING_RUNTIMES, namespaced, namespace="default")
    reference = {"kind": TRAINING_RUNTIMES.kind, "name": namespaced["metadata"]["name"]}
    await kube.create(TRAIN_JOBS, named("taken", runtimeRef=reference), namespace="default")
    await until(kube, TRAIN_JOBS, "taken", lambda found: conditions(found) == REFUSED)
    await kube.delete(PYTORCH_JOBS, "taken", namespace="default")
    await until(kube, PYTORCH_JOBS, "taken", lambda found: found is not None and bool(found["metadata"].get("ownerReferences")))
    await until(kube, TRAIN_JOBS, "taken", lambda found: conditions(found) == [])


async def _after_an_initializer(kube: Kube) -> None:
    """Check that the nodes wait for an initializer, also for its name, and that it goes with the nodes' job after the end."""
    loading, step = runtime(initializers=[initializer()]), "loads-dataset-initializer"
    loading["metadata"]["name"] = "loading"
    loading["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["volumes"] = []
    template = {"metadata": {"name": "initializer"}, "spec": CLAIM["spec"]}
    loading["spec"]["template"]["spec"]["volumeClaimPolicies"] = [{"templates": [template]}]
    await kube.create(PERSISTENT_VOLUME_CLAIMS, CLAIM, namespace="default")
    await kube.create(PYTORCH_JOBS, foreign(step), namespace="default")
    await kube.create(CLUSTER_TRAINING_RUNTIMES, loading)
    await kube.create(TRAIN_JOBS, named("loads", runtimeRef={"name": "loading"}), namespace="default")
    await until(kube, TRAIN_JOBS, "loads", lambda found: conditions(found) == REFUSED)
    await kube.delete(PYTORCH_JOBS, step, namespace="default")
    await _event(kube, "loads", "PersistentVolumeClaim initializer-loads exists and does not belong to this TrainJob")
    assert await until(kube, PYTORCH_JOBS, "loads", lambda found: True) is None
    await kube.delete(PERSISTENT_VOLUME_CLAIMS, "initializer-loads", namespace="default")
    await until(
        kube, PERSISTENT_VOLUME_CLAIMS, "initializer-loads", lambda found: found is not None and "ownerReferences" in found["metadata"]
    )
    await until(kube, PYTORCH_JOBS, step, lambda found: found is not None and bool(found["metadata"].get("ownerReferences")))
    await until(kube, PYTORCH_JOBS, "loads", lambda found: found["metadata"]["annotations"].get(WAITS_FOR) == "dataset-initializer")
    await _succeed(kube, step)
    await until(kube, PYTORCH_JOBS, "loads", lambda found: WAITS_FOR not in found["metadata"]["annotations"])
    await _succeed(kube, "loads")
    await until(kube, TRAIN_JOBS, "loads", lambda found: conditions(found) == [("Complete", "True", "AllJobsCompleted")])
    await kube.delete(PYTORCH_JOBS, "loads", namespace="default")
    await until(kube, PYTORCH_JOBS, step, lambda found: found is None)


async def _of_mpi(kube: Kube) -> None:
    """Check that a TrainJob with the policy mpi becomes an MPIJob, which follows it."""
    await kube.create(CLUSTER_TRAINING_RUNTIMES, next(item for item in objects() if item["metadata"]["name"] == "mpi-distributed"))
    await kube.create(TRAIN_JOBS, named("ranks", runtimeRef={"name": "mpi-distributed"}), namespace="default")
    await until(kube, MPI_JOBS, "ranks", lambda found: found is not None)
    await kube.patch(TRAIN_JOBS, "ranks", {"spec": {"suspend": True}}, namespace="default")
    await until(kube, MPI_JOBS, "ranks", lambda found: found["spec"]["runPolicy"]["suspend"] is True)
    await kube.delete(TRAIN_JOBS, "ranks", namespace="default")
    await until(kube, MPI_JOBS, "ranks", lambda found: found is None)


async def _event(kube: Kube, name: str, words: str) -> None:
    """Wait for an Event about a TrainJob that has these words."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            events = (await kube.list(EVENTS, namespace="default")).items
            if any(words in event["message"] and event["involvedObject"]["name"] == name for event in events):
                return
            await asyncio.sleep(0.2)


async def _succeed(kube: Kube, name: str) -> None:
    """Let a job have ended well."""
    await until(kube, PYTORCH_JOBS, name, lambda found: "status" in found)
    condition = {"type": "Succeeded", "status": "True", "reason": "x", "message": "m"}
    await kube.patch(PYTORCH_JOBS, name, {"status": {"conditions": [condition]}}, namespace="default", subresource="status")
