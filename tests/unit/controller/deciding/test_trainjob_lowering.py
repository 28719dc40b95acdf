"""A TrainJob becomes one job, or the fields that are not carried out are named."""

from typing import Any

import pytest
from train_job_builders import initializer, runtime, train_job

from elastic.api import parse
from elastic.api.job import Object
from elastic.api.kinds import PLAIN_NODES, TORCH_NODES
from elastic_training.controller.deciding.trainjobs.lowering import SNAPSHOT, lower


def lowered(job: Object, found: Object | None = None) -> Object:
    objects, problems = lower(job, runtime() if found is None else found)
    assert problems == []
    (made,) = objects
    return made


def problems(job: Object, found: Object | None = None) -> str:
    objects, found_problems = lower(job, runtime() if found is None else found)
    assert objects == []
    return "\n".join(map(str, found_problems))


def node(made: Object) -> Object:
    (container,) = made["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    return container


def test_the_job_has_the_train_jobs_name_and_belongs_to_it() -> None:
    made = lowered(train_job())
    assert (made["kind"], made["metadata"]["name"], made["metadata"]["namespace"]) == ("PyTorchJob", "fit", "team")
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == ("TrainJob", "fit", "t-1", True)
    job, warnings = parse(made)
    assert job.kind is TORCH_NODES
    assert warnings == []


def test_a_torch_job_keeps_its_size_and_survives_losses_unless_bounds_are_set() -> None:
    policy = lowered(train_job())["spec"]["elasticPolicy"]
    assert policy == {"minReplicas": 2, "maxReplicas": 2, "maxRestarts": 6}


@pytest.mark.parametrize(
    ("on_job", "on_runtime", "wanted"),
    [
        ({"min-nodes": "1", "max-nodes": "4"}, {}, (1, 4, 2)),
        ({"min-nodes": "1"}, {}, (1, 2, 2)),
        ({"max-nodes": "4"}, {}, (2, 4, 2)),
        ({}, {"min-nodes": "1", "max-nodes": "8"}, (1, 8, 2)),
        ({"max-nodes": "3"}, {"min-nodes": "1", "max-nodes": "8"}, (1, 3, 2)),
        ({"min-nodes": "1", "max-nodes": "4", "nodes": "3"}, {}, (1, 4, 3)),
    ],
)
def test_annotations_set_the_bounds(on_job: dict[str, str], on_runtime: dict[str, str], wanted: tuple[int, int, int]) -> None:
    def named(words: dict[str, str]) -> dict[str, str]:
        return {f"elastic-training/{key}": value for key, value in words.items()}

    spec = lowered(train_job(annotations=named(on_job)), runtime(annotations=named(on_runtime)))["spec"]
    policy = spec["elasticPolicy"]
    assert (policy["minReplicas"], policy["maxReplicas"], spec["pytorchReplicaSpecs"]["Worker"]["replicas"]) == wanted


def test_the_trainers_settings_win_over_the_runtimes() -> None:
    container = {"name": "node", "image": "old", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]}
    container["resources"] = {"limits": {"cpu": "1", "memory": "1Gi"}}
    trainer = {
        "image": "new",
        "command": ["run"],
        "args": ["-x"],
        "env": [{"name": "B", "value": "2"}, {"name": "C", "value": "3"}],
        "resourcesPerNode": {"limits": {"cpu": "3"}, "requests": {"cpu": "2500m"}},
    }
    made = lowered(train_job(trainer=trainer), runtime(pod={"containers": [container]}))
    assert node(made) == {
        "name": "node",
        "image": "new",
        "command": ["run"],
        "args": ["-x"],
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "C", "value": "3"}],
        "resources": {"limits": {"cpu": "3", "memory": "1Gi"}, "requests": {"cpu": "2500m"}},
    }


@pytest.mark.parametrize(
    ("trainer", "wanted"),
    [
        ({}, "1"),
        ({"numProcPerNode": 4}, "4"),
        ({"resourcesPerNode": {"requests": {"cpu": "2500m"}}}, "3"),
        ({"resourcesPerNode": {"limits": {"cpu": 2}}}, "2"),
        ({"resourcesPerNode": {"limits": {"nvidia.com/gpu": "8"}}}, "auto"),
        ({"resourcesPerNode": {"limits": {"nvidia.com/gpu": "8"}}, "numProcPerNode": 2}, "2"),
    ],
)
def test_a_node_has_as_many_processes_as_upstream_gives_it(trainer: Object, wanted: str) -> None:
    assert lowered(train_job(trainer=trainer))["spec"]["nprocPerNode"] == wanted


def test_pods_carry_the_labels_by_which_clients_find_them() -> None:
    labels = lowered(train_job())["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["metadata"]["labels"]
    assert labels["jobset.sigs.k8s.io/jobset-name"] == "fit"
    assert labels["jobset.sigs.k8s.io/replicatedjob-name"] == "node"
    assert labels["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"


def test_suspend_deadline_and_limits_become_the_run_policy() -> None:
    found = runtime(backoffLimit=2)
    found["spec"]["template"]["spec"]["ttlSecondsAfterFinished"] = 60
    spec = lowered(train_job(suspend=True, activeDeadlineSeconds=30), found)["spec"]
    wanted = {"cleanPodPolicy": "Running", "suspend": True, "activeDeadlineSeconds": 30, "ttlSecondsAfterFinished": 60}
    assert (spec["runPolicy"], spec["elasticPolicy"]["maxRestarts"]) == (wanted, 2)


def test_plain_nodes_have_no_rendezvous() -> None:
    made = lowered(train_job(), runtime({"numNodes": 3}))
    assert "elasticPolicy" not in made["spec"]
    assert made["spec"]["runPolicy"]["backoffLimit"] == 6
    assert parse(made)[0].kind is PLAIN_NODES


def test_the_runtime_stands_in_an_annotation_without_what_does_not_matter() -> None:
    found = runtime(annotations={"elastic-training/max-nodes": "5", "kubectl.kubernetes.io/last-applied-configuration": "{}"})
    kept = lowered(train_job(), found)["metadata"]["annotations"][SNAPSHOT]
    assert '"elastic-training/max-nodes":"5"' in kept
    assert "last-applied" not in kept


def with_(found: Object, at: str, value: Any) -> Object:
    *path, last = at.split(".")
    place: Any = found
    for key in path:
        place = place[int(key)] if key.isdecimal() else place.setdefault(key, {})
    place[last] = value
    return found


JOB = "spec.template.spec.replicatedJobs.0"
JOB_LIST = "spec.template.spec.replicatedJobs"


@pytest.mark.parametrize(
    ("at", "value"),
    [
        ("spec.initializer", {"dataset": {"storageUri": "hf://x"}}),
        ("spec.runtimePatches", [{"manager": "nobody"}]),
        ("metadata.annotations.elastic-training/compat", "strict"),
        ("metadata.annotations.elastic-training/min-nodes", "none"),
        ("metadata.annotations.elastic-training/nodes", "9"),
        ("spec.trainer.numNodes", 0),
        ("spec.trainer.numProcPerNode", 0),
        ("spec.trainer.env", [{"name": "PET_NNODES", "value": "3"}]),
        ("spec.trainer.command", ["tune", "run"]),
        ("spec.somethingNew", 1),
    ],
)
def test_a_field_of_a_train_job_that_is_not_carried_out_is_named(at: str, value: Any) -> None:
    assert at.rpartition(".")[2].rpartition("/")[2] in problems(with_(train_job(), at, value))


@pytest.mark.parametrize(
    ("at", "value"),
    [
        ("spec.template.spec.network", {"subdomain": "x"}),
        ("spec.template.spec.network.publishNotReadyAddresses", False),
        ("spec.template.spec.network.enableDNSHostnames", False),
        ("spec.template.spec.failurePolicy", {"maxRestarts": 3}),
        ("spec.template.spec.failurePolicy", {"rules": [{"action": "FailJobSet", "name": "x"}]}),
        ("spec.template.spec.successPolicy", {"operator": "All", "targetReplicatedJobs": ["other"]}),
        ("spec.template.spec.coordinator", {"replicatedJob": "node"}),
        (f"{JOB}.template.spec.completionMode", "NonIndexed"),
        ("spec.template.metadata.finalizers", ["x/y"]),
        (f"{JOB}.dependsOn", [{"name": "x", "status": "Ready"}]),
        (f"{JOB}.replicas", 2),
        (f"{JOB}.template.spec.podFailurePolicy", {"rules": []}),
        (f"{JOB}.template.spec.activeDeadlineSeconds", 5),
        (f"{JOB}.template.spec.template.spec.restartPolicy", "Never"),
    ],
)
def test_a_field_of_a_runtime_that_is_not_carried_out_is_named(at: str, value: Any) -> None:
    assert at.rpartition(".")[2] in problems(train_job(), with_(runtime(), at, value))


@pytest.mark.parametrize(
    ("at", "value"),
    [
        ("spec.template.spec.network", {"publishNotReadyAddresses": True, "enableDNSHostnames": True}),
        ("spec.template.spec.failurePolicy", {"maxRestarts": 0, "restartStrategy": "BlockingRecreate"}),
        ("spec.template.spec.successPolicy", {"operator": "All"}),
        ("spec.template.spec.successPolicy", {"operator": "Any", "targetReplicatedJobs": ["node"]}),
        ("spec.template.spec.startupPolicy", {"startupPolicyOrder": "InOrder"}),
        (f"{JOB}.template.spec.completionMode", "Indexed"),
    ],
)
def test_a_policy_of_a_job_set_that_our_jobs_follow_anyway_changes_nothing(at: str, value: Any) -> None:
    lowered(train_job(), with_(runtime(), at, value))


def test_the_completion_of_an_initializer_is_not_that_of_the_train_job() -> None:
    found = with_(runtime(initializers=[initializer()]), "spec.template.spec.successPolicy", {"operator": "Any"})
    assert "a TrainJob here completes with the job node" in problems(train_job(), found)


def test_a_runtime_of_torchtune_is_refused_although_the_train_job_names_no_command() -> None:
    job, found = train_job(), runtime(pod={"containers": [{"name": "node", "image": "any", "command": ["tune", "run", "recipe"]}]})
    del job["spec"]["trainer"]["command"]
    assert problems(job, found) == (
        f"ClusterTrainingRuntime.torch-distributed.{JOB_LIST}[0].template.spec.template.spec.containers: "
        "the command of the container node is tune run, but torchtune is not supported; use torchrun with a script of your own"
    )


def test_a_command_of_torchtune_is_refused_with_what_to_use() -> None:
    words = "spec.trainer.command: the command is tune run, but torchtune is not supported; use torchrun with a script of your own"
    assert problems(train_job(trainer={"command": ["tune", "run"], "args": ["recipe"]})) == words


def test_flux_is_refused_by_one_message_that_names_the_policy_to_use() -> None:
    at = "ClusterTrainingRuntime.torch-distributed.spec.mlPolicy.flux"
    words = "flux is the policy of this runtime, but Flux is not supported; use a runtime with the policy mpi"
    assert problems(train_job(trainer={"numProcPerNode": 2}), runtime({"flux": {}})) == f"{at}: {words}"


def variables(made: Object) -> dict[str, Any]:
    number = {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/job-completion-index']"}}
    return {one["name"]: "number" if one.get("valueFrom") == number else one["value"] for one in node(made)["env"]}


def test_nodes_with_the_policy_jax_know_their_coordinator() -> None:
    made = lowered(
        train_job(trainer={"env": [{"name": "JAX_PROCESS_ID", "value": "7"}, {"name": "A", "value": "1"}]}), runtime({"jax": {}})
    )
    assert variables(made) == {
        "A": "1",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": "number",
        "JAX_COORDINATOR_ADDRESS": "fit-node-0-0.fit:29500",
        "JAX_COORDINATOR_PORT": "29500",
        "JAX_DISTRIBUTED_BACKEND": "gloo",
    }
    assert parse(made)[0].kind is PLAIN_NODES


@pytest.mark.parametrize(("resources", "workers"), [({}, "2"), ({"limits": {"nvidia.com/gpu": "4"}}, "8")])
def test_nodes_with_the_policy_xgboost_know_their_tracker(resources: Object, workers: str) -> None:
    made = lowered(train_job(trainer={"resourcesPerNode": resources}), runtime({"xgboost": {}}))
    assert variables(made) == {
        "DMLC_TRACKER_URI": "fit-node-0-0.fit",
        "DMLC_TRACKER_PORT": "29500",
        "DMLC_TASK_ID": "number",
        "DMLC_NUM_WORKER": workers,
    }


def test_a_variable_of_xgboosts_policy_is_reserved() -> None:
    wrong = train_job(trainer={"env": [{"name": "DMLC_TASK_ID", "value": "3"}]})
    assert "must not have reserved envs, invalid envs configured: ['DMLC_TASK_ID']" in problems(wrong, runtime({"xgboost": {}}))


def test_other_jobs_of_a_runtime_are_named() -> None:
    found = runtime()
    found["spec"]["template"]["spec"]["replicatedJobs"].append({"name": "dataset-initializer", "template": {}})
    assert '"dataset-initializer" is not supported yet' in problems(train_job(), found)


def test_a_runtime_that_does_not_exist_is_named() -> None:
    objects, found = lower(train_job(), None)
    assert objects == []
    assert "ClusterTrainingRuntime torch-distributed does not exist" in str(found[0])


def test_a_runtime_of_another_group_is_refused_in_upstreams_words() -> None:
    job = train_job(runtimeRef={"name": "x", "apiGroup": "a.b", "kind": "Other"})
    assert "unsupported runtime: Other.a.b" in problems(job)


def test_nodes_that_would_not_be_valid_are_refused() -> None:
    assert "image is missing" in problems(train_job(), runtime(pod={"containers": [{"name": "node"}]}))


def test_plain_nodes_cannot_come_and_go_yet() -> None:
    job = train_job(annotations={"elastic-training/max-nodes": "4"})
    assert "policy torch" in problems(job, runtime({"numNodes": 2}))


def patch(manager: str = "kueue.x-k8s.io/manager", *, job: str = "node", metadata: Object | None = None, **pod: Any) -> Object:
    """Return a runtime patch of the pods of a job, or of all pods' metadata."""
    spec = {"replicatedJobs": [{"name": job, "template": {"spec": {"template": {"metadata": {"labels": {"a": "1"}}, "spec": pod}}}}]}
    template = {"spec": spec} | ({"metadata": metadata} if metadata else {})
    return {"manager": manager, "trainingRuntimeSpec": {"template": template}}


def test_patches_are_merged_into_the_runtimes_pods_in_their_order_and_the_trainer_wins() -> None:
    container = {"name": "node", "image": "old", "env": [{"name": "A", "value": "1"}], "volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    pod = {"containers": [container, {"name": "side", "image": "i"}], "nodeSelector": {"x": "1"}, "tolerations": [{"key": "old"}]}
    first = patch(
        nodeSelector={"pool": "spot", "x": "2"},
        tolerations=[{"key": "spot"}],
        volumes=[{"name": "v", "emptyDir": {}}],
        schedulingGates=[{"name": "kueue.x-k8s.io/topology"}],
        containers=[
            {"name": "node", "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": True}, {"name": "w", "mountPath": "/w"}]},
            {"name": "side", "env": [{"name": "B", "value": "2"}]},
        ],
    )
    second = patch("trainer.kubeflow.org/kubeflow-sdk", metadata={"labels": {"team": "x"}}, nodeSelector={"pool": "gpu"})
    made = lowered(train_job(trainer={"image": "new"}, runtimePatches=[first, second]), runtime(pod=pod))
    template = made["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    spec, (node_container, side) = template["spec"], template["spec"]["containers"]
    assert (spec["nodeSelector"], spec["tolerations"]) == ({"x": "2", "pool": "gpu"}, [{"key": "spot"}])
    assert (spec["volumes"], spec["schedulingGates"]) == ([{"name": "v", "emptyDir": {}}], [{"name": "kueue.x-k8s.io/topology"}])
    assert node_container["image"] == "new"
    assert node_container["env"] == [{"name": "A", "value": "1"}]
    assert node_container["volumeMounts"] == [{"name": "v", "mountPath": "/v", "readOnly": True}, {"name": "w", "mountPath": "/w"}]
    assert side["env"] == [{"name": "B", "value": "2"}]
    assert template["metadata"]["labels"]["a"] == "1"
    assert made["metadata"]["labels"]["team"] == "x"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            patch(job="workers"),
            'runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0].name: the runtime has no job "workers"',
        ),
        (patch(containers=[{"name": "x"}]), "containers[0].name: the job node of the runtime has no such container; it has node"),
        (patch(initContainers=[{"name": "node"}]), "initContainers[0].name: the job node of the runtime has no such container"),
        (patch(containers=[{"name": "node", "env": [{"name": "A"}]}]), "must not have envs for the node container; use spec.trainer.env"),
        (patch("example.com"), 'manager is "example.com"; it must be a domain and a path'),
        (patch(hostNetwork=True), "hostNetwork"),
    ],
)
def test_a_patch_that_does_not_fit_the_runtime_is_refused(wrong: Object, words: str) -> None:
    assert words in problems(train_job(runtimePatches=[wrong]))
