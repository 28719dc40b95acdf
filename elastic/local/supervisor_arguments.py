"""Read the command line of the supervisor, which elastic.local.cluster writes."""

from __future__ import annotations

import argparse
from pathlib import Path

from elastic.local.agent.roster import NODE_GRACE_S
from elastic.local.sandbox import Mode


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m elastic.local.supervisor", description="The laptop cluster and its control plane.")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--autoscaler-period-s", type=float, default=15.0, help="how often each autoscaler is looked at")
    parser.add_argument("--node-grace-s", type=float, default=NODE_GRACE_S, help="a node that is silent for so long is unreachable")
    parser.add_argument("--sandbox", default="auto", choices=["auto", *(mode.value for mode in Mode)])
    parser.add_argument("--cluster-only", action="store_true")
    parser.add_argument("--dashboard", action="store_true", help="show the jobs to browsers")
    parser.add_argument("--allow-changes", action="store_true", help="from the dashboard")
    parser.add_argument("--cwd", type=Path, required=True, help="working folder of containers that name none")
    parser.add_argument("--image", action="append", default=[], metavar="IMAGE=FOLDER", help="a folder with bin/ that stands for an image")
    parser.add_argument("--join", type=Path, metavar="KUBECONFIG", help="bring nodes and control plane to this API server, start none")
    parser.add_argument("--faults", type=int, metavar="SEED", help="let an administrator make the API server misbehave, for tests")
    parser.add_argument("--lifeline", action="store_true", help="stop when standard input ends")
    return parser.parse_args()
