"""Find the jobs of a runtime by their roles: the nodes, and the initializers that run before them. Other jobs are refused."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from controller.deciding.trainjobs import nodes, support
from elastic.api.errors import Path, Problem, shown
from elastic.api.kinds import INITIALIZERS
from elastic.api.trainer.runtime import ReplicatedJob, Runtime
from elastic.api.trainer.train_job import ANCESTOR, ANCESTOR_TRAINER

JOBS = ("spec", "template", "spec", "replicatedJobs")
BACKOFF_LIMIT = 6
"""Failures after which a Job of Kubernetes gives up, if it does not name a number."""
RESTARTED = ("OnFailure", None)


@dataclass(frozen=True, slots=True)
class Roles:
    """The jobs of a runtime, in its order."""

    nodes: ReplicatedJob
    at: Path
    """The place of the nodes' job."""
    initializers: tuple[ReplicatedJob, ...]

    def changed(self, change: Callable[[ReplicatedJob], ReplicatedJob]) -> "Roles":
        """Return these jobs after a change of each."""
        return Roles(change(self.nodes), self.at, tuple(map(change, self.initializers)))

    @property
    def all(self) -> tuple[ReplicatedJob, ...]:
        return (*self.initializers, self.nodes)


def roles(runtime: Runtime, at: Path, problems: list[Problem]) -> Roles | None:
    """Return the jobs of a runtime, or None if it has no nodes. `at` is the place of the runtime."""
    job_set = runtime.spec.template.spec if runtime.spec.template is not None else None
    at = (*at, *JOBS)
    found: dict[str, tuple[ReplicatedJob, Path]] = {}
    for i, job in enumerate(job_set.replicated_jobs if job_set is not None else ()):
        step = ((job.template.metadata or {}).get("labels") or {}).get(ANCESTOR)
        is_known = (step == ANCESTOR_TRAINER and job.name == nodes.NODE) or (step == job.name and job.name in INITIALIZERS)
        if is_known and job.name not in found:
            found[job.name] = (job, (*at, i))
        else:
            problems.append(Problem((*at, i), f"replicatedJob {shown(job.name)} {support.NOT_YET}"))
    node = found.pop(nodes.NODE, None)
    if node is None:
        problems.append(Problem(at, f"the runtime has no job {nodes.NODE} with the label {ANCESTOR}: {ANCESTOR_TRAINER}; add it"))
        return None
    problems += support.in_job(*node, known=("depends_on",))
    problems += _of_dependencies(node[0], list(found), node[1])
    for job, place in found.values():
        problems += [*support.in_job(job, place), *_of_initializer(job, place)]
    missing = [problem for job, place in (node, *found.values()) for problem in _of_containers(job, place)]
    problems += missing
    return None if missing else Roles(*node, tuple(job for job, _ in found.values()))


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
    pod = job.template.spec.template if job.template.spec is not None else {}
    containers = (pod.get("spec") or {}).get("containers")
    if not any(isinstance(c, dict) and c.get("name") == job.name for c in containers or ()):
        yield Problem(at, f"the job {job.name} has no container {job.name}; add it")


def _of_dependencies(node: ReplicatedJob, initializers: Sequence[str], at: Path) -> Iterator[Problem]:
    """Yield what the nodes depend on besides the initializers, and the initializers on which they do not depend."""
    complete = {other.name for other in node.depends_on if other.status == "Complete"}
    for i, other in enumerate(node.depends_on):
        if other.name not in initializers or other.status != "Complete":
            message = (
                f"the nodes may depend only on initializers of the runtime, with the status Complete; found {other.name}: {other.status}"
            )
            yield Problem((*at, "dependsOn", i), message)
    for name in initializers:
        if name not in complete:
            yield Problem((*at, "dependsOn"), f"the nodes start once {name} has completed; add it to dependsOn with the status Complete")


def _of_initializer(job: ReplicatedJob, at: Path) -> Iterator[Problem]:
    spec = job.template.spec
    for field, count in (("parallelism", spec.parallelism), ("completions", spec.completions)) if spec is not None else ():
        if count not in (None, 1):
            yield Problem((*at, "template", "spec", field), f"{field} is {count}; an initializer has one pod")
    yield from restart_problems(job, at)
