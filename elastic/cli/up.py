"""`elastic up`, `down` and `status`: the laptop cluster from the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elastic.cli.images import image_option
from elastic.cli.interrupts import end_by_sigterm
from elastic.cli.options import DATA_DIR, SANDBOXES, command
from elastic.cli.printing import as_data, output_option
from elastic.local import devices
from elastic.local.agent.roster import first_members, played
from elastic.local.cluster import ClusterError, LocalCluster, stop_detached
from elastic.local.dashboard import link
from elastic.local.files import MOST_GPUS, MOST_NODES, ClusterState, Layout, is_alive
from elastic.local.sandbox import Mode
from elastic.runtime.signal_file import table_of

if TYPE_CHECKING:
    from elastic.client.sample import Sample
    from elastic.client.verbs import Found
    from elastic.kube.client import Kube

HOW_TO = """The cluster is ready: {nodes}, sandbox {sandbox}, {control_plane}.
Images are not pulled: a container's command runs as a process, with the Python environment of this `elastic` first on its PATH,
or with the folder that --image names for it{folders}{outside}

  export KUBECONFIG={kubeconfig}
  kubectl get nodes
"""


NO_WAY_OUT = """
Pods reach no network outside this machine: what they pip install or download fails. With --sandbox loopback they have this machine's."""

STOPPED = """
These jobs stopped with the cluster, and stay stopped until you resume them:
  {jobs}
  {resume}
"""

ENDED = """These jobs are unfinished, and stay stopped until you resume them (`{up}`, then `{resume}`):
  {jobs}
"""


@click.command()
@click.option(
    "--nodes",
    type=click.IntRange(0, MOST_NODES),
    show_default="as the last time, else 1",
    help="Number of nodes, in addition to those of `elastic node add`; 0 gives an API without scheduling.",
)
@click.option("--gpus", type=click.IntRange(0, MOST_GPUS), show_default="as the last time, else 0", help="GPUs of each node.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default="the last one, else a free one", help="The API's port.")
@click.option("--sandbox", type=click.Choice(SANDBOXES), show_default="as the last time, else auto", help="How pods are kept apart.")
@image_option(
    "Containers of IMAGE run with the programs in FOLDER/bin, such as those of a virtual environment. Repeatable; remembered until you "
    "name others, or `none`."
)
@click.option("--cluster-only", is_flag=True, help="Without the control plane: no CRDs, no controller, no rendezvous server.")
@click.option("--dashboard/--no-dashboard", default=True, show_default=True, help="Show the jobs to browsers of this machine.")
@click.option("--allow-changes", is_flag=True, help="Let the dashboard scale, suspend and resume jobs and reclaim nodes.")
@click.option("--detach", is_flag=True, help="Return when the cluster is ready; `elastic down` stops it.")
@DATA_DIR
def up(
    nodes: int | None,
    gpus: int | None,
    port: int,
    sandbox: str | None,
    images: dict[str, Path] | None,
    cluster_only: bool,
    dashboard: bool,
    allow_changes: bool,
    detach: bool,
    data_dir: Path,
) -> None:
    """Start the laptop cluster, and the control plane on it."""
    if sys.platform != "linux":
        raise click.ClickException("the laptop cluster runs on Linux only; on macOS use a Linux virtual machine, or a Kubernetes cluster")
    if allow_changes and (cluster_only or not dashboard):
        raise click.UsageError("--allow-changes is for the dashboard, which does not run with --cluster-only or --no-dashboard")
    cluster = LocalCluster(
        data_dir=data_dir,
        nodes=nodes,
        gpus=gpus,
        port=port,
        sandbox=sandbox,
        images=images,
        control_plane=not cluster_only,
        dashboard=dashboard,
        allow_changes=allow_changes,
    )
    try:
        cluster.start(detached=detach, say=lambda words: click.echo(words, err=True))
    except ClusterError as error:
        raise click.ClickException(str(error)) from error
    if detach:
        _tell_how_to_use(cluster, data_dir, stop=f"  {command('down', data_dir)}\n")
        return
    try:
        end_by_sigterm()
        _tell_how_to_use(cluster, data_dir)
        click.echo("Ctrl-C stops it.")
        cluster.wait()
    except KeyboardInterrupt:
        click.echo("stopping")
        _tell_of_jobs(_under_way(Layout(cluster.data_dir)), data_dir)
    finally:
        cluster.stop()


def _tell_how_to_use(cluster: LocalCluster, data_dir: Path, *, stop: str = "") -> None:
    state, layout = cluster.state, Layout(cluster.data_dir)
    click.echo(
        HOW_TO.format(
            nodes=_nodes(state, layout),
            sandbox=state.sandbox,
            control_plane="control plane running" if state.control_plane else "no control plane",
            kubeconfig=cluster.kubeconfig,
            folders=_folders(layout),
            outside=NO_WAY_OUT if state.sandbox == Mode.NETNS.value else "",
        )
        + stop,
        nl=False,
    )
    if pretended := _pretended(state, layout):
        click.echo(f"\nNote: {pretended}.")
    if (url := link(layout)) is not None:
        click.echo(f"\nThe dashboard, for one browser; `{command('dashboard', data_dir)}` prints a link for the next:\n\n  {url}\n")
    if state.control_plane:
        for problem in table_of(layout.signals).problems:
            click.echo(problem, err=True)
        _tell_of_stopped_jobs(cluster.kubeconfig, data_dir)


@click.command()
@DATA_DIR
def down(data_dir: Path) -> None:
    """Stop the laptop cluster with all its pods. The objects of the API stay in the data folder."""
    layout, say = Layout(data_dir.resolve()), lambda words: click.echo(words, err=True)
    jobs = _under_way(layout)
    if jobs:
        _suspend_jobs(layout, say)
    try:
        stopped = stop_detached(layout.root, say=say)
    except ClusterError as error:
        raise click.ClickException(str(error)) from error
    click.echo("stopped" if stopped else f"no cluster runs in {data_dir}")
    _tell_of_jobs(jobs, data_dir)


def _folders(layout: Layout) -> str:
    found = layout.read_shape().images
    return "".join([":", *(f"\n  {image}={folder}" for image, folder in found.items())]) if found else "."


def _nodes(state: ClusterState, layout: Layout) -> str:
    members = played(layout, state)
    first = {member.name for member in first_members(state.nodes, state.gpus)}
    added = [member.name for member in members if member.name not in first]
    return f"{len(members)} node(s)" + (f", the added {', '.join(added)} among them" if added else "")


def _pretended(state: ClusterState, layout: Layout) -> str:
    return devices.words(sum(member.gpus for member in played(layout, state)))


def _tell_of_stopped_jobs(kubeconfig: Path, data_dir: Path) -> None:
    from elastic.cli.resume import listed

    if jobs := listed(kubeconfig, lambda job: job.was_stopped):
        click.echo(STOPPED.format(jobs="\n  ".join(jobs), resume=command("resume", data_dir)), nl=False)


def _under_way(layout: Layout) -> list[str]:
    """Return the jobs that end with the cluster."""
    state = layout.read_state()
    if state is None or not state.control_plane or not layout.is_running():
        return []
    from elastic.cli.resume import listed

    return listed(layout.kubeconfig, lambda job: not job.is_suspended)


def _suspend_jobs(layout: Layout, say: Callable[[str], None]) -> None:
    """Suspend the jobs, so that their programs save before they end. If the cluster does not answer, it stops all the same."""
    import asyncio

    from elastic.kube import connect
    from elastic.kube.access import AccessError
    from elastic.kube.errors import KubeError
    from elastic.local.stopped import suspend_all

    folder = layout.working_dir

    async def suspend() -> None:
        async with connect(layout.kubeconfig) as kube:
            await suspend_all(kube, working_dir=folder.read_text() if folder.exists() else "", say=say)

    try:
        asyncio.run(suspend())
    except (AccessError, KubeError, OSError) as error:
        say(f"the jobs could not be suspended, and end without a save: {error}")


def _tell_of_jobs(jobs: list[str], data_dir: Path) -> None:
    if jobs:
        click.echo(ENDED.format(jobs="\n  ".join(jobs), up=command("up", data_dir), resume=command("resume", data_dir)), nl=False)


@click.command()
@output_option()
@DATA_DIR
def status(output: str, data_dir: Path) -> None:
    """Show the laptop cluster: where it is, how pods are kept apart, its processes and jobs. Exit code 1 if not all of it runs."""
    layout = Layout(data_dir.resolve())
    state = layout.read_state()
    if state is None or not layout.is_running():
        click.echo(f"no cluster runs in {data_dir}" if output == "table" else as_data({"running": False}, output))
        sys.exit(1)
    processes = {"supervisor": state.supervisor, **state.processes}
    if output != "table":
        running = {name: {"pid": pid, "running": is_alive(pid), "log": str(layout.log(name))} for name, pid in processes.items()}
        facts: dict[str, Any] = {"server": state.server, "kubeconfig": state.kubeconfig, "sandbox": state.sandbox}
        facts |= {"nodes": len(played(layout, state)), "gpus": state.gpus, "images": layout.read_shape().images}
        there, samples = _jobs(state, layout)
        jobs = [_as_data(job, samples.get(job.key.uid)) for job in there]
        click.echo(as_data({"running": True, **facts, "processes": running, "jobs": jobs}, output))
        sys.exit(0 if all(one["running"] for one in running.values()) else 1)
    click.echo(f"server      {state.server}")
    click.echo(f"kubeconfig  {state.kubeconfig}")
    click.echo(f"sandbox     {state.sandbox}")
    click.echo(f"nodes       {_nodes(state, layout)}; `{command('node list', data_dir)}` shows them")
    if pretended := _pretended(state, layout):
        click.echo(f"GPUs        {pretended}")
    for image, folder in layout.read_shape().images.items():
        click.echo(f"image       {image}={folder}")
    for name, pid in processes.items():
        running_now = "running" if is_alive(pid) else "not running"
        click.echo(f"process     {name:<12} {pid:>8}  {running_now:<11}  {layout.log(name)}")
    is_whole = all(is_alive(pid) for pid in processes.values())
    there, samples = _jobs(state, layout)
    if there:
        from elastic.cli.jobs.look import jobs_table

        click.echo(f"\n{jobs_table(there, samples, with_namespace=True)}")
    sys.exit(0 if is_whole else 1)


def _as_data(job: Found, sample: Sample | None) -> dict[str, Any]:
    from elastic.cli.jobs.top import progress_of
    from elastic.client.summary import summary

    told = summary(job.kind, job.object)
    progress = {name: value for name, value in progress_of(job, sample).items() if name in ("world", "step", "speed", "unit", "loss")}
    return {"kind": told.kind.name, "namespace": told.namespace, "name": told.name, "state": told.state, **progress}


def _jobs(state: ClusterState, layout: Layout) -> tuple[list[Found], dict[str, Sample]]:
    """Return the jobs of all namespaces, or none if the API does not answer: the processes say more then."""
    if not state.control_plane:
        return [], {}
    from elastic.cli.cluster_choice import Cluster
    from elastic.cli.failures import said
    from elastic.cli.jobs import found
    from elastic.cli.jobs.live import live

    cluster = Cluster(Path(state.kubeconfig), data_dir=layout.root)

    async def read(kube: Kube, namespace: str) -> tuple[list[Found], dict[str, Sample]]:
        listed = await found.jobs(kube, None)
        return listed, await live(kube, cluster, None) if listed else {}

    try:
        return cluster.ask(read)
    except Exception as error:
        if (words := said(error)) is None and not isinstance(error, click.ClickException):
            raise
        click.echo(f"jobs        unknown: {words or error}", err=True)
        return [], {}
