"""The laptop cluster as an object: started, looked at, stopped. For tests, notebooks and the command line; the supervisor does the work."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import Self

import msgspec

from elastic.extras import LOCAL, install
from elastic.local.agent import roster
from elastic.local.agent.records import PodFolder
from elastic.local.agent.roster import NODE_GRACE_S
from elastic.local.files import ClusterState, FolderError, Layout, Shape, is_alive, last_line, take_folder
from elastic.local.ownership import STAY
from elastic.local.sandbox import Record
from elastic.local.sandbox.channel import ask

NEEDED = ("aiohttp", "celpy", "cryptography", "jsonpatch", "jsonschema_rs", "kopf", "prometheus_client", "uvloop")
"""Packages that only the extra `local` brings."""
START_S = 90.0
QUIET_S = 3.0
STOP_S = 60.0


class ClusterError(Exception):
    """The cluster did not start or stop; the text says why, in the words of the process that knows."""


class LocalCluster:
    """`with LocalCluster() as cluster: ...` runs a cluster in a new folder or in `data_dir`, and leaves nothing running.

    Without `nodes`, `gpus`, `sandbox` or `images` it has those of the last time in that folder, else one node; nodes added to the folder
    come besides. With `join` it brings nodes and control plane to the API server of that kubeconfig, which has a scheduler and controllers
    of its own. With `dashboard` it shows its jobs to browsers; `allow_changes` lets these change jobs. `faults`, a seed, lets an
    administrator make the API server misbehave (PUT /faults).
    """

    def __init__(
        self,
        *,
        data_dir: Path | None = None,
        nodes: int | None = None,
        gpus: int | None = None,
        port: int = 0,
        sandbox: str | None = None,
        images: Mapping[str, Path] | None = None,
        control_plane: bool = True,
        join: Path | None = None,
        node_grace_s: float = NODE_GRACE_S,
        faults: int | None = None,
        autoscaler_period_s: float = 15.0,
        dashboard: bool = False,
        allow_changes: bool = False,
    ) -> None:
        folder = data_dir or Path(mkdtemp(prefix="elastic-"))
        self._removal = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True) if data_dir is None else None
        self._layout = Layout(folder.resolve())
        last = self._layout.read_shape()
        shape = _changed(last, nodes=nodes, gpus=gpus, sandbox=sandbox, images=images)
        remembered = shape.images if images is None else {}
        self._gone = {image: folder for image, folder in remembered.items() if not Path(folder, "bin").is_dir()}
        self._arguments = ["--nodes", str(shape.nodes), "--gpus", str(shape.gpus), "--port", str(port), "--sandbox", shape.sandbox]
        self._arguments += ["--node-grace-s", str(node_grace_s), "--autoscaler-period-s", str(autoscaler_period_s)]
        found = {image: folder for image, folder in shape.images.items() if image not in self._gone}
        self._arguments += [word for image, folder in found.items() for word in ("--image", f"{image}={folder}")]
        self._arguments += [] if control_plane else ["--cluster-only"]
        self._arguments += ["--dashboard"] if dashboard and control_plane else []
        self._arguments += ["--allow-changes"] if allow_changes else []
        self._arguments += ["--join", str(join.resolve())] if join else []
        self._arguments += ["--faults", str(faults)] if faults is not None else []
        self._kubeconfig = join.resolve() if join else self._layout.kubeconfig
        self._supervisor: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def kubeconfig(self) -> Path:
        return self._kubeconfig

    @property
    def data_dir(self) -> Path:
        return self._layout.root

    @property
    def state(self) -> ClusterState:
        state = self._layout.read_state()
        if state is None:
            raise ClusterError(f"no cluster runs in {self._layout.root}")
        return state

    @property
    def sandbox(self) -> str:
        return self.state.sandbox

    def start(self, *, detached: bool = False, say: Callable[[str], None] = lambda words: None) -> None:
        """Return when the cluster is ready; `say` hears why a long start waits. A detached cluster outlives this process."""
        if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
            raise ClusterError(f"this Python lacks {', '.join(missing)}, which the laptop cluster needs: {install(LOCAL)}")
        try:
            take_folder(self._layout.root)
            roster.read(self._layout.roster)  # the agents, which read it in a while, have no words with the user
        except FolderError as error:
            raise ClusterError(str(error)) from error
        for image, folder in self._gone.items():
            say(f"{folder}, which stood for image {image} the last time, is gone: its containers have the programs of `elastic`")
        log = self._layout.log("supervisor")
        command = [sys.executable, "-m", "elastic.local.supervisor", "--data-dir", str(self._layout.root), "--cwd", str(Path.cwd())]
        with log.open("ab") as sink:
            began = sink.tell()
            self._supervisor = subprocess.Popen(
                [*command, *self._arguments, *(() if detached else ("--lifeline",))],
                # This process holds the pipe open. When it ends in any way, the supervisor reads the pipe's end and stops.
                stdin=subprocess.DEVNULL if detached else subprocess.PIPE,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        try:
            self._wait_ready(log, began, say)
        except BaseException:
            self.stop()
            raise

    def _wait_ready(self, log: Path, began: int, say: Callable[[str], None]) -> None:
        assert self._supervisor is not None
        deadline, say_at = time.monotonic() + START_S, time.monotonic() + QUIET_S
        while (state := self._layout.read_state()) is None or state.supervisor != self._supervisor.pid:
            if self._supervisor.poll() is not None:
                raise ClusterError(_last_words(log, began))
            if time.monotonic() > deadline:
                raise ClusterError(f"the cluster was not ready within {START_S:.0f} s; see {log}")
            if time.monotonic() > say_at:
                say(f"the cluster starts: waiting for {self._next_part()}, at most {deadline - time.monotonic():.0f} s more")
                say_at += QUIET_S
            time.sleep(0.01)

    def _next_part(self) -> str:
        if not self._layout.ready("apiserver").exists():
            return "its API server"
        rest = "its nodes" if "--cluster-only" in self._arguments else "its nodes and the control plane"
        return rest if self._layout.ready("stored").exists() else "what an earlier cluster stored to be stopped"

    def wait(self) -> None:
        """Wait until the supervisor ends by itself."""
        if self._supervisor is not None:
            self._supervisor.wait()

    def stop(self) -> None:
        """End every process of the cluster and of its pods."""
        if self._supervisor is not None:
            self._supervisor.terminate()
            try:
                self._supervisor.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._supervisor.kill()
                self._supervisor.wait()
            if self._supervisor.stdin is not None:
                self._supervisor.stdin.close()
            self._supervisor = None
        if self._removal is not None:
            self._removal()

    @property
    def is_started(self) -> bool:
        """Return whether this object still has a cluster to stop."""
        return self._supervisor is not None

    def leave(self) -> None:
        """Let the cluster outlive this process. `elastic down` stops it."""
        if self._supervisor is not None and self._supervisor.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # the cluster has just died, and the next command says so
                self._supervisor.stdin.write(STAY)
                self._supervisor.stdin.close()
        self._supervisor = None
        if self._removal is not None:
            self._removal.detach()

    def processes(self) -> dict[str, int]:
        """Return the cluster's own processes, by name."""
        return {**self.state.processes, "supervisor": self.state.supervisor}

    def kill(self, name: str) -> None:
        """SIGKILL to one of the cluster's own processes; its supervisor starts it again."""
        os.kill(self.processes()[name], signal.SIGKILL)

    def pids(self, namespace: str, pod: str) -> list[int]:
        """Return the pids, on this machine, of all processes of a pod's running containers."""
        return [pid for container in self._running(namespace, pod) for pid in ask(self._layout.root, "tree", id=container)[0]["pids"]]

    def _running(self, namespace: str, pod: str) -> Iterator[str]:
        for path in self._layout.pods.glob("*/*/pod.json"):
            note = PodFolder(path.parent).note()
            if note is None or (note.namespace, note.name) != (namespace, pod):
                continue
            for file in path.parent.glob("containers/*/*.json"):
                with contextlib.suppress(OSError, msgspec.DecodeError):
                    record = msgspec.json.decode(file.read_bytes(), type=Record)
                    if record.running:
                        yield record.id


def _changed(last: Shape, *, nodes: int | None, gpus: int | None, sandbox: str | None, images: Mapping[str, Path] | None) -> Shape:
    folders = None if images is None else {image: str(folder.absolute()) for image, folder in images.items()}
    named = {"nodes": nodes, "gpus": gpus, "sandbox": sandbox, "images": folders}
    return msgspec.structs.replace(last, **{name: value for name, value in named.items() if value is not None})


def stop_detached(data_dir: Path, *, say: Callable[[str], None] = lambda words: None) -> bool:
    """Stop the cluster of a data folder, also if another process started it. Return False if none runs.

    `say` gets what a long stop waits for.
    """
    layout = Layout(data_dir)
    state = layout.read_state()
    if state is None:
        return False
    if (owner := data_dir.stat().st_uid) != os.geteuid():
        raise ClusterError(f"the data folder {data_dir} belongs to another user (uid {owner}), who alone stops its cluster")
    if not layout.is_held_by(state.supervisor):
        layout.forget_state()
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(state.supervisor, signal.SIGTERM)
    deadline, say_at = time.monotonic() + STOP_S, time.monotonic() + QUIET_S
    while is_alive(state.supervisor):
        if time.monotonic() > deadline:
            raise ClusterError(f"the supervisor (process {state.supervisor}) did not end within {STOP_S:.0f} s")
        if time.monotonic() > say_at:
            say(f"the cluster stops: waiting for its pods and processes to end, at most {deadline - time.monotonic():.0f} s more")
            say_at += QUIET_S
        time.sleep(0.02)
    return True


def _last_words(log: Path, began: int) -> str:
    words = last_line(log, since=began).split(" ERROR ", 1)[-1] or "the supervisor ended without a message"
    return f"{words} (log: {log})"
