"""`python -m elastic.local.agent`: run nodes on this machine for any API server, the laptop's or a real one."""

import argparse
import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from elastic.kube import connect
from elastic.kube.access import AccessError
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.local.agent import forward
from elastic.local.agent.fleet import pods_cache
from elastic.local.agent.images import ImageError, Images, parse_images
from elastic.local.agent.roster import NODE_GRACE_S, Member
from elastic.local.agent.service import Options, authority, base_environment, start
from elastic.local.files import FolderError, take_folder
from elastic.local.sandbox import Mode
from elastic.local.sandbox.channel import RUNNING, ask, listen_inside
from elastic.logs import log_plainly

log = logging.getLogger("elastic.local.agent")

API_NAME = "kubernetes.default.svc"
"""A name that the API server's certificate always has. It does not have the address of the gateway through which pods reach the server."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m elastic.local.agent", description="Nodes whose pods are processes of this machine.")
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--node", required=True, action="append", metavar="NAME", help="repeatable")
    parser.add_argument("--data-dir", type=Path, required=True, help="folder for the folders of pods")
    choices = ["auto", *(mode.value for mode in Mode), RUNNING]
    parser.add_argument("--sandbox", choices=choices, default="auto", help=f"{RUNNING}: use the holder that serves the data folder already")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of each node")
    parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="a label of each node; repeatable")
    parser.add_argument(
        "--image", action="append", default=[], metavar="IMAGE=FOLDER", help="a folder with bin/ that replaces an image; repeatable"
    )
    parser.add_argument(
        "--forward",
        type=int,
        action="append",
        default=[],
        metavar="PORT",
        help="a port of 127.0.0.1 that pods reach at their gateway; repeatable",
    )
    parser.add_argument("--node-grace-s", type=float, default=NODE_GRACE_S, help="seconds for which the cluster tolerates a node's silence")
    parser.add_argument("--cwd", type=Path, default=Path.cwd(), help="working folder of containers that name no folder")
    parser.add_argument("--ready-file", type=Path, help="written when the nodes are in the API")
    return parser.parse_args()


@contextmanager
def holder(folder: Path, sandbox: str) -> Iterator[Mode]:
    """Start the holder with the first allowed sandbox that works here, and end it with us, or use a holder that runs already."""
    if sandbox == RUNNING:
        yield Mode(ask(folder, "describe")[0]["mode"])
        return
    modes = list(Mode) if sandbox == "auto" else [Mode(sandbox)]
    for mode in modes:
        command = [sys.executable, "-m", "elastic.local.sandbox.holder", str(folder), mode.value]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        if process.stdout.readline() == b"ready\n":
            try:
                yield mode
            finally:
                process.terminate()
                process.wait()
            return
        process.wait()
        log.warning("sandbox %s is not possible here", mode.value)
    raise SystemExit("no sandbox can be made on this machine")


async def run(args: argparse.Namespace, images: Images, mode: Mode, base_env: dict[str, str]) -> None:
    async with connect(args.kubeconfig) as kube:
        if not authority(kube):
            raise AccessError(f"kubeconfig {args.kubeconfig} has no certificate authority, but a node needs it to know its API server")
        work = asyncio.create_task(_work(kube, args, images, mode, base_env))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, work.cancel)
        try:
            await work
        except asyncio.CancelledError:
            log.info("stopped")


async def _work(kube: Kube, args: argparse.Namespace, images: Images, mode: Mode, base_env: dict[str, str]) -> None:
    pods = pods_cache(kube)
    server = urlsplit(kube.access.server)
    port = server.port or 443
    labels = dict(entry.split("=", 1) for entry in args.label)
    options = Options(
        data_dir=args.data_dir,
        members=tuple(Member(name, args.gpus, labels) for name in args.node),
        cwd=args.cwd,
        images=images,
        base_env=base_env,
        grace_s=args.node_grace_s,
        api_host=API_NAME if mode is Mode.NETNS else server.hostname,
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(pods.run())
        if mode is Mode.NETNS:
            group.create_task(forward.serve(listen_inside(args.data_dir, port), str(server.hostname), port))
            for other in args.forward:
                group.create_task(forward.serve(listen_inside(args.data_dir, other), "127.0.0.1", other))
        await start(group, kube, pods, options)
        log.info("nodes %s of %s are Ready, sandbox %s, until Ctrl-C", ", ".join(args.node), kube.access.server, mode.value)
        if args.ready_file:
            args.ready_file.write_text("ready\n")


def refusal(error: Exception) -> str | None:
    """Return in one line what the kubeconfig or the API server does not allow, or None if the failure is another."""
    if isinstance(error, ExceptionGroup):
        lines = [refusal(one) for one in error.exceptions]
        return None if None in lines else "; ".join(dict.fromkeys(line for line in lines if line))
    if isinstance(error, AccessError):
        return f"{error}; name an administrator's file by --kubeconfig"
    if not isinstance(error, KubeError):
        return None
    if error.code == 0:
        return f"the API server cannot be reached: {error.message}; is it running?"
    return f"the API server refuses this node: {error.message}; name an administrator's file by --kubeconfig"


def main() -> None:
    log_plainly()
    args = arguments()
    try:
        take_folder(args.data_dir)
        images = Images(parse_images(args.image))
    except (FolderError, ImageError) as error:
        sys.exit(str(error))
    with holder(args.data_dir.resolve(), args.sandbox) as mode:
        args.data_dir = args.data_dir.resolve()
        try:
            asyncio.run(run(args, images, mode, base_environment(os.environ)))
        except Exception as error:
            if (words := refusal(error)) is None:
                raise
            sys.exit(words)


if __name__ == "__main__":
    main()
