"""Find the jobs of a runtime by their roles: the nodes, and the initializers that run before them. Other jobs are refused."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from elastic.api.errors import Path, Problem, shown
from elastic.api.kinds import INITIALIZERS
from elastic.api.trainer.runtime import ReplicatedJob, Runtime
from elastic.api.trainer.train_job import ANCESTOR, ANCESTOR_TRAINER
from elastic_training.controller.deciding.trainjobs import nodes, support

JOBS = ("spec", "template", "spec", "replicatedJobs")
BACKOFF_LIMIT = 6
"""Failures after which a Job of Kubernetes gives up, if it does not name a number."""
RESTARTED = ("OnFailure", None)
COMPLETE = "Complete"
Placed: TypeAlias = tuple[ReplicatedJob, Path]


@dataclass(frozen=True, slots=True)
class Roles:
    """The jobs of a runtime."""

    nodes: ReplicatedJob
    at: Path
    """The place of the nodes' job."""
    launcher: ReplicatedJob | None
    """The job of the launcher, which only the policy mpi has."""
    initializers: tuple[ReplicatedJob, ...]

    def changed(self, change: Callable[[ReplicatedJob], ReplicatedJob]) -> "Roles":
        """Return these jobs after a change of each."""
        launcher = change(self.launcher) if self.launcher is not None else None
        return Roles(change(self.nodes), self.at, launcher, tuple(map(change, self.initializers)))

    @property
    def all(self) -> tuple[ReplicatedJob, ...]:
        return (*self.initializers, *([self.launcher] if self.launcher is not None else []), self.nodes)


def roles(runtime: Runtime, at: Path, problems: list[Problem]) -> Roles | None:
    """Return the jobs of a runtime, or None if it lacks one that trains. `at` is the place of the runtime."""
    job_set = runtime.spec.template.spec if runtime.spec.template is not None else None
    policy, at = runtime.spec.ml_policy, (*at, *JOBS)
    # The step of each job, which is that of a TrainJob's trainer for the job that has its command.
    steps: dict[str, str | None] = {**{step: step for step in INITIALIZERS}, nodes.NODE: ANCESTOR_TRAINER}
    if policy is not None and policy.mpi is not None:
        steps |= {nodes.LAUNCHER: ANCESTOR_TRAINER, nodes.NODE: None}
    found: dict[str, Placed] = {}
    for i, job in enumerate(job_set.replicated_jobs if job_set is not None else ()):
        step = ((job.template.metadata or {}).get("labels") or {}).get(ANCESTOR)
        if job.name in steps and steps[job.name] == step and job.name not in found:
            found[job.name] = (job, (*at, i))
        else:
            problems.append(Problem((*at, i), f"replicatedJob {shown(job.name)} {support.NOT_YET}"))
    needed = [name for name in (nodes.LAUNCHER, nodes.NODE) if name in steps]
    absent = [name for name in needed if name not in found]
    for name in absent:
        label = f" with the label {ANCESTOR}: {steps[name]}" if steps[name] is not None else f" without the label {ANCESTOR}"
        problems.append(Problem(at, f"the runtime has no job {name}{label}; add it"))
    missing = [problem for job, place in found.values() for problem in _of_containers(job, place)]
    problems += missing
    initializers = [name for name in found if name not in needed]
    for name, (job, place) in found.items():
        problems += support.in_job(job, place, known=("depends_on",) if name in needed else ())
        problems += restart_problems(job, place)
        problems += _of_initializer(job, place) if name in initializers else ()
    if absent or missing:
        return None
    node, launcher = found[nodes.NODE], found.get(nodes.LAUNCHER)
    problems += _of_dependencies(*node, needed=initializers)
    if launcher is not None:
        problems += _of_launcher(*launcher, initializers=initializers)
    return Roles(*node, launcher[0] if launcher is not None else None, tuple(found[name][0] for name in initializers))


def limit(job: ReplicatedJob) -> int:
    """Return the number of failures that a job survives."""
    limit = job.template.spec.backoff_limit if job.template.spec is not None else None
    return BACKOFF_LIMIT if limit is None else limit


def restart_problems(job: ReplicatedJob, at: Path) -> Iterator[Problem]:
    """Yield a restart policy that our jobs do not carry out as a Job does."""
    spec = job.template.spec
    policy = ((spec.template.get("spec") or {}) if spec is not None else {}).get("restartPolicy")
    if policy not in RESTARTED and not (policy == "Never" and limit(job) == 0):
        message = f"restartPolicy is {shown(policy)}; use OnFailure, or Never with backoffLimit 0"
        yield Problem((*at, "template", "spec", "template", "spec", "restartPolicy"), message)


def _of_containers(job: ReplicatedJob, at: Path) -> Iterator[Problem]:
    name = job.name if job.name in INITIALIZERS else nodes.NODE
    pod = job.template.spec.template if job.template.spec is not None else {}
    containers = (pod.get("spec") or {}).get("containers")
    if not any(isinstance(c, dict) and c.get("name") == name for c in containers or ()):
        yield Problem(at, f"the job {job.name} has no container {name}; add it")


def _of_dependencies(node: ReplicatedJob, at: Path, *, needed: Sequence[str]) -> Iterator[Problem]:
    """Yield what the nodes depend on besides the initializers, and the initializers on which they do not depend."""
    complete = {other.name for other in node.depends_on if other.status == COMPLETE}
    for i, other in enumerate(node.depends_on):
        if other.name not in needed or other.status != COMPLETE:
            message = (
                f"the nodes may depend only on initializers of the runtime, with the status Complete; found {other.name}: {other.status}"
            )
            yield Problem((*at, "dependsOn", i), message)
    for name in needed:
        if name not in complete:
            yield Problem((*at, "dependsOn"), f"the nodes start once {name} has completed; add it to dependsOn with the status Complete")


def _of_launcher(launcher: ReplicatedJob, at: Path, *, initializers: Sequence[str]) -> Iterator[Problem]:
    allowed = {(nodes.NODE, "Ready"), *((name, COMPLETE) for name in initializers)}
    for i, other in enumerate(launcher.depends_on):
        if (other.name, other.status) not in allowed:
            message = f"the launcher may depend on {nodes.NODE}: Ready and on initializers: Complete; found {other.name}: {other.status}"
            yield Problem((*at, "dependsOn", i), message)


def _of_initializer(job: ReplicatedJob, at: Path) -> Iterator[Problem]:
    spec = job.template.spec
    for field, count in (("parallelism", spec.parallelism), ("completions", spec.completions)) if spec is not None else ():
        if count not in (None, 1):
            yield Problem((*at, "template", "spec", field), f"{field} is {count}; an initializer has one pod")
