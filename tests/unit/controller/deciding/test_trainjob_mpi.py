"""A TrainJob with the policy mpi becomes an MPIJob over ssh: a launcher with the command, and nodes that run sshd."""

import copy
from typing import Any

import pytest
from job_builders import NOW, Cluster
from train_job_builders import all_owned, initializer, train_job

from elastic.api import parse
from elastic.api.job import Object
from elastic.api.kinds import MPI_NODES
from elastic.api.names import NODE_NUMBER, WAITS_FOR
from elastic.api.trainer.shipped import objects
from elastic.kube.resources import PODS
from elastic_training.controller.deciding.actions import Create
from elastic_training.controller.deciding.trainjobs.lowering import lower
from elastic_training.controller.deciding.trainjobs.plan import TrainJobPlan, TrainJobView, plan

JOB_SET = "jobset.sigs.k8s.io"


def runtime(*, node: Object | None = None, launcher: Object | None = None, **policy: Any) -> Object:
    """Return the runtime mpi-distributed with these settings of the policy, and these fields of the pods' containers."""
    made = copy.deepcopy(next(item for item in objects() if item["metadata"]["name"] == "mpi-distributed"))
    made["spec"]["mlPolicy"]["mpi"] |= policy
    for job, more in zip(made["spec"]["template"]["spec"]["replicatedJobs"], (node, launcher), strict=True):
        job["template"]["spec"]["template"]["spec"]["containers"][0].update(more or {})
    return made


def job_set(found: Object) -> Object:
    spec: Object = found["spec"]["template"]["spec"]
    return spec


def lowered(job: Object | None = None, found: Object | None = None) -> Object:
    made, *_ = all_owned(job or train_job(), found or runtime())
    return made


def replicas(made: Object) -> tuple[Object, Object]:
    specs = made["spec"]["mpiReplicaSpecs"]
    return specs["Launcher"], specs["Worker"]


def container(replica: Object) -> Object:
    found: Object = replica["template"]["spec"]["containers"][0]
    return found


def test_the_command_is_the_launchers_and_the_nodes_run_sshd() -> None:
    made = lowered(train_job(trainer={"command": ["mpirun", "x"], "image": "mine", "env": [{"name": "A", "value": "1"}]}))
    assert (made["kind"], made["metadata"]["name"]) == ("MPIJob", "fit")
    launcher, nodes = replicas(made)
    assert (launcher["replicas"], nodes["replicas"]) == (1, 2)
    assert (container(launcher)["command"], container(launcher)["image"]) == (["mpirun", "x"], "mine")
    assert {"name": "A", "value": "1"} in container(launcher)["env"]
    assert "sshd" in container(nodes)["command"][-1]
    assert "env" not in container(nodes)
    spec = {key: value for key, value in made["spec"].items() if key not in ("runPolicy", "mpiReplicaSpecs")}
    assert spec == {
        "mpiTransport": "SSH",
        "mpiImplementation": "OpenMPI",
        "sshAuthMountPath": "/root/.ssh",
        "slotsPerWorker": 1,
        "runLauncherAsWorker": False,
        "launcherCreationPolicy": "WaitForWorkersReady",
    }
    job, warnings = parse(made)
    assert job.kind is MPI_NODES
    assert warnings == []


def test_a_launcher_that_is_a_node_takes_the_place_of_one_and_shares_its_settings() -> None:
    trainer = {
        "env": [{"name": "A", "value": "1"}],
        "resourcesPerNode": {"limits": {"nvidia.com/gpu": "4"}},
        "image": "mine",
        "numNodes": 3,
    }
    made = lowered(train_job(trainer=trainer), runtime(runLauncherAsNode=True, sshAuthMountPath="/home/mpiuser/.ssh"))
    launcher, nodes = replicas(made)
    assert nodes["replicas"] == 2
    assert made["spec"]["runLauncherAsWorker"] is True
    assert made["spec"]["sshAuthMountPath"] == "/home/mpiuser/.ssh"
    assert made["spec"]["slotsPerWorker"] == 4, "one process for each GPU"
    assert {"name": "A", "value": "1"} in container(nodes)["env"]
    assert container(nodes)["resources"] == container(launcher)["resources"] == {"limits": {"nvidia.com/gpu": "4"}}
    assert (container(launcher)["image"], container(nodes)["image"] == "mine") == ("mine", False)


@pytest.mark.parametrize(("trainer", "policy", "wanted"), [({"numProcPerNode": 3}, {}, 3), ({}, {"numProcPerNode": 2}, 2)])
def test_the_processes_of_a_node_are_the_train_jobs_or_the_runtimes(trainer: Object, policy: Object, wanted: int) -> None:
    assert lowered(train_job(trainer=trainer), runtime(**policy))["spec"]["slotsPerWorker"] == wanted


def test_one_node_and_a_launcher_that_is_a_node_are_two_hosts_as_upstream() -> None:
    assert replicas(lowered(train_job(trainer={"numNodes": 1}), runtime(runLauncherAsNode=True)))[1]["replicas"] == 1


def test_pods_have_the_names_numbers_and_labels_by_which_the_sdk_finds_them() -> None:
    town = Cluster(parse(lowered())[0])
    town.settle()
    town.run_all()
    pods = {action.object["metadata"]["name"]: action.object for one in town.settle() for action in one.actions if _makes_pod(action)}
    assert set(town.pods) == {"fit-launcher-0-0", "fit-node-0-0", "fit-node-0-1"}
    launcher = pods["fit-launcher-0-0"]
    labels = launcher["metadata"]["labels"]
    assert (labels[NODE_NUMBER], labels[f"{JOB_SET}/replicatedjob-name"], labels[f"{JOB_SET}/jobset-name"]) == ("0", "launcher", "fit")
    assert labels["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"
    assert (launcher["spec"]["hostname"], launcher["spec"]["subdomain"]) == ("fit-launcher-0-0", "fit")
    environment = {entry["name"]: entry.get("value") for entry in launcher["spec"]["containers"][0]["env"]}
    assert environment["OMPI_MCA_orte_default_hostfile"] == "/etc/mpi/hostfile"
    nodes = [f"fit-node-0-{index}.fit." for index in range(2)]
    hosts = next(owned.raw["data"]["hostfile"] for (kind, _), owned in town.owned.items() if kind == "ConfigMap")
    assert all(line.startswith(node) and line.endswith(" slots=1") for line, node in zip(hosts.splitlines(), nodes, strict=True))


def _makes_pod(action: object) -> bool:
    return isinstance(action, Create) and action.resource == PODS


def test_the_nodes_container_comes_first_because_keys_are_mounted_there() -> None:
    found = runtime()
    for job in job_set(found)["replicatedJobs"]:
        job["template"]["spec"]["template"]["spec"]["containers"].insert(0, {"name": "sidecar", "image": "any"})
    assert [container(replica)["name"] for replica in replicas(lowered(found=found))] == ["node", "node"]


def changed(at: str, value: Any) -> Object:
    found = runtime()
    *path, last = at.split(".")
    place: Any = found["spec"]
    for key in path:
        place = place[int(key)] if key.isdecimal() else place[key]
    place[last] = value
    return found


JOBS = "template.spec.replicatedJobs"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (changed("template.spec.successPolicy", None), "a TrainJob here completes with the job launcher; let successPolicy name it"),
        (changed("template.spec.successPolicy.targetReplicatedJobs", ["node"]), "completes with the job launcher"),
        (changed(f"{JOBS}.1.dependsOn", [{"name": "node", "status": "Complete"}]), "found node: Complete"),
        (changed(f"{JOBS}.0.dependsOn", [{"name": "launcher", "status": "Ready"}]), "found launcher: Ready"),
        (
            changed(f"{JOBS}.0.template.metadata", {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}),
            "has no job node without",
        ),
        (changed(f"{JOBS}.0.template.spec.backoffLimit", 2), "backoffLimit is 2, but 6 for the launcher"),
        (changed("mlPolicy.mpi.mpiImplementation", ""), "mpiImplementation is empty; use OpenMPI"),
        (changed("mlPolicy", {"torch": {}}), 'replicatedJob "launcher" is not supported yet'),
    ],
)
def test_a_runtime_that_the_mpijob_would_not_carry_out_is_refused(found: Object, words: str) -> None:
    made, problems = lower(train_job(), found)
    assert made == []
    assert words in "\n".join(map(str, problems))


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (train_job(trainer={"env": [{"name": "OMPI_MCA_plm_rsh_args", "value": "x"}]}), "must not have reserved envs"),
        (train_job(annotations={"elastic-training/max-nodes": "4"}), "only nodes with the policy torch can come and go"),
    ],
)
def test_a_train_job_may_not_set_what_belongs_to_the_policy(job: Object, words: str) -> None:
    made, problems = lower(job, runtime())
    assert made == []
    assert words in "\n".join(map(str, problems))


def planned(job: Object, named: Object | None, **more: Any) -> TrainJobPlan:
    return plan(TrainJobView(job, runtime(), named, NOW, **more))


def test_launcher_and_nodes_have_a_state_each() -> None:
    there = lowered() | {"status": {"replicaStatuses": {"Launcher": {"active": 1}, "Worker": {"active": 1}}}}
    status = planned(train_job(), there).status
    assert status is not None
    assert [(state["name"], state["ready"], state["active"]) for state in status["jobsStatus"]] == [("launcher", 1, 1), ("node", 0, 1)]


def test_suspension_and_patches_reach_the_mpijob() -> None:
    pod = {"spec": {"template": {"spec": {"nodeSelector": {"pool": "a"}}}}}
    jobs = [{"name": name, "template": pod} for name in ("launcher", "node")]
    patch = {"manager": "a.b/c", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}}}
    change = planned(train_job(runtimePatches=[patch]), lowered(train_job(suspend=True))).change
    assert change is not None
    selector = {"template": {"spec": {"nodeSelector": {"pool": "a"}}}}
    assert change["spec"] == {"runPolicy": {"suspend": False}, "mpiReplicaSpecs": {"Launcher": selector, "Worker": selector}}


def test_an_mpijob_of_somebody_else_is_named_as_such() -> None:
    other = lowered()
    other["metadata"] |= {"ownerReferences": [], "annotations": {}}
    status = planned(train_job(), other).status
    assert status is not None
    assert "MPIJob fit exists and does not belong to this TrainJob" in status["conditions"][0]["message"]


def test_a_controller_without_mpijobs_says_so() -> None:
    made = planned(train_job(), None, serves_mpi=False)
    assert made.create == ()
    assert made.status is not None
    assert "the controller does not serve MPIJobs" in made.status["conditions"][0]["message"]


def test_initializers_run_before_launcher_and_nodes() -> None:
    found = runtime()
    job_set(found)["replicatedJobs"][0]["dependsOn"] = [{"name": "dataset-initializer", "status": "Complete"}]
    job_set(found)["replicatedJobs"].insert(0, initializer())
    nodes, loads = all_owned(train_job(), found)
    assert (loads["kind"], nodes["metadata"]["annotations"][WAITS_FOR]) == ("PyTorchJob", "dataset-initializer")
    town = Cluster(parse(nodes)[0])
    town.settle()
    assert town.pods == {}
    status = plan(TrainJobView(train_job(), found, nodes, NOW, initializers={"dataset-initializer": loads})).status
    assert status is not None
    assert [state["name"] for state in status["jobsStatus"]] == ["dataset-initializer", "launcher", "node"]
