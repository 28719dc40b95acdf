"""The command `elastic node`, which lets the laptop cluster play what happens to machines. Other modules carry it out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import click

from elastic.cli.arguments import NODE
from elastic.cli.node_list import nodes_table, rows_of
from elastic.cli.options import DATA_DIR, Seconds, command
from elastic.cli.outcomes import OUTPUT, told
from elastic.cli.printing import as_data, output_option
from elastic.kube import connect
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.nodes import NodeProblem, TaintError, check_node, drain, parse_taint, set_taint
from elastic.kube.resources import NODES, PODS
from elastic.local.agent.asking import NotDone, ask_agents
from elastic.local.agent.control import Add, Kill
from elastic.local.agent.roster import read
from elastic.local.files import MOST_GPUS, ClusterState, Layout
from elastic.local.reclaim import LOSS_S, NOT_PLAYED, PLAYABLE, SHORT, as_seen, is_taken_back, show
from elastic.signals.signal import Meaning


class Played(click.Choice):  # type: ignore[type-arg]  # click 8.1 has no click.Choice[str]
    """A signal that can be played. For another signal of the table, the error says why it cannot."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in NOT_PLAYED:
            self.fail(f"{value} is not played: {NOT_PLAYED[value]}.", param, ctx)
        return str(super().convert(value, param, ctx))


@click.group()
def node() -> None:
    """List the nodes of the laptop cluster; add, drain, taint, reclaim or kill one."""


@node.command("list")
@output_option()
@DATA_DIR
def list_nodes(output: str, data_dir: Path) -> None:
    """Show the nodes: state, GPUs, pods that have not ended, taints."""
    roster = read(Layout(data_dir.resolve()).roster)

    async def show_all(kube: Kube) -> None:
        rows = rows_of((await kube.list(NODES)).items, (await kube.list(PODS)).items, roster)
        click.echo(nodes_table(rows, datetime.now(UTC)) if output == "table" else as_data({"nodes": rows}, output))
        if not rows and output == "table":
            click.echo(f"there are no nodes; add one with `{command('node add NAME', data_dir)}`", err=True)

    _with_cluster(data_dir, show_all)


@node.command()
@click.argument("name")
@click.option("--gpus", type=click.IntRange(0, MOST_GPUS), default=0, show_default=True, help="GPUs of the node.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label of the node. Repeatable.")
@OUTPUT
@DATA_DIR
def add(name: str, gpus: int, labels: tuple[str, ...], output: str, data_dir: Path) -> None:
    """Add a node, or bring a killed one back, empty. It comes back with the cluster, until it is killed or reclaimed."""
    with told(output) as outcomes:
        _ask(data_dir, Add(name=name, gpus=gpus, labels=dict(map(_label, labels))))
        outcomes.tell_of_node(name, "added", f"node {name} is ready")


@node.command()
@NODE
@OUTPUT
@DATA_DIR
def kill(name: str, output: str, data_dir: Path) -> None:
    """Make a node vanish: its processes end at once, without notice."""
    with told(output) as outcomes:
        _ask(data_dir, Kill(name=name))
        outcomes.tell_of_node(name, "killed", f"node {name} has vanished")


@node.command("taint")
@NODE
@click.argument("taints", nargs=-1, required=True, metavar="KEY[=VALUE]:EFFECT|KEY[:EFFECT]-...")
@OUTPUT
@DATA_DIR
def taint_node(name: str, taints: tuple[str, ...], output: str, data_dir: Path) -> None:
    """Set taints of a node, or take them away (with a minus at the end)."""
    try:
        wanted = [parse_taint(text) for text in taints]
    except TaintError as error:
        raise click.BadParameter(str(error)) from error

    async def write(kube: Kube) -> None:
        await check_node(kube, name)
        for taint in wanted:
            await set_taint(kube, name, taint)
            did = "removed" if taint.is_removed else "set"
            outcomes.tell_of_node(name, f"taint {did}", f"node {name}: taint {taint} {did}", taint=str(taint))

    with told(output) as outcomes:
        _with_cluster(data_dir, write)


@node.command("drain")
@NODE
@click.option(
    "--timeout", "timeout_s", type=Seconds(1), metavar="TIME", default=600, show_default=True, help="Until it gives up: 600, 90s, 10m."
)
@OUTPUT
@DATA_DIR
def drain_node(name: str, timeout_s: float, output: str, data_dir: Path) -> None:
    """Cordon a node and evict its pods, as kubectl drain does."""

    async def empty(kube: Kube) -> None:
        await check_node(kube, name)
        await drain(kube, name, tell=outcomes.say, within_s=timeout_s)
        outcomes.tell_of_node(name, "drained", f"node {name} drained")

    with told(output) as outcomes:
        _with_cluster(data_dir, empty)


@node.command()
@NODE
@click.option(
    "--like",
    "--as",
    "like",
    type=Played([*SHORT, *PLAYABLE]),
    default="aws-spot",
    show_default=True,
    metavar="SIGNAL",
    help=f"Which signal: {', '.join(PLAYABLE)}.",
)
@click.option("--seconds", type=click.IntRange(min=0), help="From the signal to the loss.  [default: as the table has it]")
@click.option("--take-back", is_flag=True, help="Take the signal back; the node stays.")
@OUTPUT
@DATA_DIR
def reclaim(name: str, like: str, seconds: int | None, take_back: bool, output: str, data_dir: Path) -> None:
    """Play a cloud's signal that a node goes, then the loss of the machine.

    When the seconds are over the node's processes end at once and the node's object goes, as a cloud removes the node of a machine that it
    took back; unless the signal was taken back meanwhile. Signals that only warn of a loss have none, unless --seconds says when.
    """
    signal = PLAYABLE[SHORT.get(like, like)]
    left_s = (LOSS_S.get(signal.name, signal.lead_s) if signal.meaning is Meaning.LEAVE else None) if seconds is None else seconds

    async def play(kube: Kube) -> None:
        await check_node(kube, name)
        played = as_seen(signal, now=datetime.now(UTC), left_s=left_s)
        await show(kube, name, played, take_back=take_back)
        if take_back:
            outcomes.tell_of_node(name, "signal taken back", f"node {name}: {signal.name} taken back", signal=signal.name)
            return
        lost = f"; lost in {left_s:g} s" if left_s is not None else ""
        outcomes.tell_of_node(name, "signal given", f"node {name}: {signal.name} given by {played.words}{lost}", signal=signal.name)
        if left_s is None:
            return

        def left(seconds: float) -> None:
            outcomes.say(f"node {name}: lost in {seconds:.0f} s")

        if await is_taken_back(kube, name, signal, within_s=left_s, say=left):
            outcomes.say(f"node {name}: {signal.name} was taken back; the node stays")
            return
        await asyncio.to_thread(_ask, data_dir, Kill(name=name))
        await kube.delete(NODES, name)
        outcomes.tell_of_node(name, "reclaimed", f"node {name} has been reclaimed")

    with told(output) as outcomes:
        _with_cluster(data_dir, play)


def _label(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise click.BadParameter(f"{text!r} is not a label; write KEY=VALUE", param_hint="--label")
    return key, value


def _ask(data_dir: Path, request: Add | Kill) -> None:
    try:
        _running(data_dir)
        ask_agents(data_dir.resolve(), request)
    except NotDone as error:
        raise click.ClickException(str(error)) from error


def _with_cluster(data_dir: Path, act: Callable[[Kube], Awaitable[None]]) -> None:
    kubeconfig = _running(data_dir).kubeconfig

    async def within() -> None:
        async with connect(kubeconfig) as kube:
            await act(kube)

    try:
        asyncio.run(within())
    except (KubeError, NodeProblem) as error:
        raise click.ClickException(error.message if isinstance(error, KubeError) else str(error)) from error
    except ExceptionGroup as group:
        raise click.ClickException("; ".join(str(error) for error in group.exceptions)) from group


def _running(data_dir: Path) -> ClusterState:
    layout = Layout(data_dir.resolve())
    state = layout.read_state()
    if state is None or not layout.is_running():
        raise click.ClickException(f"no cluster runs in {data_dir}; start one with `elastic up`")
    return state
