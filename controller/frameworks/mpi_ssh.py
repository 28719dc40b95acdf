"""MPI over ssh, as version v2beta1 of the MPI Operator has it.

Workers run sshd, all pods hold one key pair of the job's own, and a headless service named like the job gives each a full name. No pod
needs an account of the cluster's API.
"""

from collections.abc import Iterator, Sequence

from elastic.api.job import Job, Object
from elastic.api.names import job_labels
from elastic.api.words import MpiImplementation, MpiTransport
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.facts.settings import Settings
from elastic_training.controller.facts.snapshot import KeyPair, Snapshot
from elastic_training.controller.frameworks import mpi_discovery
from elastic_training.controller.frameworks.environment import Variable, variable, with_missing
from elastic_training.controller.frameworks.mpi_hosts import (
    CONFIG_PATH,
    EXECUTABLE,
    LAUNCHER,
    READABLE,
    config_map,
    launcher_name,
    metadata,
    running_workers,
    with_config,
    with_volume,
    workers,
)
from elastic_training.controller.frameworks.protocol import Replica

PRIVATE, PUBLIC = "ssh-privatekey", "ssh-publickey"
FILES = {"id_rsa": PRIVATE, "id_rsa.pub": PUBLIC, "authorized_keys": PUBLIC}
"""ssh and sshd look for keys of any type under these names."""
KEYS_VOLUME, ROOTS_FOLDER, OWNER_ONLY = "ssh-auth", "/root/.ssh", 0o600
TRIES = "-o ConnectionAttempts=10"
"""A worker counts as ready a moment before its sshd listens."""
POD_DOMAIN = "cluster.local"


def is_chosen(job: Job) -> bool:
    return job.options.mpi_transport is MpiTransport.SSH


def secret_name(job: Job) -> str:
    return f"{job.metadata.name}-ssh"


def lacks_keys(job: Job, snapshot: Snapshot) -> bool:
    """Return whether a key pair must be made before the next round. An existing pair is kept for the job's whole life."""
    return is_chosen(job) and _kept(job, snapshot) is None


def dressed(job: Job, pod: Object, replica: Replica, settings: Settings) -> Object:
    spec = pod["spec"]
    first = spec["containers"][0]
    spec["hostname"], spec["subdomain"] = pod["metadata"]["name"], job.metadata.name
    if spec.get("hostNetwork"):
        spec["dnsPolicy"] = "ClusterFirstWithHostNet"
    # The template's own values of these variables win.
    with_missing(pod, _environment(job, replica), only=first["name"])
    _with_keys(spec, job)
    if replica.type == LAUNCHER:
        with_config(spec, job, {"hostfile": READABLE, "discover_hosts.sh": EXECUTABLE})
        return pod
    if not first.get("command") and not first.get("args"):
        first["command"] = ["/usr/sbin/sshd", "-De"]
    # Intel MPI and MPICH call the launcher back by its plain host name.
    dns = spec.get("dnsConfig") or {}
    own = f"{job.metadata.name}.{job.metadata.namespace}.svc.{settings.cluster_domain or POD_DOMAIN}"
    spec["dnsConfig"] = {**dns, "searches": [*(dns.get("searches") or ()), own]}
    return pod


def _with_keys(spec: Object, job: Job) -> None:
    source: Object = {"secretName": secret_name(job), "items": [{"key": key, "path": path} for path, key in FILES.items()]}
    if job.options.ssh_auth_mount_path == ROOTS_FOLDER:
        # Root owns the files, and root's ssh refuses a key that others may read. With this mode, other users could not read the key.
        source["defaultMode"] = OWNER_ONLY
    with_volume(spec, {"name": KEYS_VOLUME, "secret": source}, at=job.options.ssh_auth_mount_path)


def _environment(job: Job, replica: Replica) -> Iterator[Variable]:
    yield variable("K_MPI_JOB_ROLE", replica.type.lower())
    if replica.type != LAUNCHER:
        return
    hosts, slots = f"{CONFIG_PATH}/hostfile", job.options.slots_per_worker
    match job.options.mpi_implementation:
        case MpiImplementation.OPEN_MPI:
            yield variable("OMPI_MCA_orte_keep_fqdn_hostnames", "true")
            yield variable("OMPI_MCA_orte_default_hostfile", hosts)
            yield variable("OMPI_MCA_plm_rsh_args", TRIES)
            yield variable("OMPI_MCA_orte_set_default_slots", slots)
            # Open MPI 5 reads none of these. ssh arguments set under the old name apply under the new one.
            yield variable("PRTE_MCA_prte_keep_fqdn_hostnames", "true")
            yield variable("PRTE_MCA_prte_default_hostfile", hosts)
            yield variable("PRTE_MCA_plm_ssh_args", "$(OMPI_MCA_plm_rsh_args)")
            yield variable("PRTE_MCA_prte_set_default_slots", slots)
        case MpiImplementation.INTEL:
            yield variable("I_MPI_HYDRA_HOST_FILE", hosts)
            yield variable("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", TRIES)
            yield variable("I_MPI_PERHOST", slots)
        case MpiImplementation.MPICH:
            yield variable("HYDRA_HOST_FILE", hosts)
            # The first is the MPI Operator's name for it; MPICH 4 reads the second.
            yield variable("HYDRA_LAUNCH_EXTRA_ARGS", TRIES)
            yield variable("HYDRA_LAUNCHER_EXTRA_ARGS", TRIES)
    if not job.options.run_launcher_as_worker:
        # The launcher may run on a node with GPUs without having asked for one; it must not see them.
        yield variable("NVIDIA_VISIBLE_DEVICES", "")
        yield variable("NVIDIA_DRIVER_CAPABILITIES", "")


def objects(view: JobView) -> Iterator[Object]:
    job, snapshot = view.job, view.snapshot
    domain = snapshot.settings.cluster_domain
    listed = [mpi_discovery.address(job, name, domain) for name in [*_launcher_host(job), *workers(view)]]
    keys = _kept(job, snapshot) or snapshot.fresh_keys
    if keys is not None:
        yield {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata(job, secret_name(job)),
            "type": "kubernetes.io/ssh-auth",
            "data": {PRIVATE: keys.private, PUBLIC: keys.public},
        }
    running = [mpi_discovery.address(job, name, domain) for name in [*_launcher_host(job), *running_workers(view)]]
    discover = mpi_discovery.script(view) if mpi_discovery.is_chosen(view) else _discover(running)
    yield config_map(job, {"hostfile": _hostfile(job, listed), "discover_hosts.sh": discover})
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, job.metadata.name),
        "spec": {
            "clusterIP": "None",
            "selector": job_labels(job.kind, job.metadata.name),
            # A cluster takes time to publish names, so they are published before the pods are ready.
            "publishNotReadyAddresses": True,
        },
    }


def _kept(job: Job, snapshot: Snapshot) -> KeyPair | None:
    """Return the key pair in the job's Secret, if it has both keys."""
    there = snapshot.find("Secret", secret_name(job))
    data = (there.raw.get("data") or {}) if there is not None else {}
    return KeyPair(data[PRIVATE], data[PUBLIC]) if data.get(PRIVATE) and data.get(PUBLIC) else None


def _launcher_host(job: Job) -> list[str]:
    return [launcher_name(job)] if job.options.run_launcher_as_worker else []


def _hostfile(job: Job, hosts: Sequence[str]) -> str:
    between = " slots=" if job.options.mpi_implementation is MpiImplementation.OPEN_MPI else ":"
    return "".join(f"{host}{between}{job.options.slots_per_worker}\n" for host in hosts)


def _discover(hosts: Sequence[str]) -> str:
    return "#!/bin/sh\n" + "".join(f"echo {host}\n" for host in hosts)
