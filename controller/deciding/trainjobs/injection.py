"""Give the containers that a runtime's envInjection names the variables of torchrun. A check before training may then know its peers.

The nodes themselves need none of them, because they meet at our rendezvous.
"""

from collections.abc import Iterator, Mapping

from elastic.api.errors import Path, Problem
from elastic.api.job import Object
from elastic.api.trainer.runtime import EnvInjection, ReplicatedJob, Runtime
from elastic_training.controller.deciding.trainjobs import nodes
from elastic_training.controller.deciding.trainjobs.bounds import Bounds
from elastic_training.controller.deciding.trainjobs.policies import NUMBER, TRAINER_PORT, first_node

RUNTIME_REF: Path = ("spec", "runtimeRef")
KEYS = ("containers", "initContainers")


def targets(runtime: Runtime) -> Mapping[str, frozenset[str]]:
    """Return the names of the containers, by their job."""
    found = _policy(runtime)
    return {target.job_name: frozenset(target.container_names) for target in found.targets} if found is not None else {}


def problems(runtime: Runtime, jobs: Mapping[str, ReplicatedJob], limits: Bounds, at: Path) -> Iterator[Problem]:
    """Yield the containers that do not exist, and why the variables would be wrong. `at` is the place of the runtime."""
    wanted = targets(runtime)
    for job, containers in wanted.items():
        for container in sorted(containers - _containers(jobs[job]) if job in jobs else containers):
            # These words are Kubeflow Trainer's, except for the advice.
            message = (
                f'envInjection target podSet "{job}" container "{container}" not found in runtime template; add it, or remove the target'
            )
            yield Problem(RUNTIME_REF, message)
    if wanted and limits.least != limits.most:
        message = (
            f"envInjection tells containers one number of nodes, but this TrainJob may have {limits.least} to {limits.most}; "
            "remove envInjection, or the annotations that set the bounds"
        )
        yield Problem((*at, "spec", "mlPolicy", "torch", "envInjection"), message)


def inject(template: Object, containers: frozenset[str], *, train_job: str, count: int, processes: str) -> Object:
    """Give these containers of a pod template their variables. The template changes."""
    variables: list[Object] = [
        {"name": "PET_NNODES", "value": str(count)},
        {"name": "PET_NPROC_PER_NODE", "value": processes},
        {"name": "PET_NODE_RANK", "valueFrom": NUMBER},
        {"name": "PET_MASTER_ADDR", "value": first_node(train_job)},
        {"name": "PET_MASTER_PORT", "value": str(TRAINER_PORT)},
    ]
    for key in KEYS:
        for container in template["spec"].get(key) or ():
            if container.get("name") in containers:
                container["env"] = nodes.merged(container.get("env") or (), variables)
    return template


def _policy(runtime: Runtime) -> EnvInjection | None:
    policy = runtime.spec.ml_policy
    return policy.torch.env_injection if policy is not None and policy.torch is not None else None


def _containers(job: ReplicatedJob) -> frozenset[str]:
    spec = (job.template.spec.template if job.template.spec is not None else {}).get("spec") or {}
    return frozenset(str(container.get("name")) for key in KEYS for container in spec.get(key) or ())
