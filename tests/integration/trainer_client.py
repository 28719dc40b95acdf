"""Run by the Python of an environment that has the package kubeflow and nothing of ours: `trainer_client.py KUBECONFIG STORY FOLDER`.

Does with TrainJobs what users of the SDK do, and prints one line of JSON: what it saw.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["KUBECONFIG"] = sys.argv[1]
FOLDER = Path(sys.argv[3])

from kubeflow.trainer import (  # noqa: E402
    CustomTrainer,
    CustomTrainerContainer,
    HuggingFaceDatasetInitializer,
    Initializer,
    TrainerClient,
)
from kubeflow.trainer.options import (  # noqa: E402
    Annotations,
    JobSetSpecPatch,
    JobSetTemplatePatch,
    JobSpecPatch,
    JobTemplatePatch,
    Labels,
    Name,
    PodTemplatePatch,
    ReplicatedJobPatch,
    RuntimePatch,
    TrainerCommand,
    TrainingRuntimeSpecPatch,
)
from kubernetes import client  # noqa: E402

GROUP = ("trainer.kubeflow.org", "v1alpha1", "default", "trainjobs")
WAIT_S = 150


def sum_ranks(word):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    print(f"{word}: sum of ranks {total.item():.0f} over {dist.get_world_size()}", flush=True)
    dist.destroy_process_group()


def train_until_told(folder):
    """Count steps in a file until the file `finish` is there; every rank ends with the same step."""
    import os
    import pathlib
    import time

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, world, state = dist.get_rank(), dist.get_world_size(), f"{folder}/state"
    step = int(pathlib.Path(state).read_text()) if os.path.exists(state) else 0
    print(f"rank {rank} of {world} begins at step {step}", flush=True)
    is_last = False
    while not is_last:
        told = torch.tensor([float(rank == 0 and os.path.exists(f"{folder}/finish"))])
        dist.all_reduce(told)
        is_last, step = bool(told.item()), step + 1
        if rank == 0:
            with open(f"{folder}/steps", "a") as steps:
                steps.write(f"{step} {world}\n")
            with open(f"{state}.new", "w") as new:
                new.write(str(step))
            os.replace(f"{state}.new", state)
        time.sleep(0.1)
    dist.destroy_process_group()


def until(holds: Callable[[], object], what: str) -> object:
    end = time.monotonic() + WAIT_S
    while not (found := holds()):
        if time.monotonic() > end:
            raise SystemExit(f"never within {WAIT_S} s: {what}")
        time.sleep(0.3)
    return found


def basics(trainer: TrainerClient) -> dict:
    seen: dict = {"runtimes": sorted(runtime.name for runtime in trainer.list_runtimes())}
    seen["runtime"] = trainer.get_runtime("torch-distributed").trainer.framework
    statuses = []
    name = trainer.train(
        runtime="torch-distributed",
        trainer=CustomTrainer(func=sum_ranks, func_args={"word": "hello"}, num_nodes=2, resources_per_node={"cpu": 1}),
        options=[Name("basic"), Labels({"team": "a"})],
    )
    job = trainer.wait_for_job_status(name, timeout=WAIT_S, polling_interval=1, callbacks=[lambda job: statuses.append(job.status)])
    seen["status"], seen["statuses"] = job.status, sorted(set(statuses))
    seen["steps"] = sorted((step.name, step.status, step.pod_name) for step in job.steps)
    seen["logs"] = list(trainer.get_job_logs(name))
    seen["followed"] = list(trainer.get_job_logs(name, follow=True))
    seen["second"] = list(trainer.get_job_logs(name, step="node-1"))
    seen["events"] = sorted({event.involved_object_kind for event in trainer.get_job_events(name)})
    seen["listed"] = [job.name for job in trainer.list_jobs()]
    trainer.delete_job(name)
    core = client.CoreV1Api()
    until(lambda: not core.list_namespaced_pod("default", label_selector=f"jobset.sigs.k8s.io/jobset-name={name}").items, "the pods go")
    seen["left"] = [job.name for job in trainer.list_jobs()]
    return seen


def plain(trainer: TrainerClient) -> dict:
    """Run containers without a policy, and a job that is refused."""
    words = "echo I am $JOB_COMPLETION_INDEX at $(hostname)"
    container, command = CustomTrainerContainer(image="any", num_nodes=2), TrainerCommand(["sh", "-c", words])
    pods = JobSpecPatch(template=PodTemplatePatch(metadata={"labels": {"cost": "spot"}}))
    nodes = ReplicatedJobPatch(name="node", template=JobTemplatePatch(spec=pods))
    patched = TrainingRuntimeSpecPatch(template=JobSetTemplatePatch(spec=JobSetSpecPatch(replicated_jobs=[nodes])))
    name = trainer.train(runtime="plain", trainer=container, options=[Name("plainly"), command, RuntimePatch(patched)])
    seen: dict = {"status": trainer.wait_for_job_status(name, timeout=WAIT_S, polling_interval=1).status}
    labelled = client.CoreV1Api().list_namespaced_pod("default", label_selector="cost=spot").items
    seen["patched"] = sorted(pod.metadata.name for pod in labelled)
    seen["logs"] = [list(trainer.get_job_logs(name, step=f"node-{number}")) for number in range(2)]
    trainer.delete_job(name)
    container = CustomTrainerContainer(image="any", num_nodes=1)
    wrong = [Name("refused"), Annotations({"elastic-training/max-nodes": "many"})]
    try:
        trainer.train(runtime="torch-distributed", trainer=container, options=wrong)
    except RuntimeError as error:
        seen["refused"] = json.loads(getattr(error.__cause__, "body", "null"))["message"]
    return seen


def elastic(trainer: TrainerClient) -> dict:
    custom, core = client.CustomObjectsApi(), client.CoreV1Api()

    def works_with(world: int, after: int) -> int:
        """Return the newest step if a world of this size made it after that one, else 0."""
        lines = (FOLDER / "steps").read_text().split("\n")[:-1] if (FOLDER / "steps").exists() else []
        step, size = map(int, lines[-1].split()) if lines else (0, 0)
        return step if size == world and step > after else 0

    name = trainer.train(
        runtime="torch-distributed",
        trainer=CustomTrainer(func=train_until_told, func_args={"folder": str(FOLDER)}, num_nodes=2, resources_per_node={"cpu": "100m"}),
        options=[Name("grows"), Annotations({"elastic-training/min-nodes": "1", "elastic-training/max-nodes": "3"})],
    )
    trainer.wait_for_job_status(name, {"Running"}, timeout=WAIT_S, polling_interval=1)
    step = until(lambda: works_with(2, 0), "two nodes train")
    custom.patch_namespaced_custom_object(*GROUP, name, {"metadata": {"annotations": {"elastic-training/nodes": "3"}}})
    step = until(lambda: works_with(3, step), "three nodes train")
    job = trainer.get_job(name)
    seen: dict = {"at three": job.status, "steps": sorted(step.name for step in job.steps)}
    first = next(each.pod_name for each in job.steps if each.name == "node-0")
    uid = core.read_namespaced_pod(first, "default").metadata.uid
    core.delete_namespaced_pod(first, "default", grace_period_seconds=0)
    step = until(lambda: works_with(2, step), "the other nodes go on")
    step = until(lambda: works_with(3, step), "three nodes train again")
    job = trainer.get_job(name)
    seen["after the loss"] = sorted(step.name for step in job.steps)
    seen["replaced"] = uid not in [each.metadata.uid for each in core.list_namespaced_pod("default").items]
    (FOLDER / "finish").touch()
    seen["end"] = trainer.wait_for_job_status(name, timeout=WAIT_S, polling_interval=1).status
    seen["logs"] = len(list(trainer.get_job_logs(name)))
    trainer.delete_job(name)
    return seen


def loading_runtime(name: str, *, data: str, model: str, limit: int) -> dict:
    """Return a runtime whose initializers run these commands of the shell, and may fail that often."""
    label = "trainer.kubeflow.org/trainjob-ancestor-step"

    def job(step: str, words: str) -> dict:
        env = [{"name": "STORAGE_URI", "value": "hf://default"}]
        container = {"name": step, "image": "any", "command": ["sh", "-c", words], "env": env}
        pod = {"spec": {"containers": [container]}}
        return {"name": step, "template": {"metadata": {"labels": {label: step}}, "spec": {"backoffLimit": limit, "template": pod}}}

    steps = ["dataset-initializer", "model-initializer"]
    node = job("node", "true")
    node["template"]["metadata"]["labels"] = {label: "trainer"}
    node["dependsOn"] = [{"name": step, "status": "Complete"} for step in steps]
    loads = job(steps[0], data)
    loads["template"]["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] = [{"name": "initializer", "mountPath": "/workspace"}]
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    claims = [{"templates": [{"metadata": {"name": "initializer"}, "spec": claim}]}]
    spec = {"replicatedJobs": [loads, job(steps[1], model), node], "volumeClaimPolicies": claims}
    metadata = {"name": name, "labels": {"trainer.kubeflow.org/framework": "torch"}}
    runtime = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "ClusterTrainingRuntime", "metadata": metadata}
    return runtime | {"spec": {"mlPolicy": {"numNodes": 1, "torch": {}}, "template": {"spec": spec}}}


def initialized(trainer: TrainerClient) -> dict:
    """Load data and model before two nodes train. The data is there at the second try, and the model waits for a file."""
    custom, core = client.CustomObjectsApi(), client.CoreV1Api()
    tried = f"{FOLDER}/tried"
    data = f'echo "loads $STORAGE_URI as $ACCESS_TOKEN"; test -f {tried} || {{ touch {tried}; exit 1; }}; echo words > /workspace/data'
    model = f'echo "loads $STORAGE_URI"; until test -f {FOLDER}/go; do sleep 0.2; done; touch {FOLDER}/model'
    runtimes = ("trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes")
    custom.create_cluster_custom_object(*runtimes, loading_runtime("loads", data=data, model=model, limit=6))
    source = HuggingFaceDatasetInitializer(storage_uri="hf://my/data", access_token="token")
    name = trainer.train(
        runtime="loads",
        initializer=Initializer(dataset=source),
        trainer=CustomTrainer(func=sum_ranks, func_args={"word": "loaded"}, num_nodes=2, resources_per_node={"cpu": "100m"}),
        options=[Name("loaded")],
    )

    def steps() -> list:
        return sorted([step.name, step.status] for step in trainer.get_job(name).steps)

    def states() -> list:
        status = custom.get_namespaced_custom_object(*GROUP, name).get("status", {})
        return [[job["name"], job["succeeded"], job["active"]] for job in status.get("jobsStatus", ())]

    waiting = [["dataset-initializer", "Succeeded"], ["model-initializer", "Running"]]
    until(lambda: steps() == waiting, "the data is there")
    seen: dict = {"before": until(lambda: states() if states()[0][1] else None, "the status says so"), "waiting": steps()}
    custom.patch_namespaced_custom_object(*GROUP, name, {"spec": {"suspend": True}})
    until(lambda: [step for step, _ in steps()] == ["dataset-initializer"], "the model is not loaded while suspended")
    custom.patch_namespaced_custom_object(*GROUP, name, {"spec": {"suspend": False}})
    until(lambda: steps() == waiting, "the model is loaded again, the data is not")
    seen["tried"] = core.read_namespaced_pod("loaded-dataset-initializer-worker-0", "default").status.container_statuses[0].restart_count
    (FOLDER / "go").touch()
    seen["end"] = trainer.wait_for_job_status(name, timeout=WAIT_S, polling_interval=1).status
    seen["after"], seen["steps"] = states(), steps()
    seen["claims"] = [claim.metadata.name for claim in core.list_namespaced_persistent_volume_claim("default").items]
    for step in ("dataset-initializer", "model-initializer", "node-0"):
        seen[step] = list(trainer.get_job_logs(name, step=step))
    trainer.delete_job(name)
    until(lambda: not core.list_namespaced_pod("default", label_selector=f"jobset.sigs.k8s.io/jobset-name={name}").items, "the pods go")
    until(lambda: not core.list_namespaced_persistent_volume_claim("default").items, "the claim goes")
    broken = loading_runtime("breaks", data="echo 'No such bucket' >&2; exit 3", model="sleep 600", limit=1)
    custom.create_cluster_custom_object(*runtimes, broken)
    name = trainer.train(runtime="breaks", options=[Name("broken")])
    seen["broken"] = trainer.wait_for_job_status(name, {"Failed"}, timeout=WAIT_S, polling_interval=1).status
    (condition,) = custom.get_namespaced_custom_object(*GROUP, name)["status"]["conditions"]
    seen["why"] = [condition["reason"], condition["message"]]
    until(lambda: not steps(), "the other initializer is stopped")
    trainer.delete_job(name)
    return seen


def mpi(trainer: TrainerClient) -> dict:
    """Start a rank on each of two nodes. The ranks wait for a file."""
    words = f"until test -f {FOLDER}/go; do sleep 0.2; done; echo rank $OMPI_COMM_WORLD_RANK at $(hostname)"
    command = TrainerCommand(["mpirun", "-np", "2", "sh", "-c", words])
    container = CustomTrainerContainer(image="any", num_nodes=2)
    name = trainer.train(runtime="mpi-distributed", trainer=container, options=[Name("ranks"), command])

    def steps() -> list:
        return sorted((step.name, step.pod_name) for step in trainer.get_job(name).steps)

    seen: dict = {"steps": until(lambda: found if len(found := steps()) == 3 else None, "launcher and nodes")}
    (FOLDER / "go").touch()
    seen["status"] = trainer.wait_for_job_status(name, timeout=WAIT_S, polling_interval=1).status
    # The shell in which ssh starts a program may print lines of its own.
    seen["logs"] = sorted(line for line in trainer.get_job_logs(name) if line.startswith("rank "))
    until(lambda: [pod for _, pod in steps()] == ["ranks-launcher-0-0"], "the nodes go with the launcher's end")
    trainer.delete_job(name)
    return seen


def main() -> None:
    story = {"basics": basics, "plain": plain, "elastic": elastic, "initialized": initialized, "mpi": mpi}[sys.argv[2]]
    print(json.dumps(story(TrainerClient())))


if __name__ == "__main__":
    main()
