"""Run the parts that make the laptop's API server a cluster, in one process to save memory: `python -m elastic.local.agents`.

These are the scheduler, the controllers and the node agents. Each has its own service account, client and view. They share nothing, and
could run in separate processes.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path

from elastic.kube import connect
from elastic.kube.client import Kube
from elastic.local.agent.events import Recorder
from elastic.local.agent.fleet import pods_cache
from elastic.local.agent.images import ImageError, Images, parse_images
from elastic.local.agent.roster import NODE_GRACE_S, first_members
from elastic.local.agent.service import Options, authority, base_environment, start
from elastic.local.controllers.accounts import DefaultAccounts
from elastic.local.controllers.autoscaling.loop import LOOK_EVERY_S, Autoscaling
from elastic.local.controllers.budgets import DisruptionBudgets
from elastic.local.controllers.garbage import GarbageCollector
from elastic.local.controllers.namespaces import NamespaceDeletion
from elastic.local.controllers.nodes import NodeLifecycle
from elastic.local.identities import CONTROLLERS, NODE_AGENT, SCHEDULER, acting_as
from elastic.local.scheduler.loop import Scheduler
from elastic.logs import log_plainly

log = logging.getLogger("elastic.local.agents")

SERVER_READY_S, POLL_S = 60.0, 0.01


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m elastic.local.agents", description="Scheduler, controllers and node agents.")
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path, required=True, help="where the sandbox's holder listens and pods have their folders")
    parser.add_argument("--nodes", type=int, default=1, help="nodes to start; 0 starts no scheduler either")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of each node")
    parser.add_argument("--node-grace-s", type=float, default=NODE_GRACE_S, help="a node that is silent for so long is unreachable")
    parser.add_argument("--autoscaler-period-s", type=float, default=LOOK_EVERY_S, help="how often each autoscaler is looked at")
    parser.add_argument("--cwd", type=Path, required=True, help="working folder of containers that name none")
    parser.add_argument("--image", action="append", default=[], metavar="IMAGE=FOLDER", help="a folder with bin/ that stands for an image")
    parser.add_argument("--after", type=Path, action="append", default=[], metavar="FILE", help="wait until this file is there; repeatable")
    parser.add_argument("--ready-file", type=Path, help="written when all nodes are in the API")
    return parser.parse_args()


async def run(args: argparse.Namespace, base_env: dict[str, str]) -> None:
    async with connect(args.kubeconfig) as admin:
        work = asyncio.create_task(_work(admin, args, base_env))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, work.cancel)
        try:
            await work
        except asyncio.CancelledError:
            log.info("stopped")


async def _work(admin: Kube, args: argparse.Namespace, base_env: dict[str, str]) -> None:
    async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        await _start_controllers(group, await stack.enter_async_context(acting_as(admin, CONTROLLERS)), args)
        if args.nodes:
            await _start_scheduler(group, await stack.enter_async_context(acting_as(admin, SCHEDULER)))
            await _start_nodes(group, await stack.enter_async_context(acting_as(admin, NODE_AGENT)), args, base_env)
        if args.ready_file:
            args.ready_file.write_text("ready\n")


async def _start_controllers(group: asyncio.TaskGroup, kube: Kube, args: argparse.Namespace) -> None:
    pods = pods_cache(kube)
    group.create_task(pods.run())
    group.create_task(DefaultAccounts(kube, authority(kube)).run())
    group.create_task(NamespaceDeletion(kube).run())
    group.create_task(GarbageCollector(kube).run())
    group.create_task(DisruptionBudgets(kube, pods).run())
    if args.nodes:
        group.create_task(NodeLifecycle(kube, pods, grace_s=args.node_grace_s).run())
    events = Recorder(kube, component="horizontal-pod-autoscaler")
    group.create_task(events.run())
    group.create_task(Autoscaling(kube, pods, events, look_every_s=args.autoscaler_period_s).run())
    await pods.wait_synced()


async def _start_scheduler(group: asyncio.TaskGroup, kube: Kube) -> None:
    pods = pods_cache(kube)
    events = Recorder(kube, component="default-scheduler")
    group.create_task(pods.run())
    group.create_task(events.run())
    group.create_task(Scheduler(kube, pods, events).run())


async def _start_nodes(group: asyncio.TaskGroup, kube: Kube, args: argparse.Namespace, base_env: dict[str, str]) -> None:
    pods = pods_cache(kube)
    group.create_task(pods.run())
    members = first_members(args.nodes, args.gpus)
    options = Options(
        data_dir=args.data_dir, members=members, cwd=args.cwd, images=args.images, base_env=base_env, grace_s=args.node_grace_s
    )
    await start(group, kube, pods, options)


def _comes(file: Path) -> bool:
    give_up_at = time.monotonic() + SERVER_READY_S
    while not file.exists() and time.monotonic() < give_up_at:
        time.sleep(POLL_S)
    return file.exists()


def main() -> None:
    log_plainly()
    args = arguments()
    try:
        args.images = Images(parse_images(args.image))
    except ImageError as error:
        sys.exit(str(error))
    for file in args.after:
        if not _comes(file):
            sys.exit(f"{file} is not there after {SERVER_READY_S:.0f} s: the API server does not serve")
    asyncio.run(run(args, base_environment(dict(os.environ))))


if __name__ == "__main__":
    main()
