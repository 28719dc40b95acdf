"""Read and check the environment of a worker's container. One error names everything that is missing."""

import dataclasses
import re
import ssl
import typing

TOKEN = "ELASTIC_TOKEN"
CA = "ELASTIC_CA"
MEMBER = "ELASTIC_MEMBER"
POD_UID = "ELASTIC_POD_UID"
POD_IP = "ELASTIC_POD_IP"
GENERATION = "ELASTIC_GENERATION"
"""The number of the world in which a worker starts, 0 in a provisional world."""
WORLD = "ELASTIC_WORLD"
"""The socket at which a worker can ask its agent to change worlds in process."""
REPORTS = "ELASTIC_REPORTS"
"""The socket at which the agent takes its workers' reports, if it meets its peers in an etcd."""
LIGHTNING_NODES = "PL_TRAINER_NUM_NODES"
"""Lightning's default for `Trainer(num_nodes=...)`. The agent sets it for each world: Lightning compares it with the world's size."""
PROTOCOL_HEADER = "Elastic-Protocol"
"""Names the version of the messages in every request and response, and when a WebSocket opens."""
PROTOCOL_MAJOR = 1
PROTOCOL_VERSION = "{}.5".format(PROTOCOL_MAJOR)


def unknown_version(named: typing.Optional[str]) -> str:
    """Say why messages of this version cannot be read; return "" if they can. Servers of releases before the header name no version."""
    if named is None or re.match(r"{}\.[0-9]{{1,4}}\Z".format(PROTOCOL_MAJOR), named):
        return ""
    return (
        "it speaks version {!r} of the messages, and this worker library knows versions {}.x only (its own is {}); "
        "use a worker image of a neighbouring release of the control plane"
    ).format(named[:32], PROTOCOL_MAJOR, PROTOCOL_VERSION)


def minor_version(named: typing.Optional[str]) -> int:
    """Return the minor version that a server named; 0 for a release that names none."""
    read = re.match(r"{}\.([0-9]{{1,4}})\Z".format(PROTOCOL_MAJOR), named or "")
    return int(read.group(1)) if read else 0


class SettingsError(ValueError):
    """The values given to reach the rendezvous cannot be used."""


class MissingSettings(SettingsError):
    """The environment lacks what the control plane gives to its jobs."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The address of the server, the identity of this member, and its credentials."""

    host: str
    port: int
    job: str
    member: str
    pod_uid: str
    address: str
    token: str = dataclasses.field(repr=False)
    ca: str = dataclasses.field(repr=False)

    @property
    def path(self) -> str:
        return "/v1/jobs/{}/members/{}".format(self.job, self.member)

    def tls(self) -> ssl.SSLContext:
        """Return a context that trusts only the installation's CA."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(cadata=self.ca)
        return context


def read(environment: typing.Mapping[str, str], *, endpoint: str, job: str, local_address: typing.Optional[str]) -> Settings:
    """Return the settings of this container. `endpoint` and `job` come from torchrun's own options."""
    missing = [name for name in (TOKEN, CA, MEMBER) if not environment.get(name)]
    if missing:
        raise MissingSettings(
            "the rendezvous backend elastic needs {} in the environment; the controller sets them for its jobs".format(", ".join(missing))
        )
    host, colon, port = endpoint.rpartition(":")
    if not colon or not port.isdigit() or not host:
        raise SettingsError("the rendezvous endpoint is {!r}; expected HOST:PORT of the rendezvous server".format(endpoint))
    if not job:
        raise SettingsError("the rendezvous id is empty; it must be the job's uid")
    return Settings(
        host=host.strip("[]"),
        port=int(port),
        job=job,
        member=environment[MEMBER],
        pod_uid=environment.get(POD_UID, ""),
        address=environment.get(POD_IP) or local_address or "127.0.0.1",
        token=environment[TOKEN],
        ca=environment[CA],
    )
