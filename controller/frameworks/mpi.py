"""MPI: a launcher whose end is the job's end, and workers in which it starts processes, through the API server or by ssh as the job says.
A config map tells the launcher who the workers are: `hostfile` those that should be, `discover_hosts.sh` those that run and stay.
"""

from collections.abc import Mapping, Sequence

from controller.deciding.job_view import JobView
from controller.deciding.replicas.tally import Tally
from controller.frameworks import mpi_exec, mpi_ssh
from controller.frameworks.mpi_hosts import LAUNCHER
from controller.frameworks.protocol import Framework, Replica
from elastic.api.job import Job, Object
from elastic.api.kinds import WORKER
from elastic.api.words import LauncherCreation


class Mpi(Framework):
    # Upstream doubles the word when a pod's end ends the job; clients compare it.
    failed_reason = "MPIJobFailed"
    template_reason = "SettedPodTemplate"

    def has_interchangeable_workers(self, job: Job) -> bool:
        return True

    def configure_pod(self, view: JobView, pod: Object, replica: Replica) -> Object:
        job, settings = view.job, view.snapshot.settings
        if mpi_ssh.is_chosen(job):
            return mpi_ssh.dressed(job, pod, replica, settings)
        return mpi_exec.launcher(job, pod, settings) if replica.type == LAUNCHER else mpi_exec.worker(job, pod)

    def leader_type(self, job: Job) -> str | None:
        return LAUNCHER

    def displayed_counts(self, job: Job, counts: Mapping[str, Tally]) -> Mapping[str, Tally]:
        """Once the launcher has ended the workers do not count any more: they wait for a call that will not come."""
        launcher = counts.get(LAUNCHER)
        if launcher is None or not (launcher.succeeded or launcher.failed):
            return counts
        return {type: count if type == LAUNCHER else Tally() for type, count in counts.items()}

    def objects(self, view: JobView) -> Sequence[Object]:
        return tuple(mpi_ssh.objects(view) if mpi_ssh.is_chosen(view.job) else mpi_exec.objects(view))

    def can_create(self, view: JobView, type: str) -> bool:
        """Over ssh nothing else delays the launcher until the workers listen; by exec its init container waits, and it has rights to
        workers that are there."""
        job = view.job
        if type == LAUNCHER and not mpi_ssh.is_chosen(job) and not mpi_exec.has_rights(view):
            return False
        by_default = LauncherCreation.WAIT_FOR_WORKERS if mpi_ssh.is_chosen(job) else LauncherCreation.AT_STARTUP
        policy = job.options.launcher_creation_policy or by_default
        if type != LAUNCHER or policy is LauncherCreation.AT_STARTUP:
            return True
        return sum(pod.type == WORKER.lower() and pod.is_active and pod.is_ready for pod in view.snapshot.pods) >= job.least_workers
