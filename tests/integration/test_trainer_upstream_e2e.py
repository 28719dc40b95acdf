"""The end-to-end tests of Kubeflow Trainer v2.3.0, told again for the laptop cluster. docs/trainjob-conformance.md has a row for each.

The laptop pulls no images, so each TrainJob has a command instead of that of its image.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from grounds import Ground
from train_job_sight import conditions, counts, pods_of, until, until_job

from elastic.kube import connect
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import CLUSTER_TRAINING_RUNTIMES, NAMESPACES, TRAIN_JOBS, TRAINING_RUNTIMES, Object, Resource
from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
PYTORCH_JOBS = Resource("kubeflow.org", "v1", "pytorchjobs", kind="PyTorchJob")
COMPLETE = [("Complete", "True", "AllJobsCompleted")]
LONG = ["sleep", "600"]
REPORT = """\
import json, os, ssl, urllib.request
status = {"progressPercentage": 42, "estimatedRemainingSeconds": 120, "lastUpdatedTime": "2026-01-01T00:00:00Z"}
status["metrics"] = [{"name": "loss", "value": "0.123"}, {"name": "accuracy", "value": "0.95"}]
server = {word: os.environ[f"KUBEFLOW_TRAINER_SERVER_{word}"] for word in ("URL", "CA_CERT", "TOKEN")}
headers = {"Authorization": "Bearer " + open(server["TOKEN"]).read().strip()}
request = urllib.request.Request(server["URL"], json.dumps({"trainerStatus": status}).encode(), headers)
urllib.request.urlopen(request, context=ssl.create_default_context(cafile=server["CA_CERT"]), timeout=60).read()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with Ground("auto").cluster(tmp_path_factory.mktemp("e2e")) as running:
        yield running


@pytest.fixture
async def place(cluster: LocalCluster, request: pytest.FixtureRequest) -> AsyncIterator[tuple[Kube, str]]:
    """Return a client, and a namespace of the test's own."""
    async with connect(cluster.kubeconfig) as kube:
        made = await kube.create(NAMESPACES, {"metadata": {"generateName": "e2e-"}})
        name = made["metadata"]["name"]
        yield kube, name
        await kube.delete(NAMESPACES, name)


def train_job(name: str, runtime: str = "torch-distributed", *, kind: str = "ClusterTrainingRuntime", **spec: Any) -> Object:
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": kind, "name": runtime}
    metadata = {"name": name}
    return {"apiVersion": TRAIN_JOBS.api_version, "kind": TRAIN_JOBS.kind, "metadata": metadata, "spec": {"runtimeRef": reference, **spec}}


def command(*words: str) -> Object:
    return {"trainer": {"command": list(words)}}


def is_active(job: Object) -> bool:
    return counts(job, "node")["active"] == 1


@pytest.mark.parametrize("runtime", ["torch-distributed", "jax-distributed", "xgboost-distributed"])
async def test_a_train_job_of_a_runtime_becomes_active_and_completes(place: tuple[Kube, str], runtime: str) -> None:
    kube, namespace = place
    await kube.create(TRAIN_JOBS, train_job("first", runtime, **command("sleep", "3")), namespace=namespace)
    active = await until_job(kube, "first", is_active, "active", namespace=namespace)
    (state,) = active["status"]["jobsStatus"]
    assert state | {"ready": 0} == {"name": "node", "ready": 0, "succeeded": 0, "failed": 0, "active": 1, "suspended": 0}
    done = await until_job(kube, "first", conditions, "finished", namespace=namespace)
    assert conditions(done) == COMPLETE
    assert done["status"]["conditions"][0]["message"] == "jobset completed successfully"
    assert done["status"]["jobsStatus"] == [{"name": "node", "ready": 0, "succeeded": 1, "failed": 0, "active": 0, "suspended": 0}]


async def test_a_train_job_of_flux_is_refused_by_name(place: tuple[Kube, str]) -> None:
    """Differs from upstream's case, whose job runs."""
    kube, namespace = place
    await kube.create(TRAINING_RUNTIMES, runtime_of("flux", {"flux": {}}), namespace=namespace)
    job = train_job("flux", "flux", kind="TrainingRuntime", trainer={"numNodes": 2, "command": ["flux", "getattr", "rank"]})
    with pytest.raises(KubeError, match=r"mlPolicy.flux: flux is the policy of this runtime, but Flux is not supported") as caught:
        await kube.create(TRAIN_JOBS, job, namespace=namespace)
    assert caught.value.code == 422


def patch(manager: str, pod: Object | None = None, time: str | None = None) -> Object:
    jobs = [{"name": "node", "template": {"spec": {"template": {"spec": pod}}}}]
    spec = {"trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}}} if pod is not None else {}
    return {"manager": manager, **spec, **({"time": time} if time is not None else {})}


OLD, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:30:00Z"


async def test_the_managers_and_times_of_patches_stay_as_their_authors_wrote_them(place: tuple[Kube, str]) -> None:
    """Differs from upstream's case, whose webhook sets a time that is missing."""
    kube, namespace = place
    patches = [
        patch("test.io/manager-one", {"serviceAccountName": "test-sa-1"}, OLD),
        patch("kueue.k8s.io/manager", {"serviceAccountName": "test-sa-2"}),
    ]
    made = await kube.create(TRAIN_JOBS, train_job("patched", runtimePatches=patches, **command("true")), namespace=namespace)
    assert [(one["manager"], one.get("time")) for one in made["spec"]["runtimePatches"]] == [
        ("test.io/manager-one", OLD),
        ("kueue.k8s.io/manager", None),
    ]


async def test_patches_of_a_suspended_train_job_change_and_keep_their_times(place: tuple[Kube, str]) -> None:
    """Differs from upstream's case, whose webhook gives a changed patch a new time."""
    kube, namespace = place
    patches = [
        patch("test.io/unchanged", {"nodeSelector": {"zone": "keep"}}),
        patch("test.io/will-change", {"nodeSelector": {"zone": "old"}}, OLD),
    ]
    job = train_job("patched", suspend=True, runtimePatches=patches, **command("true"))
    made = await kube.create(TRAIN_JOBS, job, namespace=namespace)
    changed = [made["spec"]["runtimePatches"][0], patch("test.io/will-change", {"nodeSelector": {"zone": "new"}}, OLD)]
    changed += [patch("test.io/new-no-time"), patch("test.io/new-with-time", time=LATER)]
    stored = await kube.patch(TRAIN_JOBS, "patched", {"spec": {"runtimePatches": changed}}, namespace=namespace)
    assert stored["spec"]["runtimePatches"] == changed
    assert [one.get("time") for one in changed] == [None, OLD, None, LATER]


async def test_a_train_job_of_another_controller_is_left_alone(place: tuple[Kube, str]) -> None:
    kube, namespace = place
    await kube.create(TRAIN_JOBS, train_job("theirs", managedBy="kueue.x-k8s.io/multikueue", **command("true")), namespace=namespace)
    await kube.create(TRAIN_JOBS, train_job("ours", **command("true")), namespace=namespace)
    done = await until_job(kube, "ours", conditions, "finished", namespace=namespace)
    assert conditions(done) == COMPLETE
    assert [job["metadata"]["name"] for job in (await kube.list(PYTORCH_JOBS, namespace=namespace)).items] == ["ours"]
    assert conditions(await kube.get(TRAIN_JOBS, "theirs", namespace=namespace)) == []


async def test_a_train_job_fails_at_its_deadline_and_its_pods_go(place: tuple[Kube, str]) -> None:
    kube, namespace = place
    await kube.create(TRAIN_JOBS, train_job("late", activeDeadlineSeconds=10, **command(*LONG)), namespace=namespace)
    failed = await until_job(kube, "late", conditions, "failed", namespace=namespace)
    assert conditions(failed) == [("Failed", "True", "DeadlineExceeded")]
    await until(lambda: pods_of(kube, "late", namespace=namespace), lambda pods: pods == [], "without pods")


async def test_a_node_reports_its_progress_by_the_variables_that_it_is_given(place: tuple[Kube, str]) -> None:
    kube, namespace = place
    job = train_job("told", trainer={"command": ["python3", "-c"], "args": [REPORT]})
    await kube.create(TRAIN_JOBS, job, namespace=namespace)
    done = await until_job(kube, "told", conditions, "finished", namespace=namespace)
    assert conditions(done) == COMPLETE
    told = done["status"]["trainerStatus"]
    assert (told["progressPercentage"], told["estimatedRemainingSeconds"]) == (42, 120)
    assert told["metrics"] == [{"name": "loss", "value": "0.123"}, {"name": "accuracy", "value": "0.95"}]
    assert told["lastUpdatedTime"]


def runtime_of(name: str, policy: Object | None = None, *, kind: str = "TrainingRuntime", image: str = "example.com/pause:3.9") -> Object:
    pod = {"spec": {"containers": [{"name": "node", "image": image, "command": LONG}]}}
    job = {"name": "node", "template": {"metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}}}
    job["template"] |= {"spec": {"template": pod}}
    spec = ({"mlPolicy": policy} if policy is not None else {}) | {"template": {"spec": {"replicatedJobs": [job]}}}
    return {"apiVersion": TRAIN_JOBS.api_version, "kind": kind, "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize("resource", [TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES], ids=lambda resource: resource.kind)
async def test_a_resumed_train_job_keeps_the_runtime_that_it_began_with(place: tuple[Kube, str], resource: Resource) -> None:
    kube, namespace = place
    where = namespace if resource is TRAINING_RUNTIMES else None
    await kube.create(resource, runtime_of("changes", kind=resource.kind), namespace=where)
    await kube.create(TRAIN_JOBS, train_job("kept", "changes", kind=resource.kind), namespace=namespace)
    await until_job(kube, "kept", is_active, "active", namespace=namespace)
    await kube.patch(TRAIN_JOBS, "kept", {"spec": {"suspend": True}}, namespace=namespace)
    await until_job(kube, "kept", lambda job: counts(job, "node")["suspended"], "suspended", namespace=namespace)
    jobs = runtime_of("changes", kind=resource.kind, image="example.com/pause:3.10")["spec"]["template"]
    await kube.patch(resource, "changes", {"spec": {"template": jobs}}, namespace=where)
    await kube.patch(TRAIN_JOBS, "kept", {"spec": {"suspend": False}}, namespace=namespace)
    await until_job(kube, "kept", is_active, "active again", namespace=namespace)
    (pod,) = await until(lambda: pods_of(kube, "kept", namespace=namespace), lambda pods: len(pods) == 1, "with its pod")
    assert pod["spec"]["containers"][0]["image"] == "example.com/pause:3.9"
    await kube.delete(TRAIN_JOBS, "kept", namespace=namespace)
    await until(lambda: kube.find(PYTORCH_JOBS, "kept", namespace=namespace), lambda found: found is None, "without what held its runtime")
    await kube.delete(resource, "changes", namespace=where)
