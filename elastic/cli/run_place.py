"""Find the cluster for `elastic run`: the named cluster, the one that runs, or a new one for the time of the run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from elastic.cli.options import command
from elastic.cli.run_printer import Printer
from elastic.local import devices, etcd
from elastic.local.cluster import ClusterError, LocalCluster
from elastic.local.dashboard import link
from elastic.local.files import Layout, default_data_dir, layout_of
from elastic.local.sandbox import Mode

NO_WAY_OUT = "pods reach no network outside this machine (with --sandbox loopback they do)"


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster to run in."""

    kubeconfig: Path
    data_dir: Path | None = None
    """Data folder of a laptop cluster, whose containers see this machine's files."""
    own: LocalCluster | None = None
    """The cluster, if it ends with the run."""

    @property
    def is_laptop(self) -> bool:
        return self.data_dir is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Properties that a cluster for this run must have."""

    gpus: int
    is_asked: bool
    """Whether the user asked for the GPUs. Otherwise only a script's workers need them."""
    sandbox: str | None
    images: dict[str, Path] | None
    etcd_for: str = ""
    """The job that meets in the installation's etcd, if any does."""

    def options(self, *, running: str | None = None, has: Mapping[str, str] = MappingProxyType({})) -> list[str]:
        """Return the options that a running cluster would not heed. running: its sandbox; has: its folders for images."""
        words = [f"--image {name}={folder}" for name, folder in (self.images or {}).items() if has.get(name) != str(folder)]
        words += [f"--gpus {self.gpus}"] if self.gpus and self.is_asked else []
        return [*words, *([f"--sandbox {self.sandbox}"] if self.sandbox not in (None, "auto", running) else [])]


@contextlib.contextmanager
def chosen(printer: Printer, *, kubeconfig: Path | None, data_dir: Path | None, shape: Shape, can_start: bool = True) -> Iterator[Place]:
    """Give the cluster that the options name, or that runs; else start one for the time of this run, if that is possible."""
    layout = layout_of(kubeconfig) if kubeconfig is not None else Layout((data_dir or default_data_dir()).resolve())
    if layout is None:
        assert kubeconfig is not None
        _refuse_shape(shape.options(), f"the one of {kubeconfig}")
        yield Place(kubeconfig)
        return
    state = layout.read_state()
    if state is not None and layout.is_running():
        if not state.control_plane:
            again = f"`{command('down', layout.root)}`, then `{command('up', layout.root)}` without it"
            raise ClusterError(f"the cluster in {layout.root} has no control plane, because it was started with --cluster-only: {again}")
        if shape.etcd_for and not state.has_etcd:
            raise ClusterError(_without_etcd(shape.etcd_for, f"the cluster in {layout.root} was started without one", layout.root))
        _refuse_shape(
            shape.options(running=state.sandbox, has=layout.read_shape().images), f"the one in {layout.root}, which runs already,"
        )
        if state.sandbox == Mode.NETNS.value:
            printer.say(f"it runs on the laptop cluster in {layout.root}: {NO_WAY_OUT}")
        yield Place(layout.kubeconfig, layout.root)
        return
    if data_dir is not None:
        start = f"`elastic up --detach --data-dir {data_dir}`"
        raise ClusterError(f"no cluster runs in {data_dir}; start it with {start}, or leave --data-dir out for a temporary one")
    if not can_start:
        start = "`elastic up --detach`" if kubeconfig is None else f"`elastic up --detach --data-dir {layout.root}`"
        raise ClusterError(f"no cluster runs in which the job could go on; start one with {start}, or leave --detach out")
    if shape.etcd_for and etcd.program() is None:
        raise ClusterError(_without_etcd(shape.etcd_for, "none is installed here", None))
    stopped = layout.root if kubeconfig is not None else None
    there_is = f"the laptop cluster in {stopped} is stopped: starting it" if stopped else "no cluster runs: starting one"
    printer.say(f"{there_is} for this run")
    cluster = LocalCluster(data_dir=stopped, gpus=shape.gpus or None, sandbox=shape.sandbox, images=shape.images, dashboard=True)
    cluster.start(say=printer.say)
    try:
        closed = f": {NO_WAY_OUT}" if cluster.sandbox == Mode.NETNS.value else ""
        printer.say(f"cluster ready, sandbox {cluster.sandbox}{closed}")
        state = Layout(cluster.data_dir).read_state()
        if state is not None and (pretended := devices.words(state.gpus * state.nodes)):
            printer.say(pretended)
        printer.say(f"watch it: {command('top --watch', cluster.data_dir)} (or get, logs, explain)")
        if (url := link(Layout(cluster.data_dir))) is not None:
            printer.say(f"the dashboard: {url}")
        yield Place(cluster.kubeconfig, cluster.data_dir, own=cluster)
        if cluster.is_started:
            printer.say("stopping the cluster")
    finally:
        cluster.stop()


def _without_etcd(job: str, found: str, running: Path | None) -> str:
    """Say that a job would wait for an etcd for ever, and what to do. `running` is the folder of a cluster that has to start again."""
    install = "" if etcd.program() is not None else etcd.remedy()
    restart = f"`{command('down', running)}` and `{command('up --detach', running)}`" if running is not None else ""
    own = " and restart the cluster with ".join(filter(None, (install, restart))) if install else f"restart the cluster with {restart}"
    return (
        f"{job}: elasticPolicy.rdzvBackend is an etcd, rdzvHost names none, and {found}; {own}, or set rdzvHost, or leave rdzvBackend out"
    )


def _refuse_shape(options: list[str], cluster: str) -> None:
    """Refuse options that the cluster would not heed: without them a program might not find its packages."""
    if options:
        said = " ".join(options)
        raise ClusterError(
            f"{said} is for a cluster that is started for this run, but {cluster} is used; leave it out, "
            f"or restart the laptop cluster with it: elastic down; elastic up --detach {said}"
        )
