"""Hold the values of the command line and the environment for the parts of the process, and find mistakes in them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elastic.api.names import DNS_1123
from elastic.api.trainer.modes import Mode
from elastic.runtime.flags import HIGHEST_PORT, kind_mistakes, port_mistakes


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    kubeconfig: Path | None
    namespace: str | None
    kinds: tuple[str, ...]
    installation: Path | None
    rendezvous_url: str
    rendezvous_endpoint: str
    etcd_endpoint: str
    etcd_url: str
    etcd_on_demand: bool
    follows_user_etcd: bool
    worker_image: str
    gang_scheduler: str
    train_jobs: Mode
    trainer_namespace: str
    cluster_domain: str
    init_image: str
    init_tries: int
    kubectl_image: str
    workers: int
    health_port: int
    metrics_port: int
    webhook_port: int
    webhook_fd: int | None
    webhook_name: str
    webhook_certificate: str
    ready_file: Path | None
    signals: Path | None
    leader_elect: bool
    lease_namespace: str
    lease_duration_s: float
    straggler_window_s: float
    identity: str


ENDPOINT = re.compile(r"(\[[0-9a-fA-F:]+\]|[^:/\s]+):([0-9]{1,5})\Z")


def mistakes(options: Options) -> Iterator[str]:
    """Yield a sentence for each option whose value cannot be right."""
    yield from kind_mistakes(options.kinds, of="controller")
    yield from _namespaces(options)
    yield from _rendezvous(options)
    yield from _etcd(options)
    yield from _ports(options)
    name = options.gang_scheduler
    if name and not all(map(DNS_1123.match, name.split("."))):
        yield f"--gang-scheduler-name is {name!r} but must be a scheduler's name in lower-case letters, digits, dashes and dots, as volcano"
    if options.init_tries < 1:
        yield f"--pytorch-init-container-max-tries is {options.init_tries} but must be at least 1"


def _namespaces(options: Options) -> Iterator[str]:
    for flag, name, otherwise in (
        ("--namespace", options.namespace, "leave the flag out for all namespaces"),
        ("--lease-namespace", options.lease_namespace or None, "leave the flag out for the controller's own"),
        ("--trainer-namespace", options.trainer_namespace, "leave the flag out for the default one"),
    ):
        if name is not None and not DNS_1123.match(name):
            yield f"{flag} is {name!r} but a namespace is named in lower-case letters, digits and dashes; {otherwise}"


def _rendezvous(options: Options) -> Iterator[str]:
    given = {
        "--rendezvous-url": bool(options.rendezvous_url),
        "--rendezvous-endpoint": bool(options.rendezvous_endpoint),
        "--installation": options.installation is not None,
    }
    if (given["--rendezvous-url"] or given["--rendezvous-endpoint"]) and not all(given.values()):
        missing = [flag for flag, is_given in given.items() if not is_given]
        yield f"{', '.join(flag for flag in given if flag not in missing)} alone is not enough; give {' and '.join(missing)} as well"
    if options.rendezvous_url and not options.rendezvous_url.startswith("https://"):
        yield f"--rendezvous-url is {options.rendezvous_url!r} but must begin with https://, because jobs' secrets are sent there"
    found = ENDPOINT.match(options.rendezvous_endpoint)
    if options.rendezvous_endpoint and (found is None or not 0 < int(found[2]) <= HIGHEST_PORT):
        yield f"--rendezvous-endpoint is {options.rendezvous_endpoint!r} but must be HOST:PORT"


def _etcd(options: Options) -> Iterator[str]:
    for flag, words in (("--etcd-endpoint", options.etcd_endpoint), ("--etcd-url", options.etcd_url)):
        for member in words.split(",") if words else ():
            found = ENDPOINT.match(member.strip())
            if found is None or not 0 < int(found[2]) <= HIGHEST_PORT:
                yield f"{flag} is {words!r} but must be HOST:PORT, several with commas between them"
    if options.etcd_endpoint and options.installation is None:
        yield "--etcd-endpoint alone is not enough; give --installation as well"
    if options.etcd_url and not options.etcd_endpoint:
        yield "--etcd-url is given without --etcd-endpoint, by which pods reach that etcd"


def _ports(options: Options) -> Iterator[str]:
    ports = {"--health-port": options.health_port, "--metrics-port": options.metrics_port, "--webhook-port": options.webhook_port}
    yield from port_mistakes(ports)
    if options.webhook_port and options.webhook_port in (options.health_port, options.metrics_port):
        yield f"--webhook-port is {options.webhook_port}, which another flag uses; give the webhook a port of its own"
    if options.webhook_port and options.webhook_fd is not None:
        yield "--webhook-port and --webhook-fd are both given; give one of them"
