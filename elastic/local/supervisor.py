"""The process behind `elastic up`.

Starts the cluster's processes in order, hands each its sockets, keeps them running, stops them in reverse. The sockets are opened here
once, so a process that is started again finds the connections that waited for it. Told to join another API server, it starts no API server,
scheduler or controllers of ours, only nodes and the control plane.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from elastic.kube import connect
from elastic.kube.access import AccessError, from_kubeconfig
from elastic.kube.errors import KubeError
from elastic.local import etcd
from elastic.local.agent.roster import node_name
from elastic.local.children import Child, ChildFailed
from elastic.local.etcd.activation import start_when_called
from elastic.local.files import ClusterState, FolderError, Layout, Shape
from elastic.local.ownership import STAY, AlreadyRunning, sole_owner
from elastic.local.ports import free_port
from elastic.local.sandbox import Mode
from elastic.local.sandbox.channel import RUNNING, ask, listen_inside
from elastic.local.supervisor_arguments import arguments
from elastic.logs import log_plainly
from elastic.runtime.files import write_private

if TYPE_CHECKING:
    from elastic.kube.client import Kube

log = logging.getLogger("elastic.local.supervisor")

AGENTS = "agents"
NODES_READY_S, POLL_S = 30.0, 0.01
HOST = "127.0.0.1"
"""Address at which our servers listen. Pods have another way to them only if they have a network of their own."""


class Supervisor:
    def __init__(self, layout: Layout, options: argparse.Namespace, *, lock: int) -> None:
        self._layout = layout
        self._lock = lock
        self._options = options
        self._children: list[Child] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._sockets: list[socket.socket] = []
        self._ports = layout.read_ports()
        self._state: ClusterState | None = None
        self._gateway = ""
        self._holds_the_past = layout.objects.exists()
        """whether objects of an earlier cluster could start by themselves"""

    async def run(self, stop: asyncio.Event) -> None:
        """Run until stopped. When the holder ends, its pods and sockets are gone, and the whole cluster restarts."""
        while not stop.is_set():
            try:
                await self._start_all()
                await self._until(stop)
            finally:
                await self._stop_all()

    async def _until(self, stop: asyncio.Event) -> None:
        """Until stopped, or the holder ends; the keepers end only by a defect of ours, which is not to be passed over."""
        holder = self._children[0].process if self._options.nodes else None
        own: list[asyncio.Task[object]] = [asyncio.create_task(stop.wait())]
        own += [asyncio.create_task(holder.wait())] if holder is not None else []
        await asyncio.wait([*own, *self._keepers], return_when=asyncio.FIRST_COMPLETED)
        for wait in own:
            wait.cancel()
        for keeper in self._keepers:
            if keeper.done():
                keeper.result()
        if not stop.is_set():
            log.warning("the sandbox holder ended; restarting the cluster")

    async def _start_all(self) -> None:
        options, layout = self._options, self._layout
        sandbox = await self._start_holder() if options.nodes else None
        self._state = ClusterState(
            supervisor=os.getpid(),
            sandbox=sandbox.value if sandbox else "none",
            server="",
            kubeconfig=str(self._kubeconfig),
            nodes=options.nodes,
            gpus=options.gpus,
            control_plane=not options.cluster_only,
            processes={child.name: child.pid for child in self._children},
            has_etcd=etcd.program() is not None,
            python=sys.prefix,
        )
        layout.ready("stored").unlink(missing_ok=True)
        shape = Shape(options.nodes, options.gpus, options.sandbox, dict(image.split("=", 1) for image in options.image))
        write_private(layout.shape, msgspec.json.encode(shape))
        # The agents take as long to load as the server, so they start at the same time. Then they wait for it.
        server, _ = await asyncio.gather(self._start_server(), self._start_agents())
        self._state = msgspec.structs.replace(self._state, server=server)
        # This imports the HTTP client, which would have delayed the start of the other processes.
        from elastic.local.furnishing import apply_definitions, withdraw_metrics

        async with connect(self._kubeconfig) as kube:
            if not options.cluster_only:
                await apply_definitions(kube, train_jobs=not options.join)
                await self._start_control_plane(kube)
            elif not options.join:
                await withdraw_metrics(kube)
        if self._has_agents:
            await self._wait_nodes()
        layout.write_state(self._state)

    async def _wait_nodes(self) -> None:
        """Wait until the agents have brought all nodes. The API's nodes may be those of the cluster's former life."""
        ready = self._layout.ready(AGENTS)
        try:
            async with asyncio.timeout(NODES_READY_S):
                while not ready.exists():  # noqa: ASYNC110 - a file wakes nobody
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise ChildFailed(f"the nodes are not ready after {NODES_READY_S:.0f} s; see {self._layout.log(AGENTS)}") from None

    @property
    def _kubeconfig(self) -> Path:
        return self._options.join or self._layout.kubeconfig

    async def _start_server(self) -> str:
        """Return the address of the API server, ours or the one to join."""
        if self._options.join:
            return from_kubeconfig(self._options.join).server
        names = [word for address in self._addresses() for word in ("--san", address)]
        arguments = ["--data-dir", str(self._layout.root), "--audit-file", str(self._layout.audit), *names]
        arguments += [] if self._options.faults is None else ["--faults", str(self._options.faults)]
        await self._start("apiserver", "elastic.local.apiserver", arguments, port=self._options.port)
        await self._stop_the_past()
        self._layout.ready("stored").touch()
        return f"https://{HOST}:{self._ports['apiserver']}"

    async def _stop_the_past(self) -> None:
        """Stop the jobs of the former life before scheduler and agents could start them."""
        folder = self._layout.working_dir
        if self._holds_the_past:
            from elastic.local.stopped import stop_all

            async with connect(self._kubeconfig) as kube:
                await stop_all(kube, working_dir=folder.read_text() if folder.exists() else "")
        self._holds_the_past = False
        write_private(folder, str(self._options.cwd).encode())

    async def _start_agents(self) -> None:
        if self._has_agents:
            agents, ready = self._agents(), self._layout.ready(AGENTS)
            agents.arguments = [*agents.arguments, "--ready-file", str(ready)]
            agents.before = lambda: ready.unlink(missing_ok=True)
            await self._begin(agents)

    @property
    def _has_agents(self) -> bool:
        return bool(self._options.nodes or not self._options.join)

    def _agents(self) -> Child:
        """Return the process of the nodes. It also has the scheduler and the controllers, unless another cluster has them."""
        options = self._options
        arguments = ["--kubeconfig", str(self._kubeconfig), "--data-dir", str(self._layout.root), "--cwd", str(options.cwd)]
        arguments += ["--gpus", str(options.gpus), "--node-grace-s", str(options.node_grace_s)]
        arguments += [word for image in options.image for word in ("--image", image)]
        if options.join:
            nodes = [word for index in range(options.nodes) for word in ("--node", node_name(index))]
            return self._child(AGENTS, "elastic.local.agent", [*arguments, *nodes, "--sandbox", RUNNING])
        arguments += ["--nodes", str(options.nodes), "--autoscaler-period-s", str(options.autoscaler_period_s)]
        arguments += [word for name in ("stored", "apiserver") for word in ("--after", str(self._layout.ready(name)))]
        return self._child(AGENTS, "elastic.local.agents", arguments)

    async def _start_holder(self) -> Mode:
        """Choose the first allowed sandbox that can be made here."""
        root, wanted = self._layout.root, self._options.sandbox
        modes = list(Mode) if wanted == "auto" else [Mode(wanted)]
        for mode in modes:
            child = self._child("holder", "elastic.local.sandbox.holder", [str(root), mode.value])
            child.is_ready = lambda: _answers(root)
            try:
                await child.start()
            except ChildFailed as error:
                if mode is modes[-1]:
                    raise
                log.warning("sandbox %s is not possible here, trying the next: %s", mode.value, error)
            else:
                self._children.append(child)
                self._gateway = str(ask(root, "describe")[0]["gateway"])
                return mode
        raise AssertionError("there is at least one mode")

    async def _start_control_plane(self, kube: Kube) -> None:
        from elastic.local import dashboard, furnishing
        from elastic.local.accounts import AUTOSCALER, CONTROLLER, DASHBOARD, RENDEZVOUS, Accounts
        from elastic.local.installation import AUTOSCALER_TOKEN, ETCD_SERVICE, SERVICE, ensure_installation

        layout, options = self._layout, self._options
        folder = layout.installation
        ensure_installation(folder, addresses=self._addresses())
        accounts = Accounts(self._kubeconfig, folder, is_guest=bool(options.join))
        await accounts.make(kube)
        self._keepers.append(asyncio.create_task(accounts.keep(), name="accounts"))
        given = ["--installation", str(folder), "--kubeconfig"]
        await self._start("rendezvous", "elastic_training.rendezvous.main", [*given, str(accounts.kubeconfig(RENDEZVOUS))])
        port = self._ports["rendezvous"]
        reach = ["--rendezvous-url", f"https://{HOST}:{port}", "--rendezvous-endpoint", f"{SERVICE}:{port}"]
        if etcd_port := self._offer_etcd(folder):
            reach += ["--etcd-endpoint", f"{ETCD_SERVICE}:{etcd_port}", "--etcd-url", f"{HOST}:{etcd_port}", "--etcd-on-demand"]
        if layout.signals.exists():
            reach += ["--signals", str(layout.signals)]
        reach += ["--trainjobs", "off" if options.join else "instead"]
        arguments = [*given, str(accounts.kubeconfig(CONTROLLER)), *reach]
        controller = self._child("controller", "elastic_training.controller.running.main", arguments)
        if not options.join:  # an API server that we joined may be far away
            await furnishing.open_door(kube, f"https://{HOST}:{self._lent(controller, 'webhook')}")
        await self._begin(self._waiting(controller))
        reach = ["--rendezvous-url", f"https://{HOST}:{port}", "--rendezvous-token", str(folder / AUTOSCALER_TOKEN)]
        pages = [] if options.join else ["--pages-through-api"]
        arguments = ["--kubeconfig", str(accounts.kubeconfig(AUTOSCALER)), *reach, "--rendezvous-ca", str(folder / "ca.crt"), *pages]
        autoscaler = self._child("autoscaler", "elastic_training.autoscale.running.main", arguments)
        if not options.join:
            await furnishing.offer_metrics(kube, HOST, self._lent(autoscaler, "metrics-api"))
        await self._begin(autoscaler)  # nobody waits for this and for the dashboard: jobs start without them
        if options.dashboard:
            words = dashboard.arguments(layout, accounts.kubeconfig(DASHBOARD), self._kubeconfig, allow_changes=options.allow_changes)
            shown = self._child("dashboard", dashboard.MODULE, [*words, *reach, "--rendezvous-ca", str(folder / "ca.crt")])
            self._lent(shown, "dashboard")
            await self._begin(shown)

    def _offer_etcd(self, installation: Path) -> int:
        """Return the port of an etcd that starts when the controller connects for the first job that meets there; 0 without one."""
        program = etcd.program()
        if program is None:
            return 0
        listening = self._listening("etcd")
        arguments = ["--program", str(program), "--folder", str(self._layout.root / "etcd"), "--installation", str(installation)]
        arguments += ["--port", str(self._free_port("etcd-member")), "--peer-port", str(self._free_port("etcd-peer"))]
        child = self._waiting(self._with_sockets(self._child("etcd", "elastic.local.etcd", arguments), listening))
        self._children.append(child)
        self._keepers.append(asyncio.create_task(start_when_called(listening, child), name="etcd"))
        return self._ports["etcd"]

    def _free_port(self, name: str) -> int:
        """Return a port for a program that opens its sockets itself; the same over restarts."""
        if name not in self._ports:
            self._ports[name] = free_port()
            write_private(self._layout.ports, json.dumps(self._ports).encode())
        return self._ports[name]

    def _lent(self, child: Child, name: str) -> int:
        """Give a child a socket of that name, for its flag --NAME-fd; return the port."""
        opened = self._opened(name)
        child.fds = [*child.fds, opened.fileno()]
        child.arguments = [*child.arguments, f"--{name}-fd", str(opened.fileno())]
        return self._ports[name]

    def _opened(self, name: str, *, port: int = 0) -> socket.socket:
        """Open a socket on the host's loopback, whose port stays over restarts."""
        opened = _listen(port or self._ports.get(name) or free_port(), is_wish=not port)
        self._sockets.append(opened)
        self._ports[name] = opened.getsockname()[1]
        write_private(self._layout.ports, json.dumps(self._ports).encode())
        return opened

    def _addresses(self) -> tuple[str, ...]:
        return (self._gateway,) if self._gateway else ()

    async def _start(self, name: str, module: str, arguments: list[str], *, port: int = 0) -> None:
        child = self._with_sockets(self._child(name, module, arguments), self._listening(name, port=port))
        await self._begin(self._waiting(child))

    def _listening(self, name: str, *, port: int = 0) -> list[socket.socket]:
        """Open a server's socket on the host's loopback, and one at the same port inside the pods' network."""
        outside = self._opened(name, port=port)
        inside = [listen_inside(self._layout.root, self._ports[name])] if self._gateway not in ("", HOST) else []
        self._sockets += inside
        return [outside, *inside]

    def _with_sockets(self, child: Child, listening: list[socket.socket]) -> Child:
        numbers = [server.fileno() for server in listening]
        child.fds = [*child.fds, *numbers]
        child.arguments = [*child.arguments, *(word for fd in numbers for word in ("--listen-fd", str(fd)))]
        return child

    def _child(self, name: str, module: str, arguments: list[str]) -> Child:
        return Child(name=name, module=module, arguments=arguments, log=self._layout.log(name), started=self._note, fds=[self._lock])

    def _waiting(self, child: Child) -> Child:
        ready = self._layout.ready(child.name)
        child.arguments = [*child.arguments, "--ready-file", str(ready)]
        child.before = lambda: ready.unlink(missing_ok=True)
        child.is_ready = ready.exists
        return child

    async def _begin(self, child: Child) -> None:
        self._children.append(child)
        await child.start()
        self._keepers.append(asyncio.create_task(child.keep(), name=child.name))

    def _note(self, name: str, pid: int) -> None:
        if self._state is None:
            return
        self._state = msgspec.structs.replace(self._state, processes={**self._state.processes, name: pid})
        if self._layout.read_state() is not None:
            self._layout.write_state(self._state)

    async def _stop_all(self) -> None:
        self._layout.forget_state()
        # First of all, for a keeper whose child has just ended would start it again, and nothing would stop that one.
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for child in reversed(self._children):
            await child.stop()
        for server in self._sockets:
            server.close()
        self._children, self._keepers, self._sockets, self._gateway = [], [], [], ""


def _answers(folder: Path) -> bool:
    """Return whether the sandbox holder exists and answers."""
    try:
        ask(folder, "describe")
    except OSError:
        return False
    return True


def _listen(port: int, *, is_wish: bool) -> socket.socket:
    try:
        return socket.create_server((HOST, port), backlog=1024)
    except OSError as error:
        if is_wish and port:
            return _listen(0, is_wish=True)
        raise ChildFailed(f"port {port} on {HOST}: {os.strerror(error.errno or 0)}; choose another with --port") from error


async def _run(layout: Layout, options: argparse.Namespace, *, lock: int) -> None:
    stop = asyncio.Event()
    main = asyncio.current_task()
    assert main is not None

    def told() -> None:
        stop.set()
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        if layout.read_state() is None:
            main.cancel()  # the start is not complete; cancelling stops what was started

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told)
    if options.lifeline:

        def hear() -> None:
            if os.read(sys.stdin.fileno(), len(STAY)) == STAY:
                asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            else:
                told()

        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), hear)
    with contextlib.suppress(asyncio.CancelledError):
        await Supervisor(layout, options, lock=lock).run(stop)


def main() -> int:
    log_plainly()
    options = arguments()
    layout = Layout(options.data_dir.resolve())
    try:
        with sole_owner(layout) as lock:
            asyncio.run(_run(layout, options, lock=lock))
    except (AlreadyRunning, ChildFailed, FolderError, AccessError, KubeError, OSError) as error:
        log.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
