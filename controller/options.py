"""What the command line and the environment said, as the parts of the process take it."""

from dataclasses import dataclass
from pathlib import Path

LEASE_S = 10.0
"""Long enough for an API server that is slow or being restarted, and short enough that jobs are not left alone for 15 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    kubeconfig: Path | None
    namespace: str | None
    kinds: tuple[str, ...]
    installation: Path | None
    rendezvous_url: str
    rendezvous_endpoint: str
    worker_image: str
    gang_scheduler: str
    cluster_domain: str
    init_image: str
    init_tries: int
    kubectl_image: str
    workers: int
    compat: str
    health_port: int
    metrics_port: int
    webhook_port: int
    webhook_fd: int | None
    webhook_name: str
    ready_file: Path | None
    leader_elect: bool
    lease_namespace: str
    lease_duration_s: float
    identity: str
