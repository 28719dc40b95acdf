"""What the command line said, as the parts of the process take it, and what is wrong with it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elastic.api.kinds import KINDS

HIGHEST_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    kubeconfig: Path | None
    namespace: str | None
    kinds: tuple[str, ...]
    rendezvous_url: str
    rendezvous_token: Path | None
    rendezvous_ca: Path | None
    cluster_grows: bool
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
    """One sentence for each option that cannot be meant so."""
    if not options.kinds:
        yield f"--enable-kinds names no kind; choose from {', '.join(KINDS)}"
    for kind in options.kinds:
        if kind not in KINDS:
            yield f"--enable-kinds: {kind!r} is not a kind of this control plane; choose from {', '.join(KINDS)}"
    given = {
        "--rendezvous-url": bool(options.rendezvous_url),
        "--rendezvous-token": options.rendezvous_token is not None,
        "--rendezvous-ca": options.rendezvous_ca is not None,
    }
    if any(given.values()) and not all(given.values()):
        missing = " and ".join(flag for flag, is_given in given.items() if not is_given)
        yield f"{', '.join(flag for flag in given if given[flag])} alone is not enough; give {missing} as well"
    if options.rendezvous_url and not options.rendezvous_url.startswith("https://"):
        yield f"--rendezvous-url is {options.rendezvous_url!r} but must begin with https://"
    if options.metrics_api_port and options.metrics_api_fd is not None:
        yield "--metrics-api-port and --metrics-api-fd are both given; give one of them"
    ports = {"--health-port": options.health_port, "--metrics-port": options.metrics_port, "--metrics-api-port": options.metrics_api_port}
    for flag, port in ports.items():
        if not 0 <= port <= HIGHEST_PORT:
            yield f"{flag} is {port} but must be from 1 to {HIGHEST_PORT}, or 0 for none"
