"""Hold the options of the command line, and find invalid ones."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elastic.membership.reading import reader_mistakes
from elastic.runtime.flags import kind_mistakes, port_mistakes


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    kubeconfig: Path | None
    namespace: str | None
    kinds: tuple[str, ...]
    rendezvous_url: str
    rendezvous_token: Path | None
    rendezvous_ca: Path | None
    cluster_grows: bool
    pages_through_api: bool
    health_port: int
    metrics_port: int
    metrics_api_port: int
    metrics_api_fd: int | None
    ready_file: Path | None
    leader_elect: bool
    lease_namespace: str
    lease_duration_s: float
    identity: str


def mistakes(options: Options) -> Iterator[str]:
    """Yield a sentence for each invalid option."""
    yield from kind_mistakes(options.kinds)
    yield from reader_mistakes(options.rendezvous_url, token=options.rendezvous_token, ca=options.rendezvous_ca)
    if options.metrics_api_port and options.metrics_api_fd is not None:
        yield "--metrics-api-port and --metrics-api-fd are both given; give one of them"
    ports = {"--health-port": options.health_port, "--metrics-port": options.metrics_port, "--metrics-api-port": options.metrics_api_port}
    yield from port_mistakes(ports)
