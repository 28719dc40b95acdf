"""Run pods in the sandbox `netns`, with namespaces of their own.

Every pod has its own network, host name and System V IPC. The pods' networks share a bridge inside one private network namespace. Every
container has its own mount and PID namespace. The host's network configuration is never touched. The sandbox works as root, and without
root through a user namespace.
"""

import os
import select
import signal
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from elastic.local.sandbox import Launch, Mode, Mount, SandboxError, init, linux
from elastic.local.sandbox.init import Ends
from elastic.local.sandbox.inputs import Console
from elastic.local.sandbox.mounts import Placement

BRIDGE = "elastic0"
GATEWAY = "10.64.0.1"
PREFIX = 16
LOOPBACK = "127.0.0.1"
HARDWARE = "02:00:0a:40:00:01"
"""Hardware address of the bridge. Without it, the bridge takes the lowest address of its ports, which changes as pods come and go. Peers
that know the old address then reach nobody for half a minute."""
FIRST_POD, LAST_POD = 2, 65_534
NO_NAME_SERVER = "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"
"""Configuration without a name server. Pods know only the names of their hosts file, and a program that still asks a name server is refused
at once. The machine's own server, which no pod can reach, would let it wait."""
SWITCH = Path("/etc/nsswitch.conf")
SET_UP_S = 10.0
POD_SPACES = {"net": linux.CLONE_NEWNET, "uts": linux.CLONE_NEWUTS, "ipc": linux.CLONE_NEWIPC}
"""Namespaces that the containers of a pod share. MPICH takes pods with common System V shared memory for one machine."""


@dataclass(frozen=True, slots=True)
class _Surroundings:
    ip: str
    spaces: Mapping[str, int]
    """The pod's namespaces, by their names in /proc."""

    def enter(self) -> None:
        for name, descriptor in self.spaces.items():
            linux.enter(descriptor, POD_SPACES[name])
            os.close(descriptor)

    def close(self) -> None:
        for descriptor in self.spaces.values():
            os.close(descriptor)


class Netns:
    """Owns the private namespaces, which live as long as the process that made this object."""

    mode = Mode.NETNS
    gateway = GATEWAY

    def __init__(self, stage: Path) -> None:
        _leave_the_host()
        self._network = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._stage = str(stage)
        self._resolver = stage.with_name("resolv.conf")
        self._resolver.write_text(NO_NAME_SERVER)
        self._switch = stage.with_name("nsswitch.conf")
        self._switch.write_text(names_from_files(SWITCH.read_text() if SWITCH.exists() else ""))
        self._pods: dict[str, _Surroundings] = {}
        self._last = FIRST_POD - 1
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        _ip(
            "link set lo up",
            f"link add {BRIDGE} address {HARDWARE} type bridge",
            f"addr add {GATEWAY}/{PREFIX} dev {BRIDGE}",
            f"link set {BRIDGE} up",
            # With this route, a connection out of the machine fails at once and does not wait for a timeout.
            "route add unreachable default",
        )

    def create(self, pod: str, *, hostname: str) -> str:
        index = self._next()
        ip = str(_address(index))
        ready, told = os.pipe()
        done, release = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(ready)
            os.close(release)
            _become_pod(hostname, told=told, done=done)
        os.close(told)
        os.close(done)
        try:
            _wait_ready(ready, pod)
            spaces = {name: os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in POD_SPACES}
            _ip(f"link add v{index} type veth peer name eth0 netns {pid}", f"link set v{index} master {BRIDGE} up")
            _ip(
                "link set lo up",
                f"addr add {ip}/{PREFIX} dev eth0",
                "link set eth0 up",
                f"route add default via {GATEWAY}",
                inside=spaces["net"],
            )
        finally:
            os.close(ready)
            os.close(release)
            os.waitpid(pid, 0)
        self._pods[pod] = _Surroundings(ip, spaces)
        return ip

    def _next(self) -> int:
        taken = {surroundings.ip for surroundings in self._pods.values()}
        for _ in range(LAST_POD):
            self._last = self._last + 1 if self._last < LAST_POD else FIRST_POD
            if str(_address(self._last)) not in taken:
                return self._last
        raise SandboxError("no address is free in the pods' network")

    def adopt_address(self, pod: str) -> str | None:
        found = self._pods.get(pod)
        return found.ip if found else None

    def destroy(self, pod: str) -> None:
        found = self._pods.pop(pod, None)
        if found:
            found.close()

    def listen(self, port: int) -> socket.socket:
        server = socket.create_server((GATEWAY, port), backlog=256)
        server.setblocking(False)
        return server

    def dial(self, pod: str, *, port: int, inside: bool) -> socket.socket:
        found = self._pods.get(pod)
        if found is None:
            raise SandboxError(f"pod {pod} has no network here")
        connection = self._socket_inside(found.spaces["net"]) if inside else socket.socket()
        connection.setblocking(False)
        connection.connect_ex((LOOPBACK if inside else found.ip, port))
        return connection

    def _socket_inside(self, network: int) -> socket.socket:
        """Make a socket in a network. It stays in the network in which it is made."""
        linux.enter(network, linux.CLONE_NEWNET)
        try:
            return socket.socket()
        finally:
            linux.enter(self._network, linux.CLONE_NEWNET)

    def check(self, launch: Launch) -> None:
        """Accept every launch, because all paths are made in the container's own mount namespace."""

    def spawn(self, launch: Launch, *, console: Console, group: int, problem: int) -> int:
        """Fork twice: only children enter a new PID namespace, and a holder without privileges could not leave one again."""
        pod = self._pods[launch.pod]

        def first() -> NoReturn:
            init.run(launch, console=console, group=group, problem=problem, prepare=_see_own_processes)

        def begin() -> NoReturn:
            linux.die_with_parent(signal.SIGKILL)
            init.forget_the_holder((*console.descriptors, group, problem, *pod.spaces.values()))
            self._surround(launch, pod)
            init.relay(first, problem=problem, ends=Ends.CHILD, console=console)

        pid = os.fork()
        if pid == 0:
            init.as_child(begin, problem)
        return pid

    def _surround(self, launch: Launch, pod: _Surroundings) -> None:
        pod.enter()
        linux.unshare(linux.CLONE_NEWNS)
        linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
        names = [Mount(source=str(self._resolver), target="/etc/resolv.conf")]
        names += [Mount(source=str(self._switch), target=str(SWITCH))] if SWITCH.exists() else []
        names += [Mount(source=launch.hosts, target="/etc/hosts")] if launch.hosts else []
        Placement(self._stage).place([*launch.mounts, *names])
        linux.unshare(linux.CLONE_NEWPID)

    def join(self, launch: Launch, *, init_pid: int, streams: tuple[int, int, int], terminal: bool, group: int, problem: int) -> int:
        def beside() -> NoReturn:
            init.join(launch, streams=streams, terminal=terminal, group=group, problem=problem)

        def begin() -> NoReturn:
            linux.die_with_parent(signal.SIGKILL)
            init.forget_the_holder((*streams, group, problem))
            _enter(init_pid)
            init.relay(beside, problem=problem, ends=Ends.CHILD)

        pid = os.fork()
        if pid == 0:
            init.as_child(begin, problem)
        return pid

    def kill(self, init_pid: int) -> None:
        os.kill(init_pid, init.KILL_TREE)

    def tree(self, init_pid: int) -> list[int]:
        # The first process below is process 1 of the container's PID namespace, which is our own.
        return linux.descendants(init_pid)[1:]

    def close(self) -> None:
        """Do nothing, because the kernel removes the namespaces with their last process."""


def names_from_files(switch: str) -> str:
    """Return the C library's configuration for names that come only from the hosts file.

    The C library takes a name server that refuses for a temporary failure. Programs would try again, and looking up the name of an address
    would be an error instead of giving the address.
    """
    rest = [line for line in switch.splitlines() if not line.lstrip().startswith("hosts:")]
    return "\n".join([*rest, "hosts: files"]) + "\n"


def _enter(init_pid: int) -> None:
    spaces = [(kind, os.open(f"/proc/{init_pid}/ns/{name}", os.O_RDONLY)) for kind, name in _JOINED]
    for kind, space in spaces:
        linux.enter(space, kind)
        os.close(space)


_JOINED = (
    (linux.CLONE_NEWPID, "pid_for_children"),
    *((kind, name) for name, kind in POD_SPACES.items()),
    (linux.CLONE_NEWNS, "mnt"),
)


def _see_own_processes() -> None:
    linux.mount("proc", "/proc", kind="proc", flags=linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)


def _leave_the_host() -> None:
    """Enter private namespaces: directly as root, otherwise through a user namespace in which we are root."""
    user, group = os.geteuid(), os.getegid()
    try:
        linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWNET)
    except PermissionError:
        linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS | linux.CLONE_NEWNET)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)


def _become_pod(hostname: str, *, told: int, done: int) -> None:
    try:
        linux.unshare(sum(POD_SPACES.values()))
        linux.set_hostname(hostname)
        os.write(told, b"+")
        os.read(done, 1)
    finally:
        os._exit(0)


def _wait_ready(ready: int, pod: str) -> None:
    readable, _, _ = select.select([ready], [], [], SET_UP_S)
    if not readable or os.read(ready, 1) != b"+":
        raise SandboxError(f"the network namespace of pod {pod} could not be made")


def _address(index: int) -> str:
    first, second, _, _ = GATEWAY.split(".")
    return f"{first}.{second}.{index >> 8}.{index & 255}"


def _ip(*commands: str, inside: int | None = None) -> None:
    enter = None if inside is None else lambda: linux.enter(inside, linux.CLONE_NEWNET)
    done = subprocess.run(
        ["ip", "-batch", "-"], input="\n".join(commands), text=True, capture_output=True, preexec_fn=enter, timeout=SET_UP_S
    )
    if done.returncode != 0:
        raise SandboxError(f"ip {'; '.join(commands)}: {done.stderr.strip()}")
