"""The options of the command line, as the parts of the process take them, and their mistakes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elastic.membership.reading import reader_mistakes
from elastic.runtime.flags import HIGHEST_PORT, kind_mistakes, port_mistakes

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    kubeconfig: Path | None
    namespace: str | None
    kinds: tuple[str, ...]
    signals: Path | None
    rendezvous_url: str
    rendezvous_token: Path | None
    rendezvous_ca: Path | None
    listen: str
    listen_fd: int | None
    hosts: tuple[str, ...]
    tls: Path | None
    tls_elsewhere: bool
    laptop: Path | None
    user_kubeconfig: Path | None
    allow_changes: bool
    reclaim_command: tuple[str, ...]
    command_options: str
    health_port: int
    metrics_port: int
    ready_file: Path | None
    identity: str

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


def mistakes(options: Options) -> Iterator[str]:
    """Yield a sentence for each option whose value cannot be right."""
    yield from kind_mistakes(options.kinds)
    yield from reader_mistakes(options.rendezvous_url, token=options.rendezvous_token, ca=options.rendezvous_ca)
    yield from port_mistakes({"--health-port": options.health_port, "--metrics-port": options.metrics_port})
    host, colon, port = options.listen.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= HIGHEST_PORT):
        yield f"--listen is {options.listen!r} but must be HOST:PORT, such as 127.0.0.1:8080"
    elif host.strip("[]") not in LOOPBACK and options.tls is None and not options.tls_elsewhere:
        yield (
            f"--listen is {options.listen}, where tokens would cross the network readable by others; give --tls FOLDER with tls.crt and "
            "tls.key, or --tls-elsewhere if a proxy on this pod's network ends TLS"
        )
    if (options.laptop is None) != (options.user_kubeconfig is None):
        yield "--laptop and --user-kubeconfig belong together; give both or none"
    if options.reclaim_command and options.laptop is None:
        yield "--reclaim-command is for the laptop; give --laptop too, or leave it out"
