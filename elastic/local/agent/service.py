"""Start the nodes of a process with everything that they share: the holder's connection, the endpoint for logs and exec, the names."""

import asyncio
import os
import ssl
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from elastic.kube.cache import Cache
from elastic.kube.client import Kube
from elastic.local.agent import control
from elastic.local.agent.endpoint import Endpoint
from elastic.local.agent.environment import Object
from elastic.local.agent.fleet import Fleet, Place
from elastic.local.agent.images import Images, write_programs
from elastic.local.agent.launch import Settings
from elastic.local.agent.nodes import HOST_IP, Nodes
from elastic.local.agent.roster import NODE_GRACE_S, Member
from elastic.local.agent.usage import Usage
from elastic.local.files import Layout
from elastic.local.kept_logs import KeptLogs
from elastic.local.sandbox import Mode
from elastic.local.sandbox.channel import Channel

API_SERVER = ("kubernetes", "default")
RENDEZVOUS = ("elastic-rendezvous", "elastic-system")
ETCD = ("elastic-etcd", "elastic-system")
PASSED_ON = ("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "CUDA_HOME", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the nodes of a process."""

    data_dir: Path
    members: tuple[Member, ...]
    cwd: Path
    images: Images
    base_env: Mapping[str, str]
    """Environment of containers, in place of an image's."""
    api_host: str | None = None
    """The name or address by which pods find the API server; None for the gateway of their network."""
    grace_s: float = NODE_GRACE_S
    """Seconds for which the cluster tolerates a node's silence."""


async def start(group: asyncio.TaskGroup, kube: Kube, pods: "Cache[Object]", options: Options) -> str:
    """Start the nodes, and return the gateway's address once all are ready in the API and nodes can be added. The group runs them."""
    channel = await Channel.open(options.data_dir)
    described = await channel.describe()
    gateway = str(described["gateway"])
    settings = Settings(
        mode=Mode(described["mode"]),
        base_env=_environment(kube, options, gateway),
        cwd=str(options.cwd),
        claims=options.data_dir / "claims",
        host_ip=HOST_IP,
        capacity={},
        limits_memory=described["limits_memory"],
        images=options.images,
    )
    place = Place(
        options.data_dir / "nodes", KeptLogs(Layout(options.data_dir).kept_logs), {API_SERVER: gateway, RENDEZVOUS: gateway, ETCD: gateway}
    )
    fleet = Fleet(kube, channel, settings=settings, place=place, pods=pods)
    group.create_task(fleet.run())
    group.create_task(_follow(channel))
    usage = Usage(fleet.runners)
    group.create_task(usage.run())
    port = await Endpoint(fleet, channel, usage).start(HOST_IP, authority(kube))
    nodes = Nodes(group, fleet, port=port, folder=options.data_dir, holder=described["holder"], grace_s=options.grace_s)
    await nodes.start(options.members)
    # This comes before the cluster says that it is ready, because a command that follows must find the socket.
    listening = await control.listen(options.data_dir, nodes.add, nodes.kill)
    group.create_task(listening.serve_forever())
    return gateway


def _environment(kube: Kube, options: Options, gateway: str) -> dict[str, str]:
    programs = options.data_dir / "programs"
    write_programs(programs)
    ours, rest = options.base_env["PATH"].split(os.pathsep, 1)
    return {
        **options.base_env,
        "PATH": os.pathsep.join([ours, str(programs), rest]),
        "KUBERNETES_SERVICE_HOST": options.api_host or gateway,
        "KUBERNETES_SERVICE_PORT": str(urlsplit(kube.access.server).port or 443),
    }


async def _follow(channel: Channel) -> None:
    """End this process with the holder, because without it there are no sandboxes. The supervisor restarts both."""
    await channel.gone()
    raise SystemExit("the sandbox holder has gone")


def authority(kube: Kube) -> str:
    """Return the certificate authority that we trust, and that pods and the endpoint must trust."""
    if kube.access.tls is None:
        return ""
    return "".join(ssl.DER_cert_to_PEM_cert(der) for der in kube.access.tls.get_ca_certs(binary_form=True))


def base_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of pods: this Python's programs first on the PATH, and a few variables of the user's."""
    folder = str(Path(sys.executable).parent)
    path = environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    kept = {name: environ[name] for name in PASSED_ON if name in environ}
    return {**kept, "PATH": os.pathsep.join([folder, path])}
