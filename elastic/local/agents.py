"""`python -m elastic.local.agents`: what makes the laptop's API server a cluster, in one process to spare memory: scheduler, controllers,
node agents. They share the client library and nothing else; each could run in a process of its own.
"""

import argparse
import asyncio
import logging
import os
import signal
import ssl
import sys
from pathlib import Path
from urllib.parse import urlsplit

from elastic.kube import connect
from elastic.kube.cache import Cache
from elastic.kube.client import Kube
from elastic.kube.resources import Object
from elastic.local.agent import control
from elastic.local.agent.endpoint import Endpoint
from elastic.local.agent.events import Recorder
from elastic.local.agent.fleet import Fleet, Place, pods_cache
from elastic.local.agent.images import ImageError, Images, parse_images, write_programs
from elastic.local.agent.launch import Settings
from elastic.local.agent.nodes import Nodes
from elastic.local.agent.roster import Member
from elastic.local.controllers.accounts import DefaultAccounts
from elastic.local.controllers.budgets import DisruptionBudgets
from elastic.local.controllers.garbage import GarbageCollector
from elastic.local.controllers.namespaces import NamespaceDeletion
from elastic.local.controllers.nodes import NodeLifecycle
from elastic.local.sandbox import Mode
from elastic.local.sandbox.channel import Channel
from elastic.local.scheduler.loop import Scheduler

log = logging.getLogger("elastic.local.agents")

HOST_IP = "127.0.0.1"
RENDEZVOUS = ("elastic-rendezvous", "elastic-system")
PASSED_ON = ("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "CUDA_HOME", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m elastic.local.agents", description="Scheduler, controllers and node agents.")
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path, required=True, help="where the sandbox's holder listens and pods have their folders")
    parser.add_argument("--nodes", type=int, default=1, help="nodes to start; 0 starts no scheduler either")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of each node")
    parser.add_argument("--node-grace-s", type=float, default=50.0, help="a node that is silent for so long is unreachable")
    parser.add_argument("--cwd", type=Path, required=True, help="working folder of containers that name none")
    parser.add_argument("--image", action="append", default=[], metavar="IMAGE=FOLDER", help="a folder with bin/ that stands for an image")
    parser.add_argument("--ready-file", type=Path, help="written when all nodes are in the API")
    return parser.parse_args()


async def run(args: argparse.Namespace, base_env: dict[str, str]) -> None:
    kube = connect(args.kubeconfig)
    async with kube:
        work = asyncio.create_task(_work(kube, args, base_env))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, work.cancel)
        try:
            await work
        except asyncio.CancelledError:
            log.info("stopped")


async def _work(kube: Kube, args: argparse.Namespace, base_env: dict[str, str]) -> None:
    pods = pods_cache(kube)
    async with asyncio.TaskGroup() as group:
        group.create_task(pods.run())
        group.create_task(DefaultAccounts(kube, _authority(kube)).run())
        group.create_task(NamespaceDeletion(kube).run())
        group.create_task(GarbageCollector(kube).run())
        group.create_task(DisruptionBudgets(kube, pods).run())
        if args.nodes:
            group.create_task(NodeLifecycle(kube, pods, grace_s=args.node_grace_s).run())
        if args.nodes:
            await _start_nodes(group, kube, pods, args, base_env)
        await pods.wait_synced()
        if args.ready_file:
            args.ready_file.write_text("ready\n")


async def _start_nodes(
    group: asyncio.TaskGroup, kube: Kube, pods: Cache[Object], args: argparse.Namespace, base_env: dict[str, str]
) -> None:
    channel = await Channel.open(args.data_dir)
    described = await channel.describe()
    mode, gateway = Mode(described["mode"]), described["gateway"]
    env = {**base_env, "KUBERNETES_SERVICE_HOST": gateway, "KUBERNETES_SERVICE_PORT": str(urlsplit(kube.access.server).port or 443)}
    programs = args.data_dir / "programs"
    write_programs(programs)
    ours, rest = env["PATH"].split(os.pathsep, 1)
    env["PATH"] = os.pathsep.join([ours, str(programs), rest])
    settings = Settings(
        mode=mode,
        base_env=env,
        cwd=str(args.cwd),
        claims=args.data_dir / "claims",
        host_ip=HOST_IP,
        capacity={},
        images=args.images,
    )
    place = Place(args.data_dir / "nodes", {("kubernetes", "default"): gateway, RENDEZVOUS: gateway})
    fleet = Fleet(kube, channel, settings=settings, place=place, pods=pods)
    group.create_task(fleet.run())
    endpoint = Endpoint(fleet.runner, channel)
    port = await endpoint.start(HOST_IP, _authority(kube))
    events = Recorder(kube, component="default-scheduler")
    group.create_task(events.run())
    group.create_task(Scheduler(kube, pods, events).run())
    group.create_task(_follow(channel))
    nodes = Nodes(group, fleet, port=port, folder=args.data_dir, holder=described["holder"])
    await nodes.start(tuple(Member(name=f"node-{index}", gpus=args.gpus) for index in range(args.nodes)))
    group.create_task(control.serve(args.data_dir, nodes.add, nodes.kill))


async def _follow(channel: Channel) -> None:
    """Without the holder there are no sandboxes; whoever supervises us starts both anew."""
    await channel.gone()
    raise SystemExit("the sandbox holder has gone")


def _authority(kube: Kube) -> str:
    """The certificate authority that we trust, as pods shall."""
    if kube.access.tls is None:
        return ""
    return "".join(ssl.DER_cert_to_PEM_cert(der) for der in kube.access.tls.get_ca_certs(binary_form=True))


def base_environment(environ: dict[str, str]) -> dict[str, str]:
    """What containers get where an image would bring it: this Python's programs first, and a little of who runs us."""
    folder = str(Path(sys.executable).parent)
    path = environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    kept = {name: environ[name] for name in PASSED_ON if name in environ}
    return {**kept, "PATH": os.pathsep.join([folder, path])}


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    args = arguments()
    try:
        args.images = Images(parse_images(args.image))
    except ImageError as error:
        sys.exit(str(error))
    asyncio.run(run(args, base_environment(dict(os.environ))))


if __name__ == "__main__":
    main()
