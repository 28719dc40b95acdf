"""Run `elastic doctor`: look at everything that a run needs, from the disk to the controller, and say what to do about each problem."""

from __future__ import annotations

import math
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import click

from elastic.api import webhook
from elastic.api.counting import counted
from elastic.api.kinds import GROUP, KINDS
from elastic.api.words import GPU
from elastic.cli import completion
from elastic.cli.cluster_choice import DATA_DIR, KUBECONFIG, Cluster, choose
from elastic.cli.failures import said
from elastic.cli.installing import looking, rights
from elastic.cli.jobs.found import NotFound, check_namespace
from elastic.cli.options import command
from elastic.cli.printing import as_data, coloured, output_option, plain
from elastic.cli.served_train_jobs import BAD, NOTE, OK, facts, verdict
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.following import resource_of
from elastic.kube.resources import LEASES, NODES, VALIDATING_WEBHOOK_CONFIGURATIONS, Object
from elastic.local.agent.roster import played
from elastic.local.files import LEAST_FREE, ClusterState, Layout, default_data_dir, is_alive, layout_of
from elastic.runtime.signal_file import table_of

LEASE = "elastic-controller"
SILENT_S = 60
WITHOUT_ONLY = "`elastic down`, then `elastic up` without --cluster-only"
COLOURS = {OK: "green", NOTE: "yellow", BAD: "red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    state: str
    what: str
    words: str


@click.command()
@output_option()
@click.option("--context", help="Context of the kubeconfig.  [default: its current one]")
@click.option("--namespace", "-n", shell_complete=completion.namespaces, help="Where jobs are to run.  [default: that of the kubeconfig]")
@DATA_DIR
@KUBECONFIG
def doctor(output: str, context: str | None, namespace: str | None, data_dir: Path | None, kubeconfig: Path | None) -> None:
    """Look at all that a job needs and say what to do. Exit code 1 where something is amiss."""
    named = layout_of(kubeconfig) if kubeconfig is not None else None
    findings = [*_of_machine(), *_of_folder(named or Layout((data_dir or default_data_dir()).resolve()))]
    findings += _of_cluster(data_dir, kubeconfig, context=context, namespace=namespace)
    if output == "table":
        for one in findings:
            click.echo(f"{coloured(one.state.ljust(4), COLOURS[one.state])}  {one.what:<14}  {plain(one.words)}")
    else:
        click.echo(as_data([{"state": one.state, "what": one.what, "words": one.words} for one in findings], output))
    sys.exit(1 if any(one.state == BAD for one in findings) else 0)


def _of_machine() -> Iterator[Finding]:
    yield Finding(
        OK, "elastic", f"{metadata.version('elastic-training')}, Python {platform.python_version()}, {platform.platform(terse=True)}"
    )
    if sys.platform != "linux":
        yield Finding(NOTE, "laptop cluster", "runs on Linux only; use a Linux virtual machine, or a Kubernetes cluster")
    try:
        yield Finding(OK, "torch", metadata.version("torch"))
    except metadata.PackageNotFoundError:
        words = (
            "is not installed in the environment of elastic; PyTorch jobs on the laptop need it: pip install torch, or --image IMAGE=FOLDER"
        )
        yield Finding(NOTE, "torch", words)


def _of_folder(layout: Layout) -> Iterator[Finding]:
    root = layout.root
    if not root.exists():
        yield Finding(OK, "data folder", f"{root} is made by the first `{command('up', root)}`")
        return
    try:
        found, free = root.stat(), shutil.disk_usage(root).free
    except OSError as error:
        yield Finding(BAD, "data folder", f"{root}: {error.strerror}; choose another with --data-dir")
        return
    if found.st_uid != os.geteuid() or not os.access(root, os.W_OK):
        yield Finding(BAD, "data folder", f"{root} cannot be written to by you; choose another with --data-dir")
    elif free < LEAST_FREE:
        yield Finding(BAD, "data folder", f"{free >> 20} MB are free at {root}; make room: {LEAST_FREE >> 20} are needed")
    else:
        yield Finding(OK, "data folder", f"{root}, {free >> 20} MB free")
    for problem in table_of(layout.signals).problems:
        yield Finding(BAD, "signals", problem)
    state = layout.read_state()
    if state is None or not layout.is_running():
        yield Finding(OK, "laptop cluster", f"none runs in {root}; `{command('up --detach', root)}` starts one there")
        return
    dead = [name for name, pid in state.processes.items() if not is_alive(pid)]
    if dead:
        logs = ", ".join(str(layout.log(name)) for name in dead)
        again = f"`{command('down', root)}` and `{command('up', root)}` start it again"
        yield Finding(BAD, "laptop cluster", f"without {', '.join(dead)}; see {logs}; {again}")
    else:
        yield Finding(OK, "laptop cluster", f"runs, {counted(len(played(layout, state)), 'node')}, sandbox {state.sandbox}")


def _of_cluster(data_dir: Path | None, kubeconfig: Path | None, *, context: str | None, namespace: str | None) -> list[Finding]:
    try:
        cluster = choose(data_dir, kubeconfig, context=context, namespace=namespace)
        return cluster.ask(lambda kube, chosen: _asked(kube, chosen, cluster))
    except click.ClickException as error:
        return [Finding(NOTE, "cluster", error.message)]
    except Exception as error:
        words = said(error)
        if words is None:
            raise
        return [Finding(BAD, "cluster", words)]


async def _asked(kube: Kube, namespace: str, cluster: Cluster) -> list[Finding]:
    version = await kube.request("GET", "/version")
    findings = [Finding(OK, "cluster", f"{kube.access.server}, {version.get('gitVersion', 'version unknown')} ({cluster.kubeconfig})")]
    state = Layout(cluster.data_dir).read_state() if cluster.data_dir is not None else None
    findings.append(await _kinds(kube, bring="`elastic install` brings" if state is None else f"{WITHOUT_ONLY} brings"))
    findings += await _namespace(kube, namespace)
    findings.append(await _rights(kube, namespace))
    findings.append(await _nodes(kube))
    findings.append(await _controller(kube, state))
    findings += await _train_jobs(kube, state)
    return findings


async def _kinds(kube: Kube, *, bring: str) -> Finding:
    if missing := await looking.unserved_kinds(kube, "default"):
        return Finding(BAD, "kinds", f"{', '.join(missing)} unknown; {bring} them with the control plane")
    return Finding(OK, "kinds", ", ".join(KINDS))


async def _namespace(kube: Kube, namespace: str) -> list[Finding]:
    """Find a namespace that does not exist. Questions about rights would not show it, because they are answered for any name."""
    try:
        await check_namespace(kube, namespace)
    except NotFound as error:
        return [Finding(BAD, "namespace", error.message)]
    return []


async def _rights(kube: Kube, namespace: str) -> Finding:
    try:
        lacking = await rights.missing(kube, [rights.Right("create", resource_of(KINDS["PyTorchJob"]), namespace)])
    except KubeError as error:
        return Finding(NOTE, "rights", f"in namespace {namespace} unknown: {error.message}")
    if not lacking:
        return Finding(OK, "rights", f"you may create jobs in namespace {namespace}")
    return Finding(BAD, "rights", f"you may not create jobs in namespace {namespace}; ask for a role with `create` on {GROUP}")


async def _nodes(kube: Kube) -> Finding:
    try:
        nodes = (await kube.list(NODES)).items
    except KubeError as error:
        if error.code == 403:
            return Finding(NOTE, "nodes", "you may not look at them")
        raise
    ready = [node for node in nodes if _is_ready(node)]
    gpus = sum(_whole((node.get("status") or {}).get("allocatable"), GPU) for node in ready)
    words = f"{len(ready)} of {len(nodes)} ready, {gpus} GPUs"
    return Finding(OK if ready else BAD, "nodes", words if ready else f"{words}; no pod can start")


def _whole(amounts: object, name: str) -> int:
    text = str(amounts.get(name, "0")) if isinstance(amounts, dict) else "0"
    return int(text) if text.isdigit() else 0


def _is_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    is_open = not (node.get("spec") or {}).get("unschedulable")
    return is_open and any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


async def _controller(kube: Kube, laptop: ClusterState | None) -> Finding:
    """Find out by its Lease whether the controller lives. The laptop's controller is one of the cluster's processes, and has no Lease."""
    if laptop is not None and laptop.control_plane:
        return Finding(OK, "controller", "one of the laptop cluster's processes")
    try:
        leases = [lease for lease in (await kube.list(LEASES)).items if lease["metadata"]["name"] == LEASE]
    except KubeError as error:
        if error.code == 403:
            return Finding(NOTE, "controller", "you may not look at Leases, which say whether it runs")
        raise
    if not leases and laptop is not None:
        cause = "the cluster was started with --cluster-only: it runs pods, but no jobs"
        words = f"no control plane runs, because {cause}; {WITHOUT_ONLY} starts one"
        return Finding(BAD, "controller", words)
    if not leases:
        return Finding(NOTE, "controller", f"there is no Lease {LEASE}: it runs without election, or not at all (`elastic install`)")
    lease = min(leases, key=_age)
    spec, silent_s = lease.get("spec") or {}, _silent_s(lease)
    if not spec.get("holderIdentity"):
        words = f"none runs: nobody holds the Lease {LEASE} in namespace {lease['metadata']['namespace']}; see docs/deploy.md"
        return Finding(BAD, "controller", words)
    where = f"{spec['holderIdentity']} in namespace {lease['metadata']['namespace']}"
    if silent_s is None or silent_s > SILENT_S:
        return Finding(BAD, "controller", f"silent: {where} renewed its Lease {'never' if silent_s is None else f'{silent_s:.0f} s ago'}")
    return Finding(OK, "controller", f"led by {where}")


async def _train_jobs(kube: Kube, laptop: ClusterState | None) -> list[Finding]:
    """Say who serves TrainJobs. On the laptop, the controller serves all of them without a Lease, unless it has joined another cluster."""
    if laptop is not None:
        name = f"{webhook.NAME}{webhook.FOR_TRAIN_JOBS}"
        is_asked = await looking.read(kube, VALIDATING_WEBHOOK_CONFIGURATIONS, name) is not None
        return [Finding(OK, "TrainJobs", "all by our controller")] if laptop.control_plane and is_asked else []
    try:
        leases = (await kube.list(LEASES)).items
    except KubeError as error:
        if error.code == 403:
            return [Finding(NOTE, "TrainJobs", "you may not look at Leases, which say who serves them")]
        raise
    live = [lease for lease in leases if (silent_s := _silent_s(lease)) is not None and silent_s <= SILENT_S]
    state, words = verdict(await facts(kube, live))
    return [Finding(state, "TrainJobs", words)]


def _age(lease: Object) -> tuple[bool, float]:
    """Return the sort key of a Lease. It is less for a controller that lives than for a Lease that an earlier installation left."""
    silent_s = _silent_s(lease)
    return not (lease.get("spec") or {}).get("holderIdentity"), math.inf if silent_s is None else silent_s


def _silent_s(lease: Object) -> float | None:
    """Return the seconds since a Lease was last renewed."""
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(str((lease.get("spec") or {}).get("renewTime")))).total_seconds()
    except (ValueError, TypeError):
        return None
