"""Describe MPIJobs: the launcher's end is the job's end, and it starts processes in the workers, through the API server or by ssh.

A config map names the workers to the launcher: `hostfile` lists all that there should be, `discover_hosts.sh` those that it may use now.
"""

from collections.abc import Mapping, Sequence

from elastic.api.book import Leaving
from elastic.api.job import Job, Object
from elastic.api.kinds import WORKER
from elastic.api.words import LauncherCreation
from elastic.membership.hosts import Host
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.controller.deciding.replicas.tally import Tally
from elastic_training.controller.facts.settings import Settings
from elastic_training.controller.frameworks import mpi_discovery, mpi_exec, mpi_ssh, train_jobs
from elastic_training.controller.frameworks.mpi_hosts import LAUNCHER
from elastic_training.controller.frameworks.protocol import Framework, Replica


class Mpi(Framework):
    # Upstream doubles the word when a pod's end ends the job; clients compare it.
    failed_reason = "MPIJobFailed"
    template_reason = "SettedPodTemplate"

    def backend(self, job: Job, settings: Settings) -> RendezvousBackend:
        is_served = job.elastic is not None and settings.rendezvous is not None
        return RendezvousBackend.HOSTS if is_served else RendezvousBackend.NONE

    def hosts(self, view: JobView, leaving: Sequence[Leaving]) -> Sequence[Host]:
        return mpi_discovery.hosts(view, leaving)

    def has_interchangeable_workers(self, job: Job) -> bool:
        return True

    def configure_pod(self, view: JobView, pod: Object, replica: Replica) -> Object:
        job, settings = view.job, view.snapshot.settings
        if job.kind.role:
            pod = train_jobs.as_node(job, pod)
        if mpi_ssh.is_chosen(job):
            pod = mpi_ssh.dressed(job, pod, replica, settings)
        else:
            pod = mpi_exec.launcher(job, pod, settings) if replica.type == LAUNCHER else mpi_exec.worker(job, pod)
        if replica.type == LAUNCHER:
            mpi_discovery.with_access(view, pod["spec"])
        else:
            mpi_discovery.with_library(view, pod["spec"])
        return pod

    def leader_type(self, job: Job) -> str | None:
        return LAUNCHER

    def displayed_counts(self, job: Job, counts: Mapping[str, Tally]) -> Mapping[str, Tally]:
        """Return the counts. Once the launcher has ended, workers count as gone: the launcher will start nothing more in them."""
        launcher = counts.get(LAUNCHER)
        if launcher is None or not (launcher.succeeded or launcher.failed):
            return counts
        return {type: count if type == LAUNCHER else Tally() for type, count in counts.items()}

    def objects(self, view: JobView) -> Sequence[Object]:
        return tuple(mpi_ssh.objects(view) if mpi_ssh.is_chosen(view.job) else mpi_exec.objects(view))

    def can_create(self, view: JobView, type: str) -> bool:
        """Return whether pods of this type may be created now.

        By ssh, only this delays the launcher until the workers listen. By exec, its init container waits, but needs its rights first.
        """
        job = view.job
        if type == LAUNCHER and not mpi_ssh.is_chosen(job) and not mpi_exec.has_rights(view):
            return False
        by_default = LauncherCreation.WAIT_FOR_WORKERS if mpi_ssh.is_chosen(job) else LauncherCreation.AT_STARTUP
        policy = job.options.launcher_creation_policy or by_default
        if type != LAUNCHER or policy is LauncherCreation.AT_STARTUP:
            return True
        return sum(pod.type == WORKER.lower() and pod.is_active and pod.is_ready for pod in view.snapshot.pods) >= job.least_workers
