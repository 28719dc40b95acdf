"""Settings of the controller for all jobs. They are read once at the start and handed to every plan."""

from dataclasses import dataclass

from elastic_training.rendezvous.engine.messages.pace import WINDOW_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """How pods reach the rendezvous server, and the certificate authority that they trust."""

    endpoint: str
    ca: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    rendezvous: Rendezvous | None = None
    etcd: tuple[str, ...] = ()
    """The members of the installation's etcd, HOST:PORT as pods reach them; it has a certificate of the installation's CA."""
    worker_image: str = "elastic-worker:latest"
    gang_scheduler: str = ""
    cluster_domain: str = ""
    init_image: str = "alpine:3.10"
    init_tries: int = 100
    init_command: tuple[str, ...] = ()
    """The command by which that image waits for the name that is appended; empty for nslookup in a shell."""
    kubectl_image: str = "kubeflow/kubectl-delivery:latest"
    """Brings the exec client into MPI launchers."""
    kubectl_command: tuple[str, ...] = ()
    """The command that does it; empty for the image's own command."""
    pace_window_s: float = WINDOW_S
    """Seconds over which ranks measure their steps before they are compared."""
